package kube_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/access"
	"github.com/concord-dev/concord/join/roles"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

// auditFlags make a server log every request in audit.log, and refuse owner references to objects that the user may not
// change.
func (c *control) auditFlags() []string {
	policy := c.write("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n")
	return []string{"--audit-policy-file=" + policy, "--audit-log-path=" + filepath.Join(c.Dir, "audit.log"), "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"}
}

// actInRoles makes all controllers of a server with an audit log do something, and reads in the log what each did: no request
// of theirs is refused, and each of their permissions is used.
func actInRoles(t *testing.T, c *control, s *apiserver) {
	s.createWidgets(3)
	s.migrated(time.Minute)
	s.flip("v2")
	s.changeCRD(true, func(crd *apiextensionsv1.CustomResourceDefinition) { // kube-controller-manager does this, too
		apihelpers.SetCRDCondition(crd, apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionTrue, Reason: "Migrating", Message: "Migration mirrored is running",
		})
	})
	s.upstream("mirrored")
	s.done(time.Minute, "mirrored")
	s.storedVersions(time.Minute, "v2")
	s.migrateThroughAPI("through-api")

	file, err := os.Open(filepath.Join(c.Dir, "audit.log"))
	must(t, err)
	defer func() { _ = file.Close() }()
	wrote, unused := map[string]sets.Set[string]{}, s.rules()
	lines := bufio.NewScanner(file)
	for lines.Buffer(nil, 1<<20); lines.Scan(); {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // the last line is not complete yet
		}
		who := actor(&e)
		if strings.Contains(who, ":concord-") && e.ResponseStatus != nil && e.ResponseStatus.Code == 403 {
			t.Errorf("%s may not %s %s: %s", who, e.Verb, e.RequestURI, e.ResponseStatus.Message)
		}
		if e.ObjectRef == nil {
			continue
		}
		unused[who] = slices.DeleteFunc(unused[who], func(r rule) bool { return r.allows(&e) })
		if !slices.Contains([]string{"get", "list", "watch"}, e.Verb) {
			if wrote[e.ObjectRef.Resource] == nil {
				wrote[e.ObjectRef.Resource] = sets.New[string]()
			}
			wrote[e.ObjectRef.Resource].Insert(strings.TrimPrefix(who, "system:serviceaccount:kube-system:"))
		}
	}
	for resource, want := range map[string]sets.Set[string]{
		"storagestates": sets.New("concord-trigger"),
		// Users may create migrations, too.
		"storageversionmigrations": sets.New("admin", "concord-trigger", "concord-migrator", "concord-mirror"),
		// Servers write their own reports; the collector drops those of servers that are gone.
		"storageversions": sets.New("system:apiserver", "concord-collector"),
		"clusterversions": sets.New("concord-skew"),
	} {
		if !wrote[resource].Equal(want) {
			t.Errorf("%s are written by %v, want %v", resource, sets.List(wrote[resource]), sets.List(want))
		}
	}
	for who, rules := range unused {
		for _, r := range rules {
			if !slices.Contains(seldom, strings.TrimPrefix(who, "system:serviceaccount:kube-system:concord-")+" "+strings.Join(r.Resources, ",")) {
				t.Errorf("%s does not use its rule for %v in namespace %q", who, r.Resources, r.namespace)
			}
		}
	}
}

// rolesAgain deletes the roles and bindings of all controllers, as a clean-up may that takes them for leftovers: the server
// makes them again, and migrates.
func rolesAgain(t *testing.T, s *apiserver) {
	rbac, ctx := s.Kube().RbacV1(), t.Context()
	for _, r := range roles.All {
		name := "concord:" + r.Name
		err := errors.Join(client.IgnoreNotFound(rbac.ClusterRoles().Delete(ctx, name, metav1.DeleteOptions{})),
			client.IgnoreNotFound(rbac.ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{})))
		for _, namespace := range []string{metav1.NamespaceSystem, metav1.NamespaceDefault} {
			err = errors.Join(err, client.IgnoreNotFound(rbac.Roles(namespace).Delete(ctx, name, metav1.DeleteOptions{})),
				client.IgnoreNotFound(rbac.RoleBindings(namespace).Delete(ctx, name, metav1.DeleteOptions{})))
		}
		must(t, err)
	}
	s.flip("v1")
	s.storedVersions(2*time.Minute, "v1")
	eventually(t, 2*time.Minute, "all controllers may do their work", func(ctx context.Context) error {
		for _, r := range roles.All {
			if err := r.Granted(ctx, s.Kube()); err != nil {
				return fmt.Errorf("%s: %w", r.User(), err)
			}
		}
		return nil
	})
}

// seldom are permissions that this test does not use.
var seldom = []string{
	// They are for failures and for different versions of servers.
	"trigger events", "trigger storageversionmigrations/status", "migrator events", "skew events",
	// It is for resources without a store.
	"migrator apiservices",
}

