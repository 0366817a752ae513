package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

const (
	caCertName = "ca.crt"
	caKeyName  = "ca.key"
	// AdminKubeconfigName is the administrator's kubeconfig in the certificate directory.
	AdminKubeconfigName = "admin.kubeconfig"

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
}

// ensureCertificates makes what is missing in dir: the cluster's CA, this server's
// serving certificate and an administrator's kubeconfig for it. Servers that share dir
// may do so at the same time.
func ensureCertificates(dir string, bind net.IP, port int) (*certificates, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--cert-dir: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	ca, err := ensureCA(dir)
	if err != nil {
		return nil, err
	}
	c := &certificates{
		caFile:   filepath.Join(dir, caCertName),
		certFile: filepath.Join(dir, fmt.Sprintf("server-%d.crt", port)),
		keyFile:  filepath.Join(dir, fmt.Sprintf("server-%d.key", port)),
	}
	if err := ca.ensureServing(c, bind); err != nil {
		return nil, err
	}
	if c.adminKubeconfig, err = ca.ensureAdmin(dir, bind, port); err != nil {
		return nil, err
	}
	return c, nil
}

type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

func ensureCA(dir string) (*authority, error) {
	certFile, keyFile := filepath.Join(dir, caCertName), filepath.Join(dir, caKeyName)
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	if errors.Is(certErr, os.ErrNotExist) && errors.Is(keyErr, os.ErrNotExist) {
		if err := makeCA(certFile, keyFile); err != nil {
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

func makeCA(certFile, keyFile string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: "concord-ca"}, key)
	if err != nil {
		return err
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := keyutil.WriteKey(keyFile, keyPEM); err != nil {
		return err
	}
	return certutil.WriteCert(certFile, encodeCert(cert.Raw))
}

// ensureServing writes a serving certificate unless a valid one of this CA is there.
func (a *authority) ensureServing(c *certificates, bind net.IP) error {
	ips := []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("::1")}
	if bind != nil && !bind.IsUnspecified() && !bind.IsLoopback() {
		ips = append(ips, bind)
	}
	if certs, err := certutil.CertsFromFile(c.certFile); err == nil && a.stillGood(certs[0]) {
		if _, err := keyutil.PrivateKeyFromFile(c.keyFile); err == nil {
			return nil
		}
	}
	return a.issue(c.certFile, c.keyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "concord-server"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: ips,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

func (a *authority) stillGood(cert *x509.Certificate) bool {
	return cert.CheckSignatureFrom(a.cert) == nil && time.Until(cert.NotAfter) > certLifetime/12
}

func (a *authority) issue(certFile, keyFile string, template *x509.Certificate) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
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
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	if err := keyutil.WriteKey(keyFile, keyPEM); err != nil {
		return err
	}
	return certutil.WriteCert(certFile, encodeCert(der))
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}

// ensureAdmin writes a kubeconfig of a member of system:masters for the server at port.
// The first server's is admin.kubeconfig; a further server on the same directory writes
// admin-<port>.kubeconfig beside it.
func (a *authority) ensureAdmin(dir string, bind net.IP, port int) (string, error) {
	host := "127.0.0.1"
	if bind != nil && !bind.IsUnspecified() {
		host = bind.String()
	}
	url := "https://" + net.JoinHostPort(host, fmt.Sprint(port))
	certFile, keyFile := filepath.Join(dir, "admin.crt"), filepath.Join(dir, "admin.key")
	if certs, err := certutil.CertsFromFile(certFile); err != nil || !a.stillGood(certs[0]) {
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
	config := clientcmdapi.NewConfig()
	config.Clusters["concord"] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: a.pem}
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["concord"] = &clientcmdapi.Context{Cluster: "concord", AuthInfo: "admin"}
	config.CurrentContext = "concord"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	return file, nil
}
