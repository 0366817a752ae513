package e2e

import (
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
	"path/filepath"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// authority is a CA that signs certificates for tests.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	key := newKey(t)
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: cert, key: key}
}

// loadAuthority returns the CA of a cluster's certificate directory.
func loadAuthority(t *testing.T, dir string) *authority {
	t.Helper()
	certs, err := certutil.CertsFromFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := keyutil.PrivateKeyFromFile(filepath.Join(dir, "ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	return &authority{t: t, cert: certs[0], key: key.(crypto.Signer)}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// issue returns a certificate for 127.0.0.1, for clients and servers, and its key.
func (a *authority) issue(name string, groups ...string) (certPEM, keyPEM []byte) {
	a.t.Helper()
	key := newKey(a.t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.ParseIP("127.0.0.1")},
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		a.t.Fatal(err)
	}
	return encodePEM(der), keyPEM
}

func encodePEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}

// pairFiles are files with a certificate, its key and the CA that signed it.
type pairFiles struct{ ca, cert, key string }

// files issues a certificate into a directory.
func (a *authority) files(name string) pairFiles {
	a.t.Helper()
	dir := a.t.TempDir()
	f := pairFiles{ca: filepath.Join(dir, "ca.crt"), cert: filepath.Join(dir, "tls.crt"), key: filepath.Join(dir, "tls.key")}
	cert, key := a.issue(name)
	for file, content := range map[string][]byte{f.ca: encodePEM(a.cert.Raw), f.cert: cert, f.key: key} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return f
}
