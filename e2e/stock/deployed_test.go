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
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
)

const deployed = "../../deploy/install/controllers-and-guards.yaml"

// seldom are rules that this test does not need, since the cases that they are for do not happen in it.
var seldom = []string{
	"storageversionmigrations/status", // nobody makes a migration of storagemigration.k8s.io
	"storageversions",                 // stock kube-apiservers do not serve them, as discovery shows
}

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

// TestDeployedPermissions runs the controllers with a token of the manifests' ServiceAccount, and with
// the guards: a whole migration with pruning requests nothing that is not allowed, and needs every rule.
func TestDeployedPermissions(t *testing.T) {
	t.Parallel()
	const objects = 50
	c := beside.New(t, itself.Programs)
	log := filepath.Join(c.Dir, "audit.log")
	a := c.APIServer("a", "--audit-log-path="+log,
		"--audit-policy-file="+c.Write("audit.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n- level: Metadata\n"))
	installed, err := beside.Manifests(deployed)
	must(t, err)
	a.Install(installed)
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	config := itself.Quick()
	config.LeaderElect, config.ElectionNamespace, config.InstallDefinitions, config.CleanFields = true, beside.DeployedNamespace, false, true
	config.Address = cluster.FreeAddress(t)
	a.ControllersAs("controllers", a.DeployedToken(), config)
	w.AwaitStored(beside.V1, beside.V1)
	w.Store("v2")
	w.AwaitStored(beside.V2, beside.V2)
	w.AwaitPruned(objects)
	beside.Eventually(t, beside.Patience, "the metrics that alerts are made of are shown", func(ctx context.Context) error {
		return shows(ctx, "http://"+config.Address+"/metrics",
			`concord_storage_agreed{resource="widgets.example.com"} 1`, `concord_storage_encodings{resource="widgets.example.com"} 1`, `concord_server_lease_renewed_timestamp_seconds{lease="apiserver-`)
	})

	all := permissions(t, installed)
	asked := 0
	file, err := os.Open(log)
	must(t, err)
	defer func() { _ = file.Close() }()
	var incomplete error
	lines := bufio.NewScanner(file)
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
		asked++
		if e.ResponseStatus != nil && (e.ResponseStatus.Code == 401 || e.ResponseStatus.Code == 403) {
			t.Errorf("%s %s is refused: %s", e.Verb, e.RequestURI, e.ResponseStatus.Message)
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
	if asked == 0 {
		t.Error("nothing was asked as the ServiceAccount")
	}
	for _, p := range all {
		if expected := !slices.Contains(seldom, strings.Join(p.Resources, ",")); p.used != expected {
			t.Errorf("used %t, expected %t: the rule for %v in namespace %q", p.used, expected, p.Resources, p.namespace)
		}
	}
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