// actor returns the user as which a request was answered.
func actor(e *auditv1.Event) string {
	if e.ImpersonatedUser != nil {
		return e.ImpersonatedUser.Username
	}
	return e.User.Username
}

// rule is a permission of a controller, and the namespace of it.
type rule struct {
	rbacv1.PolicyRule
	namespace string // empty for all namespaces
}

func (r rule) allows(e *auditv1.Event) bool {
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	has := func(some []string, one string) bool { return slices.Contains(some, one) || slices.Contains(some, "*") }
	return has(r.Verbs, e.Verb) && has(r.APIGroups, e.ObjectRef.APIGroup) && has(r.Resources, resource) && (r.namespace == "" || r.namespace == e.ObjectRef.Namespace) &&
		(len(r.ResourceNames) == 0 || slices.Contains(r.ResourceNames, e.ObjectRef.Name))
}

// rules returns the permissions of each of our controllers, by user.
func (s *apiserver) rules() map[string][]rule {
	s.t.Helper()
	found, ctx := map[string][]rule{}, s.t.Context()
	add := func(name, namespace string, rules []rbacv1.PolicyRule) {
		for _, r := range roles.All {
			if name == "concord:"+r.Name {
				for i := range rules {
					found[r.User()] = append(found[r.User()], rule{rules[i], namespace})
				}
			}
		}
	}
	anywhere, err := s.Kube().RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	must(s.t, err)
	for i := range anywhere.Items {
		add(anywhere.Items[i].Name, "", anywhere.Items[i].Rules)
	}
	local, err := s.Kube().RbacV1().Roles(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	must(s.t, err)
	for i := range local.Items {
		add(local.Items[i].Name, local.Items[i].Namespace, local.Items[i].Rules)
	}
	if len(found) != len(roles.All) {
		s.t.Fatalf("only %v have roles", slices.Sorted(maps.Keys(found)))
	}
	return found
}

// migrateThroughAPI migrates the ConfigMaps by patches, with the engine API.
func (s *apiserver) migrateThroughAPI(name string) {
	s.t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Engine: migrationv1alpha1.EngineAPI,
	}}
	m.Name = name
	must(s.t, s.Objects().Create(s.t.Context(), m))
	eventually(s.t, time.Minute, name+" succeeds", func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) == nil {
			return fmt.Errorf("it says %v", m.Status.Conditions)
		}
		return nil
	})
}

// TestPermissions compares all users' permissions on the objects of the protocol with testdata/permissions.txt. With
// CONCORD_UPDATE=1 it writes that file.
func TestPermissions(t *testing.T) {
	t.Parallel()
	c := newControl(t)
	s := c.ready(ours, "one")
	s.migrated(time.Minute) // then the controllers' roles exist
	access.Check(t, s.Kube(), filepath.Join("testdata", "permissions.txt"))
	t.Run("Requests", func(t *testing.T) { requestsAreRefused(t, s) })
}

// requestsAreRefused sends some requests, most of which the table says are refused.
func requestsAreRefused(t *testing.T, s *apiserver) {
	for token, want := range map[string]int{"": http.StatusForbidden, strangerToken: http.StatusForbidden, "wrong": http.StatusUnauthorized, adminToken: http.StatusOK} {
		for _, path := range []string{
			"/apis/internal.apiserver.k8s.io/v1alpha1/storageversions", "/apis/migration.k8s.io/v1alpha1/storagestates",
			"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "/concord/census/configmaps", "/metrics",
		} {
			status, body, err := testbed.Get(t.Context(), s.as(token), path, nil)
			if err != nil || status != want {
				t.Errorf("token %q, %s: %d, want %d, error %v: %.200s", token, path, status, want, err, body)
			}
		}
	}
}

// testEgress: an etcd that can be reached only through the egress selector's proxy is reached by the server's storage, the
// fence and its checks.
func testEgress(t *testing.T) {
	c := newControl(t)
	const known = "etcd.example:2379"
	proxy := c.Path("proxy.sock")
	connectProxy(t, proxy, known, strings.TrimPrefix(c.Raw.Endpoints()[0], "http://"))
	c.etcd = []string{"--etcd-servers=http://" + known, "--egress-selector-config-file=" + c.write("egress.yaml", `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: etcd
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: `+proxy+`}}}
`)}
	s := c.ready(ours, "egress")
	s.agreed(time.Minute, 1)
	s.migrated(time.Minute)
	s.end()
}

// connectProxy is an HTTP CONNECT proxy on a Unix socket. It connects the name known to an address, and refuses others.
func connectProxy(t *testing.T, socket, known, address string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != known {
			t.Errorf("the proxy was asked to %s %s", r.Method, r.Host)
			http.Error(w, "no way there", http.StatusForbidden)
			return
		}
		out, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = out.Close() }()
		in, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(out, buffered)
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
		_ = in.Close()
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}
