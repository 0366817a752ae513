package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A server may be given certificates of a public key infrastructure that is not Concord's,
// and has the generic server's audit log.
func TestGivenCertificates(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	pki := cluster.NewAuthority(t, "company-ca")
	files := pki.Files("serving")
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	s := c.Start(cluster.Options{Args: strings.Join([]string{
		"--tls-cert-file", files.Cert, "--tls-private-key-file", files.Key, "--client-ca-file", files.CA,
		"--audit-policy-file", policy, "--audit-log-path", log,
	}, " ")}, "one")[0] // which takes that Concord's own kubeconfig works

	config := rest.AnonymousClientConfig(s.Config())
	config.CAData = cluster.EncodePEM(pki.Cert.Raw)
	config.CertData, config.KeyData = pki.Issue("alice", "system:masters")
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
	cluster.Eventually(t, time.Minute, "the audit log has the write", func(context.Context) error {
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
func testSharedDirectory(t *testing.T) {
	c := cluster.NewEmbedded(t)
	c.CertDir = filepath.Join(c.Dir, "one")
	c.Start(cluster.Options{}, "one")[0].Terminate()
}
