package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	caCertName = "ca.crt"
	caKeyName  = "ca.key"
	// The CA of the front proxy is another one: whom it vouches for may be anybody.
	frontProxyCACertName = "front-proxy-ca.crt"
	frontProxyCAKeyName  = "front-proxy-ca.key"
	frontProxyCertName   = "front-proxy-client.crt"
	frontProxyKeyName    = "front-proxy-client.key"
	// frontProxyUser is who servers are to the aggregated API servers that they ask.
	frontProxyUser = "front-proxy-client"
	// AdminKubeconfigName is the administrator's kubeconfig in the certificate directory.
	AdminKubeconfigName = "admin.kubeconfig"

	// certLockName is another name than that of the data directory's lock, which may be in
	// the same directory.
	certLockName = "certificates.lock"

	certLifetime = 365 * 24 * time.Hour
	clockSkew    = 5 * time.Minute
)

// certificates are what one server needs of its cluster's CA.
type certificates struct {
	caFile   string
	certFile string
	keyFile  string
	// adminKubeconfig is the file that was written for this server.
	adminKubeconfig string
	// frontProxy is what it shows to aggregated API servers.
	frontProxy frontProxy
}

// frontProxy is the certificate of frontProxyUser, and the CA that signed it.
type frontProxy struct{ caFile, certFile, keyFile string }

// ensureCertificates makes what is missing in dir: the cluster's CA, this server's
// serving certificate, unless the operator gave one in the file given, and an
// administrator's kubeconfig for it. Servers that share dir may do so at the same time.
func ensureCertificates(dir string, bind net.IP, port int, given string) (*certificates, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, certLockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	c := &certificates{caFile: filepath.Join(dir, caCertName)}
	ca, err := ensureCA(c.caFile, filepath.Join(dir, caKeyName), "concord-ca")
	if err != nil {
		return nil, err
	}
	if c.frontProxy, err = ensureFrontProxy(dir); err != nil {
		return nil, err
	}
	if given == "" {
		c.certFile = filepath.Join(dir, fmt.Sprintf("server-%d.crt", port))
		c.keyFile = filepath.Join(dir, fmt.Sprintf("server-%d.key", port))
		if err := ca.ensureServing(c, bind); err != nil {
			return nil, err
		}
	}
	if c.adminKubeconfig, err = ca.ensureAdmin(dir, bind, port, given); err != nil {
		return nil, err
	}
	return c, nil
}

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func ensureCA(certFile, keyFile, name string) (*authority, error) {
	if _, err := os.Stat(certFile); errors.Is(err, os.ErrNotExist) {
		if err := makeCA(certFile, keyFile, name); err != nil {
			return nil, err
		}
	}
	const mend = "make it readable, restore it from a backup or another server's --cert-dir, or remove both %s and %s to make a new CA, which no present kubeconfig trusts"
	certs, err := certutil.CertsFromFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA certificate: %w: "+mend, err, certFile, keyFile)
	}
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA key: %w: "+mend, err, certFile, keyFile)
	}
	key, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the cluster's CA key %s cannot sign: "+mend, keyFile, certFile, keyFile)
	}
	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(certs[0].PublicKey) {
		return nil, fmt.Errorf("%s and %s do not belong together: restore the pair or remove both", certFile, keyFile)
	}
	raw, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	return &authority{cert: certs[0], key: key, pem: raw}, nil
}

