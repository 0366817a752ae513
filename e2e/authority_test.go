package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	"github.com/concord-dev/concord/e2e/cluster"
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

// A server that has a CA of its own on another's etcd says so, naming both.
func TestAnotherCA(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	first := c.Start(cluster.Options{}, "one")[0]
	var published *corev1.ConfigMap
	cluster.Eventually(t, 30*time.Second, "the CA is published", func(ctx context.Context) (err error) {
		published, err = first.Kube().CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err
	})
	if ca := first.Config().CAData; len(ca) == 0 || published.Data["client-ca-file"] != string(ca) {
		t.Errorf("the published CA is %v", published.Data)
	}
	first.Terminate()
	const warning = "THIS SERVER HAS ANOTHER CA THAN THE CLUSTER"
	other := c.NewServer("other", cluster.Options{Args: "--cert-dir " + filepath.Join(c.Dir, "other-pki")})
	same := c.NewServer("same", cluster.Options{})
	other.Start()
	same.Start()
	same.WaitReady()
	cluster.Eventually(t, time.Minute, "the server warns", func(context.Context) error {
		for _, want := range []string{warning, filepath.Join(c.Dir, "other-pki", "ca.crt"), "kube-system/extension-apiserver-authentication", "--cert-dir"} {
			if !strings.Contains(other.Output(), want) {
				return fmt.Errorf("it does not say %q", want)
			}
		}
		return nil
	})
	if strings.Contains(same.Output(), warning) {
		t.Error("a server with the cluster's CA warns too")
	}
	other.Terminate()
	same.Terminate()
}
