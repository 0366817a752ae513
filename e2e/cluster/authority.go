package cluster

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// Authority is a CA that signs certificates for tests.
type Authority struct {
	t    testing.TB
	Cert *x509.Certificate
	key  crypto.Signer
}

// NewAuthority makes a CA.
func NewAuthority(t testing.TB, name string) *Authority {
	t.Helper()
	key := newKey(t)
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t: t, Cert: cert, key: key}
}

// LoadAuthority returns the CA of a cluster's certificate directory.
func LoadAuthority(t testing.TB, dir string) *Authority {
	t.Helper()
	certs, err := certutil.CertsFromFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &Authority{t: t, Cert: certs[0], key: key.(crypto.Signer)}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// Issue returns a certificate for 127.0.0.1 and the name, for clients and servers, and its key.
func (a *Authority) Issue(name string, groups ...string) (certPEM, keyPEM []byte) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1")},
		DNSNames:     []string{name},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		a.t.Fatal(err)
	}
	return EncodePEM(der), keyPEM
}

// EncodePEM returns a certificate in PEM, as it is in files.
func EncodePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}

// Pair are files with a certificate, its key and the CA that signed it.
type Pair struct{ CA, Cert, Key string }

// Files issues a certificate for a name and writes it into a new directory.
func (a *Authority) Files(name string) Pair {
	a.t.Helper()
	dir := a.t.TempDir()
	f := Pair{CA: filepath.Join(dir, "ca.crt"), Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	cert, key := a.Issue(name)
	for file, content := range map[string][]byte{f.CA: EncodePEM(a.Cert.Raw), f.Cert: cert, f.Key: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}

// StartTLSEtcd starts an etcd that accepts only clients with certificates of its CA.
func StartTLSEtcd(t testing.TB, tls Pair) (endpoint string) {
	t.Helper()
	client, dir := "https://"+FreeAddress(t), t.TempDir()
	flags := append(testbed.EtcdFlags(filepath.Join(dir, "etcd"), client, "http://"+FreeAddress(t)), noFsync,
		"--client-cert-auth", "--trusted-ca-file="+tls.CA, "--cert-file="+tls.Cert, "--key-file="+tls.Key)
	NewProcess(t, "etcd-tls", dir, func() *exec.Cmd { return process.Self(EtcdProgram, flags...) }).Start()
	Eventually(t, etcdStartTimeout, "etcd listens", func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(client, "https://"))
		if err != nil {
			return err
		}
		return connection.Close()
	})
	return client
}