// makeCA makes the certificate of a CA. A key that is there is its own: the start that
// made it was cut off before it had a certificate, or somebody lost that. What the key has
// signed stays good.
func makeCA(certFile, keyFile, name string) error {
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	if errors.Is(err, os.ErrNotExist) {
		private, err = makeKey(keyFile)
	}
	if err != nil {
		return fmt.Errorf("the cluster's CA key: %w: restore it, or remove %s to make a new CA, which no present kubeconfig trusts", err, keyFile)
	}
	key, ok := private.(crypto.Signer)
	if !ok {
		return fmt.Errorf("the cluster's CA key %s cannot sign: restore it", keyFile)
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	if err != nil {
		return err
	}
	return writeWhole(certFile, encodeCert(cert.Raw), certutil.WriteCert)
}

// ensureFrontProxy makes what servers show to aggregated API servers, where they are given
// nothing else for that.
func ensureFrontProxy(dir string) (frontProxy, error) {
	f := frontProxy{
		caFile:   filepath.Join(dir, frontProxyCACertName),
		certFile: filepath.Join(dir, frontProxyCertName), keyFile: filepath.Join(dir, frontProxyKeyName),
	}
	ca, err := ensureCA(f.caFile, filepath.Join(dir, frontProxyCAKeyName), "concord-front-proxy-ca")
	if err != nil {
		return f, fmt.Errorf("front proxy: %w", err)
	}
	if ca.stillGood(f.certFile, f.keyFile) != nil {
		return f, nil
	}
	return f, ca.issue(f.certFile, f.keyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: frontProxyUser},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func makeKey(file string) (crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, err
	}
	return key, writeWhole(file, content, keyutil.WriteKey)
}

// writeWhole writes a file such that it is there whole or not at all, whenever the process
// is killed.
func writeWhole(file string, content []byte, write func(string, []byte) error) error {
	part := file + ".part"
	if err := write(part, content); err != nil {
		return err
	}
	return os.Rename(part, file)
}

// ensureServing writes a serving certificate unless a valid one of this CA is there.
func (a *authority) ensureServing(c *certificates, bind net.IP) error {
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
	if cert := a.stillGood(c.certFile, c.keyFile); cert != nil && names(cert, template) {
		return nil
	}
	return a.issue(c.certFile, c.keyFile, template)
}

// ownNames are what others may call this host when it listens on all of its addresses.
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

// names tells whether a certificate is for all that another one would be for.
func names(cert, wanted *x509.Certificate) bool {
	for _, ip := range wanted.IPAddresses {
		if cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	for _, host := range wanted.DNSNames {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

// stillGood returns the certificate of a pair of files if the two belong together, this CA
// signed it, and it lasts for a while yet; else nil.
func (a *authority) stillGood(certFile, keyFile string) *x509.Certificate {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil || pair.Leaf.CheckSignatureFrom(a.cert) != nil || time.Until(pair.Leaf.NotAfter) <= certLifetime/12 {
		return nil
	}
	return pair.Leaf
}

func (a *authority) issue(certFile, keyFile string, template *x509.Certificate) error {
	key, err := makeKey(keyFile)
	if err != nil {
		return err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	template.NotBefore = time.Now().Add(-clockSkew)
	template.NotAfter = time.Now().Add(certLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writeWhole(certFile, encodeCert(der), certutil.WriteCert)
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}

// ensureAdmin writes a kubeconfig of a member of system:masters for the server at port.
// The first server's is admin.kubeconfig; a further server on the same directory writes
// admin-<port>.kubeconfig beside it. It trusts this CA and the serving certificate in the
// file given.
func (a *authority) ensureAdmin(dir string, bind net.IP, port int, given string) (string, error) {
	host := "127.0.0.1"
	if bind != nil && !bind.IsUnspecified() {
		host = bind.String()
	}
	url := "https://" + net.JoinHostPort(host, fmt.Sprint(port))
	certFile, keyFile := filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key")
	if a.stillGood(certFile, keyFile) == nil {
		err := a.issue(certFile, keyFile, &x509.Certificate{
			Subject:     pkix.Name{CommonName: "admin", Organization: []string{user.SystemPrivilegedGroup}},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		})
		if err != nil {
			return "", fmt.Errorf("administrator's certificate: %w", err)
		}
	}
	file := filepath.Join(dir, AdminKubeconfigName)
	if old, err := clientcmd.LoadFromFile(file); err == nil && old.Clusters["concord"] != nil && old.Clusters["concord"].Server != url {
		file = filepath.Join(dir, fmt.Sprintf("admin-%d.kubeconfig", port))
	}
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return "", err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return "", err
	}
	cluster, err := a.trusting(given, host)
	if err != nil {
		return "", err
	}
	cluster.Server = url
	config := clientcmdapi.NewConfig()
	config.Clusters["concord"] = cluster
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["concord"] = &clientcmdapi.Context{Cluster: "concord", AuthInfo: "admin"}
	config.CurrentContext = "concord"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	return file, nil
}

// trusting returns a kubeconfig's cluster that trusts this CA and the serving certificate in
// the file given, if any. Where that is not for the host, it is asked for by a name it has.
func (a *authority) trusting(given, host string) (*clientcmdapi.Cluster, error) {
	cluster := &clientcmdapi.Cluster{CertificateAuthorityData: a.pem}
	if given == "" {
		return cluster, nil
	}
	raw, err := os.ReadFile(given)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	certs, err := certutil.ParseCertsPEM(raw)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file %s: %w", given, err)
	}
	cluster.CertificateAuthorityData = slices.Concat(a.pem, raw)
	if certs[0].VerifyHostname(host) != nil && len(certs[0].DNSNames) > 0 {
		cluster.TLSServerName = certs[0].DNSNames[0]
	}
	return cluster, nil
}
