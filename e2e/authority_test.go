package e2e

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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

// issue returns a certificate for 127.0.0.1 and the name, for clients and servers, and its key.
func (a *authority) issue(name string, groups ...string) (certPEM, keyPEM []byte) {
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

// A server may be given certificates of a public key infrastructure that is not Concord's,
// and has the generic server's audit log.
func TestGivenCertificates(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	pki := newAuthority(t, "company-ca")
	files := pki.files("serving")
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := c.Start(cluster.Options{Args: strings.Join([]string{
		"--tls-cert-file", files.cert, "--tls-private-key-file", files.key, "--client-ca-file", files.ca,
		"--audit-policy-file", policy, "--audit-log-path", log,
	}, " ")}, "one")[0] // which takes that Concord's own kubeconfig works

	config := rest.AnonymousClientConfig(s.Config())
	config.CAData = encodePEM(pki.cert.Raw)
	config.CertData, config.KeyData = pki.issue("alice", "system:masters")
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "audited"}, Data: map[string][]byte{"key": []byte("not to be told")}}
	err = attempt(t, "alice writes", func(ctx context.Context) error {
		_, err := client.CoreV1().Secrets("default").Create(ctx, secret, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, 30*time.Second, "the audit log has the write", func(context.Context) error {
		raw, err := os.ReadFile(log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(raw)) {
			var event struct {
				Level, Stage, Verb string
				User               struct{ Username string }
				ObjectRef          struct{ Resource, Name string }
				RequestObject      any
			}
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				return err
			}
			if event.User.Username == "alice" && event.Verb == "create" && event.ObjectRef.Resource == "secrets" && event.ObjectRef.Name == "audited" {
				if event.Level != "Metadata" || event.RequestObject != nil {
					t.Errorf("the policy wants metadata alone: %s", line)
				}
				return nil
			}
		}
		return fmt.Errorf("it is %s", raw)
	})
	c.Check()
	s.Terminate()
}

const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, resources: [{group: "", resources: [secrets]}]}
- {level: None}
`

// The certificates may be in the data directory itself.
func TestSharedDirectory(t *testing.T) {
	t.Parallel()
	c := cluster.NewEmbedded(t)
	c.CertDir = filepath.Join(c.Dir, "one")
	c.Start(cluster.Options{}, "one")[0].Terminate()
}
