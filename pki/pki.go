// Package pki makes the certificates that a server of a cluster needs and is not given: the
// cluster's CA, serving certificates, an administrator's kubeconfig, the certificate that servers
// show to aggregated API servers, and the key of service account tokens. It renews them while the
// server runs. Servers that share a directory share its CAs. A CA's key is read only where something
// is signed.
package pki

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Names of files in the directory of certificates. The CA of the front proxy is another one:
// a client that it vouches for may act as any user.
const (
	CACertName           = "ca.crt"
	CAKeyName            = "ca.key"
	signerCertName       = "ca.signer.crt"
	FrontProxyCACertName = "front-proxy-ca.crt"
	FrontProxyCAKeyName  = "front-proxy-ca.key"
	FrontProxyCertName   = "front-proxy-client.crt"
	FrontProxyKeyName    = "front-proxy-client.key"
	// AdminKubeconfigName is the administrator's kubeconfig, admin-<port>.kubeconfig that for
	// a further server on the directory.
	AdminKubeconfigName = "admin.kubeconfig"

	adminCertName = "admin.crt"
	adminKeyName  = "admin.key"
	// SigningKeyName is the key that signs service account tokens.
	SigningKeyName = "sa.key"

	// lockName is another name than that of the data directory's lock, which may be in the
	// same directory.
	lockName = "certificates.lock"
)

// FrontProxyUser is the user name of servers at the aggregated API servers that they ask.
const FrontProxyUser = "front-proxy-client"

const (
	certLifetime = 365 * 24 * time.Hour
	// renewAfter is how much of its life a certificate has left when it is renewed.
	renewAfter = certLifetime / 3
	clockSkew  = 5 * time.Minute
)

// Config says which certificates a server needs.
type Config struct {
	// Dir holds the CAs and the certificates signed with them. It is made if it is missing (0700).
	Dir string
	// BindAddress and Port are where the server listens. Nil: on the loopback.
	BindAddress net.IP
	Port        int
	// ServingCertFile is the serving certificate that the server is given. Empty: one is made.
	ServingCertFile string
	// ProxyClientCertFile is the certificate that the server is given to show to aggregated API
	// servers. Empty: one is made.
	ProxyClientCertFile string
	// Signer is the signer of service account tokens that the server is given: a key's file, or the
	// endpoint of an external signer. Empty: a key is made.
	Signer string
	// Clock is the time; nil for the real one.
	Clock clock.Clock
}

// Validate returns what is wrong with a Config, if anything.
func (c *Config) Validate() error {
	if c.Dir == "" {
		return errors.New("a directory for certificates is needed (--cert-dir)")
	}
	if c.Port < 1 || c.Port > 65535 {
		return fmt.Errorf("the port of a server that listens is needed, not %d", c.Port)
	}
	return nil
}

// Certificates are the files of one server. Those that the server was given are not among them.
type Certificates struct {
	// CAFile has the cluster's CA, and while that is changed the other one after it.
	CAFile string
	// SignerFile has the first CA of CAFile alone, as Kubernetes' signers of certificate requests want it.
	SignerFile string
	// CertFile and KeyFile are the serving certificate; empty where one was given.
	CertFile, KeyFile string
	// AdminKubeconfig is the kubeconfig that was written for this server; empty where the CA's
	// key is not there to sign for an administrator.
	AdminKubeconfig string
	// FrontProxy is the certificate that it shows to aggregated API servers; empty where one was given.
	FrontProxy FrontProxy
	// SigningKeyFile is the key that signs service account tokens; empty where one was given.
	SigningKeyFile string

	config Config
}

// Address is the host and port at which clients on the server's own host reach it.
func (c *Certificates) Address() string { return c.config.address() }

func (c *Config) address() string { return net.JoinHostPort(c.host(), strconv.Itoa(c.Port)) }

func (c *Config) host() string {
	if c.BindAddress == nil || c.BindAddress.IsUnspecified() {
		return "127.0.0.1"
	}
	return c.BindAddress.String()
}

// FrontProxy is a certificate of FrontProxyUser, and the CA that signed it.
type FrontProxy struct{ CAFile, CertFile, KeyFile string }

