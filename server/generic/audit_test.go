package generic_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/concord-dev/concord/server/generic"
)

// Each controller acts as its own service account, and none of their requests is refused.
func TestControllersIdentities(t *testing.T) {
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.log")
	mustDo(t, os.WriteFile(policy, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}`), 0o600))
	s := startFor(t, func(o *generic.Options) {
		o.DataDir = filepath.Join(dir, "data")
		o.ControlPlane.Audit.PolicyFile, o.ControlPlane.Audit.LogOptions.Path = policy, log
	})
	ns := s.namespace(t)
	mustDo(t, s.kube.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	eventually(t, "the deletion", func(ctx context.Context) error {
		_, err := s.kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		return gone(err)
	})
	eventually(t, "the audit log", func(context.Context) error {
		did := map[string][]string{}
		for _, e := range readAudit(t, log) {
			if e.ImpersonatedUser == nil {
				continue
			}
			if e.Annotations["authorization.k8s.io/decision"] == "forbid" {
				t.Fatalf("%s was refused %s %s", e.ImpersonatedUser.Username, e.Verb, e.RequestURI)
			}
			if r := e.ObjectRef; r != nil {
				did[e.ImpersonatedUser.Username] = append(did[e.ImpersonatedUser.Username], e.Verb+" "+r.Resource+"/"+r.Subresource)
			}
		}
		for who, what := range map[string]string{
			"service-account-controller": "create serviceaccounts/", "root-ca-cert-publisher": "create configmaps/",
			"namespace-controller": "update namespaces/finalize", "clusterrole-aggregation-controller": "patch clusterroles/",
		} {
			if user := "system:serviceaccount:kube-system:" + who; !slices.Contains(did[user], what) {
				return fmt.Errorf("%s did not %s, but %v", user, what, did[user])
			}
		}
		return nil
	})
}

func readAudit(t *testing.T, file string) (events []auditv1.Event) {
	t.Helper()
	f := must[*os.File](t)(os.Open(file))
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e auditv1.Event
		if json.Unmarshal(lines.Bytes(), &e) == nil {
			events = append(events, e)
		}
	}
	return events
}
