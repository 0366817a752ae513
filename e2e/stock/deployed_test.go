package stock_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/concord-dev/concord/e2e/beside"
)

const deployed = "../../deploy/install/controllers-and-guards.yaml"

// permission is a rule of the manifests, with the namespace in which it holds.
type permission struct {
	rbacv1.PolicyRule
	namespace string // empty: everywhere
	used      bool
}

func permissions(t *testing.T, objects []*unstructured.Unstructured) (all []*permission) {
	t.Helper()
	for _, object := range objects {
		if kind := object.GetKind(); kind != "ClusterRole" && kind != "Role" || object.GetLabels()["rbac.authorization.k8s.io/aggregate-to-view"] != "" {
			continue // no role, or one for people
		}
		var role rbacv1.Role // a ClusterRole has the same rules
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role))
		for _, rule := range role.Rules {
			all = append(all, &permission{PolicyRule: rule, namespace: role.Namespace})
		}
	}
	return all
}

// allows says whether the rule names the resource and the verb of a request. A rule for everything names none.
func (p *permission) allows(e *auditv1.Event) bool {
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return (p.namespace == "" || p.namespace == e.ObjectRef.Namespace) && slices.Contains(p.APIGroups, e.ObjectRef.APIGroup) &&
		slices.Contains(p.Resources, resource) && slices.Contains(p.Verbs, e.Verb) &&
		(len(p.ResourceNames) == 0 || slices.Contains(p.ResourceNames, e.ObjectRef.Name))
}

// audited are the flags with which a kube-apiserver writes an audit log, and the log's path.
func audited(c *beside.Cluster) (flags []string, log string) {
	log = c.Path("audit.log")
	return []string{"--audit-log-path=" + log, "--audit-policy-file=" + c.Write("audit.yaml",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n")}, log
}

// testDeployedPermissions: the controllers have a token of the manifests' ServiceAccount, and the guards are there. In
// a whole migration with pruning, and one of Kubernetes' own API, they request nothing that is not allowed, and need
// every rule. The latter is done, and its status says so. metrics is the address of their metrics.
func testDeployedPermissions(t *testing.T, a *beside.APIServer, installed []*unstructured.Unstructured, log, metrics string) {
	const objects = 50
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	w.Store("v2")
	w.AwaitStored(beside.V2, beside.V2)
	w.AwaitPruned(objects)
	beside.Eventually(t, beside.Patience, "the metrics that alerts are made of are shown", func(ctx context.Context) error {
		return shows(ctx, "http://"+metrics+"/metrics",
			`concord_storage_agreed{resource="widgets.example.com"} 1`, `concord_storage_encodings{resource="widgets.example.com"} 1`, `concord_server_lease_renewed_timestamp_seconds{lease="apiserver-`)
	})
	mirrored(t, w)
	allowed(t, permissions(t, installed), log)
}

// mirrored makes a migration of Kubernetes' own API, and waits until its status says that it has succeeded.
func mirrored(t *testing.T, w *beside.Widgets) {
	t.Helper()
	migrations := w.Server.Kube().StoragemigrationV1().StorageVersionMigrations()
	_, err := migrations.Create(t.Context(), &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: beside.Group, Resource: w.Plural}},
	}, metav1.CreateOptions{})
	must(t, err)
	beside.Eventually(t, beside.Patience, "it succeeds", func(ctx context.Context) error {
		m, err := migrations.Get(ctx, "mine", metav1.GetOptions{})
		if err == nil && !meta.IsStatusConditionTrue(m.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)) {
			err = fmt.Errorf("its status is %+v", m.Status)
		}
		return err
	})
}

// allowed waits until, according to the audit log, the ServiceAccount has used all rules, and checks that
// nothing that it asked for was refused. A request may have its effect before it is in the log.
func allowed(t *testing.T, all []*permission, log string) {
	t.Helper()
	beside.Eventually(t, beside.Patience, "every rule is used", func(context.Context) (err error) {
		file, opened := os.Open(log)
		must(t, opened)
		defer func() { _ = file.Close() }()
		use(t, all, file)
		for _, p := range all {
			if !p.used {
				err = errors.Join(err, fmt.Errorf("the rule for %v in namespace %q is not used", p.Resources, p.namespace))
			}
		}
		return err
	})
}

// use marks the permissions that the requests in an audit log need.
func use(t *testing.T, all []*permission, log io.Reader) {
	t.Helper()
	var incomplete error
	lines := bufio.NewScanner(log)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var e auditv1.Event
		if incomplete != nil {
			t.Fatalf("the audit log has a line that is none, before its end: %v", incomplete)
		}
		if incomplete = json.Unmarshal(lines.Bytes(), &e); incomplete != nil {
			continue // the last line may be written at the moment
		}
		if e.User.Username != beside.DeployedUser {
			continue
		}
		if e.ResponseStatus != nil && (e.ResponseStatus.Code == 401 || e.ResponseStatus.Code == 403) {
			t.Fatalf("%s %s is refused: %s", e.Verb, e.RequestURI, e.ResponseStatus.Message)
		}
		if e.ObjectRef == nil {
			continue
		}
		for _, p := range all {
			if slices.Contains(p.Resources, "*") {
				p.used = p.used || e.ObjectRef.APIGroup == beside.Group && e.Verb == "patch"
			} else {
				p.used = p.used || p.allows(&e)
			}
		}
	}
	must(t, lines.Err())
}

// shows returns an error that says which of the texts a page does not have.
func shows(ctx context.Context, url string, texts ...string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	page, err := io.ReadAll(response.Body)
	for _, text := range texts {
		if !strings.Contains(string(page), text) {
			err = errors.Join(err, fmt.Errorf("%s has no %s", url, text))
		}
	}
	return err
}