// Ensure makes the files that are missing, and renews the certificates that have used up two thirds
// of their life. Servers that share a directory may do so at the same time.
func Ensure(config Config) (*Certificates, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.Clock == nil {
		config.Clock = clock.RealClock{}
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(config.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	return ensure(config)
}

func ensure(config Config) (*Certificates, error) {
	file := func(name string) string { return filepath.Join(config.Dir, name) }
	c := &Certificates{CAFile: file(CACertName), config: config}
	ca, err := ensureCA(c.CAFile, file(CAKeyName), "concord-ca", config.Clock)
	if err != nil {
		return nil, err
	}
	if c.SignerFile, err = ca.ensureAlone(c.CAFile, file(signerCertName)); err != nil {
		return nil, err
	}
	if left := ca.cert.NotAfter.Sub(config.Clock.Now()); left < certLifetime {
		klog.Background().Error(nil, "The cluster's CA ends, and with it everything that it signed: change it before (docs/security.md)", "file", c.CAFile, "at", ca.cert.NotAfter)
	}
	if config.ProxyClientCertFile == "" {
		if c.FrontProxy, err = ensureFrontProxy(config.Dir, config.Clock); err != nil {
			return nil, fmt.Errorf("front proxy: %w (or give --proxy-client-cert-file)", err)
		}
	}
	if config.Signer == "" {
		c.SigningKeyFile = file(SigningKeyName)
		if err := ensureSigningKey(c.SigningKeyFile); err != nil {
			return nil, fmt.Errorf("the key of service account tokens: %w", err)
		}
	}
	if config.ServingCertFile == "" {
		c.CertFile = file(fmt.Sprintf("server-%d.crt", config.Port))
		c.KeyFile = file(fmt.Sprintf("server-%d.key", config.Port))
		if err := ca.ensureServing(c, config.BindAddress); err != nil {
			return nil, fmt.Errorf("serving certificate: %w (or give --tls-cert-file)", err)
		}
	}
	if c.AdminKubeconfig, err = ca.ensureAdmin(config); err != nil {
		return nil, err
	}
	return c, nil
}

// ensureSigningKey makes the key of service account tokens, if there is none.
func ensureSigningKey(file string) error {
	_, err := keyutil.PrivateKeyFromFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		_, content, err := newKey()
		if err != nil {
			return err
		}
		klog.Background().Info("Making a key for service account tokens: those that another key signed are void here, and the servers of a cluster need the same one", "file", file)
		return writeWhole(map[string][]byte{file: content})
	}
	if err != nil {
		return fmt.Errorf("%w: restore %s, or remove it to make a new one, which makes all present tokens void", err, file)
	}
	return nil
}

// ensureFrontProxy makes the certificate that servers show to aggregated API servers.
func ensureFrontProxy(dir string, now clock.PassiveClock) (FrontProxy, error) {
	f := FrontProxy{
		CAFile:   filepath.Join(dir, FrontProxyCACertName),
		CertFile: filepath.Join(dir, FrontProxyCertName), KeyFile: filepath.Join(dir, FrontProxyKeyName),
	}
	ca, err := ensureCA(f.CAFile, filepath.Join(dir, FrontProxyCAKeyName), "concord-front-proxy-ca", now)
	if err != nil {
		return f, err
	}
	return f, ca.ensureIssued(f.CertFile, f.KeyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: FrontProxyUser},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// ensureServing writes a serving certificate unless there is a good one of this CA.
func (a *authority) ensureServing(c *Certificates, bind net.IP) error {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "concord-server"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1")},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	switch {
	case bind == nil:
	case bind.IsUnspecified():
		hosts, ips, err := ownNames()
		if err != nil {
			return fmt.Errorf("the names of this host: %w", err)
		}
		template.DNSNames, template.IPAddresses = append(template.DNSNames, hosts...), append(template.IPAddresses, ips...)
	case !bind.IsLoopback():
		template.IPAddresses = append(template.IPAddresses, bind)
	}
	if present := a.issued(c.CertFile, c.KeyFile); present != nil && !isFor(present, template) {
		// Servers of several hosts may share the directory and the port: none takes away the
		// names of another.
		template.DNSNames, template.IPAddresses = append(template.DNSNames, present.DNSNames...), append(template.IPAddresses, present.IPAddresses...)
	}
	return a.ensureIssued(c.CertFile, c.KeyFile, template)
}

// ownNames are the names and addresses that others may call this host by when it listens on all of
// its addresses.
func ownNames() (hosts []string, ips []net.IP, err error) {
	if host, err := os.Hostname(); err == nil && len(validation.IsDNS1123Subdomain(strings.ToLower(host))) == 0 {
		hosts = append(hosts, strings.ToLower(host))
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, nil, err
	}
	for _, address := range addresses {
		if ip, _, err := net.ParseCIDR(address.String()); err == nil && ip.IsGlobalUnicast() {
			ips = append(ips, ip)
		}
	}
	return hosts, ips, nil
}
