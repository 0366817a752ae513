package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/load"
)

// TestDamagedStorageVersion: a StorageVersion that does not decode stops the writes of its resource,
// while the server runs and when it starts, and those of no other resource. Errors name its key and the
// command that repairs this, and the command is enough.
func TestDamagedStorageVersion(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	const key = "/registry/storageversions/core.configmaps"
	wayOut := "etcdctl del " + key
	post := func(path, kind, name string) answer {
		return send(t.Context(), s.Config(), http.MethodPost, path, named("v1", kind, name))
	}
	const services = "/api/v1/namespaces/default/serviceaccounts"
	for i, again := range []func(){func() {}, s.Terminate} {
		if _, err := c.Raw.Put(t.Context(), key, "garbage"); err != nil {
			t.Fatal(err)
		}
		if again(); i > 0 {
			s.Start()
		}
		cluster.Eventually(t, 3*time.Minute, "other resources are written, this one is not", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("refused-", i)); a.status != http.StatusServiceUnavailable || a.retryAfter == "" || !strings.Contains(a.body, wayOut) {
				return errors.New("this one: " + a.String())
			}
			if a := post(services, "ServiceAccount", fmt.Sprint("written-", i)); a.status != http.StatusCreated && a.status != http.StatusConflict {
				return errors.New("another one: " + a.String())
			}
			if _, body, err := s.Get(t.Context(), "/readyz/storage-versions"); err != nil || !strings.Contains(body, wayOut) {
				return fmt.Errorf("readyz: %s %w", body, err)
			}
			if !strings.Contains(s.Output(), wayOut) {
				return errors.New("the log does not name it")
			}
			return nil
		})
		if _, err := c.Raw.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		s.WaitReady()
		cluster.Eventually(t, time.Minute, "the resource is written again", func(context.Context) error {
			if a := post(configMapsPath, "ConfigMap", fmt.Sprint("written-", i)); a.status != http.StatusCreated && a.status != http.StatusConflict { // an earlier try may have written it
				return errors.New(a.String())
			}
			return nil
		})
	}
}

// TestDamagedValue: a value of a built-in resource that does not decode is named by everything that meets it:
// lists with and without a limit, a read of it, the census, preflight, and a server that starts. All other objects
// can be read and written, and the damaged one can be deleted in the way that Kubernetes has for such objects.
func TestDamagedValue(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	const key = "/registry/configmaps/default/damaged"
	call := func(method, path, body string) answer { return send(t.Context(), s.Config(), method, path, body) }
	for _, name := range []string{"damaged", "whole"} {
		if a := call(http.MethodPost, configMapsPath, named("v1", "ConfigMap", name)); a.status != http.StatusCreated {
			t.Fatal(a)
		}
	}
	whole, err := c.Raw.Get(t.Context(), key)
	if err != nil || len(whole.Kvs) != 1 {
		t.Fatalf("read %s: %v", key, err)
	}
	value := whole.Kvs[0].Value
	if _, err := c.Raw.Put(t.Context(), key, string(value[:len(value)-20])); err != nil {
		t.Fatal(err)
	}

	refused := func(a answer, naming ...string) error {
		for _, part := range append(naming, "default/damaged") {
			if a.status != http.StatusInternalServerError || !strings.Contains(a.body, part) {
				return errors.New(a.String())
			}
		}
		return nil
	}
	unreadable := string(metav1.StatusReasonStoreReadError)
	for i, again := range []func(){func() {}, func() { s.Terminate(); s.Start() }} {
		again()
		cluster.Eventually(t, 2*time.Minute, "it is named, and others are served", func(context.Context) error {
			written := call(http.MethodPost, configMapsPath, named("v1", "ConfigMap", fmt.Sprint("written-", i)))
			return errors.Join(
				refused(call(http.MethodGet, configMapsPath, ""), unreadable, key),
				refused(call(http.MethodGet, configMapsPath+"?limit=500", ""), unreadable, key),
				refused(call(http.MethodGet, configMapsPath+"/damaged", "")),
				is(http.StatusOK, call(http.MethodGet, configMapsPath+"/whole", "")),
				is(http.StatusCreated, written, http.StatusConflict),
			)
		})
	}
	if !strings.Contains(s.Output(), `"A stored value does not decode, so that lists of its resource fail"`) || !strings.Contains(s.Output(), key) {
		t.Error("the server that started does not name it")
	}
	census := cluster.Command(t, "census", "--verify", "--etcd-servers", c.Endpoint)
	if census.Code != 0 || !strings.Contains(census.Stdout, "values that do not decode: 1\n  \""+key+`": `) {
		t.Errorf("the census does not name it: exit %d: %s%s", census.Code, census.Stdout, census.Stderr)
	}
	for _, source := range sources(c) {
		if code, unsafe := preflight(t, append(source, "--to", "1.38")...); code != 1 || !strings.HasPrefix(unsafe["configmaps"], "unknown: 1 value is unreadable") {
			t.Errorf("preflight %v does not name it: exit %d: %v", source, code, unsafe)
		}
	}

	one := configMapsPath + "/damaged"
	if err := refused(call(http.MethodDelete, one, "")); err != nil {
		t.Errorf("an ordinary delete: %v", err)
	}
	const ignoring = `{"apiVersion":"v1","kind":"DeleteOptions","ignoreStoreReadErrorWithClusterBreakingPotential":true}`
	if err := is(http.StatusOK, call(http.MethodDelete, one, ignoring)); err != nil {
		t.Errorf("a delete that ignores what it cannot read: %v", err)
	}
	cluster.Eventually(t, time.Minute, "the resource is listed again", func(context.Context) error {
		return is(http.StatusOK, call(http.MethodGet, configMapsPath, ""))
	})
	s.WaitReady()
	if census := cluster.Command(t, "census", "--verify", "--etcd-servers", c.Endpoint); !strings.Contains(census.Stdout, "\nall others decode\n") || strings.Contains(census.Stdout, "do not decode") {
		t.Errorf("after it was deleted the census says: %s%s", census.Stdout, census.Stderr)
	}
	wrongKind(t, c)
}

// wrongKind: a server names a value of another kind than its resource has.
func wrongKind(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	namespace, err := c.Raw.Get(t.Context(), "/registry/namespaces/default")
	if err != nil || len(namespace.Kvs) != 1 {
		t.Fatalf("read a Namespace: %v", err)
	}
	if _, err := c.Raw.Put(t.Context(), "/registry/configmaps/default/wrong", string(namespace.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	if code, unsafe := preflight(t, append(sources(c)[0], "--to", "1.38")...); code != 1 || !strings.HasPrefix(unsafe["configmaps"], "unknown: 1 value is unreadable") {
		t.Errorf("preflight does not name a Namespace among ConfigMaps: exit %d: %v", code, unsafe)
	}
}

// is returns nil if the answer has one of these statuses, and otherwise an error with the answer.
func is(status int, a answer, others ...int) error {
	if a.status != status && !slices.Contains(others, a.status) {
		return errors.New(a.String())
	}
	return nil
}

// rawKey is the key in etcd of an object of a resource.
func rawKey(gr schema.GroupResource, namespace, name string) string {
	return storedsets.ResourcePrefix(storedsets.DefaultPrefix, gr, gr == widgets) + strings.TrimPrefix(namespace+"/", "/") + name
}

// invalidPolicy is a policy that a release without this validation could have stored: it is complete, but
// its expression does not compile.
const invalidPolicy = `{"apiVersion":"admissionregistration.k8s.io/v1beta1","kind":"MutatingAdmissionPolicy",
"metadata":{"name":%[1]q,"uid":%[1]q,"creationTimestamp":"2026-01-01T00:00:00Z","annotations":{"` + load.WriteAnnotation + `":"one/raw-%[1]s"}},
"spec":{"reinvocationPolicy":"Never","failurePolicy":"Fail","variables":[{"name":"x","expression":"this is ( not an expression"}],
"matchConstraints":{"matchPolicy":"Equivalent","namespaceSelector":{},"objectSelector":{},
"resourceRules":[{"apiGroups":["a.b.c"],"apiVersions":["*"],"operations":["CREATE"],"resources":["nothing"],"scope":"*"}]}}}`

// testInvalidObjects: objects that do not pass validation any more, or have fields that no schema knows
// any more, are migrated as they are: a migration neither validates nor prunes them.
func testInvalidObjects(t *testing.T) {
	const invalid = 50
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Emulation: "1.36"}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, engineObjects)
	fill(t, servers[0], load.Policies(), stored)
	for i := range invalid {
		name := fmt.Sprint("invalid-", i)
		if _, err := c.Raw.Put(t.Context(), rawKey(policies, "", name), fmt.Sprintf(invalidPolicy, name)); err != nil {
			t.Fatal(err)
		}
	}
	c.WaitSettled()
	hashes := func() (found map[string]string) {
		c.Ledger(func(l *audit.Ledger) {
			found = l.Hashes(widgets)
			maps.Copy(found, l.Hashes(policies))
		})
		return found
	}
	before := hashes()

	tightenWidgets(t, servers[0], "v2")
	for _, s := range servers {
		s.Restart(cluster.Options{})
	}
	t.Logf("settled after %v", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, widgets, widgetEncoding("v2"), engineObjects)
	wantEncoding(t, c, policies, policyV1, stored+invalid)
	if after := hashes(); !maps.Equal(before, after) {
		t.Errorf("%d objects have other contents than before the migration", differing(before, after))
	}
	for gvr, name := range map[schema.GroupVersionResource]string{widgets.WithVersion("v2"): "fill-0", policies.WithVersion("v1"): "invalid-0"} {
		resource := servers[0].Dynamic().Resource(gvr).Namespace("")
		if gvr.Resource == widgets.Resource {
			resource = servers[0].Dynamic().Resource(gvr).Namespace(metav1.NamespaceDefault)
		}
		patch := `{"spec":{"text":"changed","failurePolicy":"Ignore","variables":[{"name":"y","expression":"nor ( this"}]}}`
		if _, err := resource.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); !apierrors.IsInvalid(err) {
			t.Errorf("a change to %s %s: %v, want that it is invalid: else nothing was tested", gvr.Resource, name, err)
		}
	}
	c.Check()
}

func differing(a, b map[string]string) (n int) {
	for k, v := range a {
		if b[k] != v {
			n++
		}
	}
	return n
}

// tightenWidgets changes the storage version, and in the same update the schema: no widget is valid any
// more, and the schema has no field padding.
func tightenWidgets(t *testing.T, s *cluster.Server, storage string) {
	t.Helper()
	short := int64(3)
	if err := cluster.ChangeDefinition(t.Context(), s.Objects(), widgets.String(), func(crd *apiextensionsv1.CustomResourceDefinition) {
		cluster.Store(storage)(crd)
		for i := range crd.Spec.Versions {
			crd.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{
				Type:     "object",
				Required: []string{"text", "owner"},
				Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"text": {Type: "string", MaxLength: &short}, "owner": {Type: "string"},
				},
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// loggedFailures returns the names of a resource's objects of which the servers' logs say that they were not migrated.
func loggedFailures(servers []*cluster.Server, gr schema.GroupResource) sets.Set[string] {
	line := regexp.MustCompile(`"Object not migrated".* resource="` + regexp.QuoteMeta(gr.String()) + `".* name="([^"]*)"`)
	names := sets.New[string]()
	for _, s := range servers {
		for _, found := range line.FindAllStringSubmatch(s.Output(), -1) {
			names.Insert(found[1])
		}
	}
	return names
}

// testBrokenObjects: values that are no objects are counted, and the first hundred are named. All other
// objects are migrated, of built-in and custom resources, also when the server that does it is killed in
// the middle. The migration continues when the broken values are gone. (Resources that admission reads
// must not have broken values: kube-apiserver would not become ready.)
func testBrokenObjects(t *testing.T) {
	const broken = 130
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Emulation: "1.36", Args: betas}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, engineObjects)
	fill(t, servers[0], load.Bundles(certificate(t)), stored)
	c.WaitSettled()
	garbage := []string{
		"k8s\x00 this is not protobuf",
		"k8s\x00\x0a\x3c\x0a\x20admissionregistration.k8s.io/v1beta1", // cut off
		`{"apiVersion":"e2e.concord.dev/v9","kind":"Widget","metadata":{"name":"x"}}`,
		`{"apiVersion":"e2e.concord.dev/v1","kind":"Widget","metadata":{"na`,
		"\x00\x01\x02 noise", "", "{}",
	}
	var keys []string
	put := func(gr schema.GroupResource, namespace string, n int) {
		for i := range n {
			key := rawKey(gr, namespace, fmt.Sprintf("fill-%d-broken", i))
			keys = append(keys, key)
			c.Audit.With(func(l *audit.Ledger) { l.Ignore(key) })
			if _, err := c.Raw.Put(t.Context(), key, garbage[i%len(garbage)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(widgets, metav1.NamespaceDefault, broken)
	put(bundles, "", len(garbage))
	upgraded := atRate(300)
	upgraded.MinCompatibility, upgraded.Args = "1.37", upgraded.Args+" "+betas
	for _, s := range servers {
		s.Restart(upgraded)
	}
	storeWidgetsIn(t, servers[0], "v2")
	m := &migrating{t: t, c: c, servers: servers, resource: widgetsV1}
	m.awaitRewrites(engineObjects / 4)
	claimer := m.claimer()
	claimer.Kill()
	t.Logf("killed %s after %d rewrites", claimer.Name, m.rewrites())
	claimer.Start()
	claimer.WaitReady()

	for gr, n := range map[schema.GroupResource]int{widgets: broken, bundles: len(garbage)} {
		failed := waitFailedMigration(t, servers[0], gr, func(p migrationv1alpha1.MigrationProgress) bool { return int(p.Failed) == n })
		if named := len(failed.Status.Failures); named != min(n, migrationv1alpha1.MaxFailures) {
			t.Errorf("%d of %d broken objects of %s are named", named, n, gr)
		}
		for _, f := range failed.Status.Failures {
			if !strings.HasSuffix(f.Name, "-broken") || f.Message == "" {
				t.Errorf("a failure is %+v", f)
			}
		}
		if logged := loggedFailures(servers, gr); logged.Len() != n {
			t.Errorf("the logs name %d of %d broken objects of %s: %v", logged.Len(), n, gr, sets.List(logged))
		}
	}
	wantEncoding(t, c, widgets, widgetEncoding("v2"), engineObjects)
	wantEncoding(t, c, bundles, "certificates.k8s.io/v1", stored)
	for gr, encoding := range map[schema.GroupResource]string{widgets: string(widgetEncoding("v2")), bundles: "certificates.k8s.io/v1"} {
		if standing := c.Standing(gr); slices.Equal(standing.Stored(), []string{encoding}) {
			t.Errorf("the stored set of %s is %v though objects could not be migrated", gr, standing.Stored())
		}
	}
	if versions := c.Standing(widgets).StoredVersions(); !slices.Contains(versions, "v1") {
		t.Errorf("storedVersions are %v though objects could not be migrated", versions)
	}
	for _, key := range keys {
		if _, err := c.Raw.Delete(context.Background(), key); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("settled %v after the broken objects were gone", c.WaitSettled().Round(time.Millisecond))
	// Neither the server that went on nor one that tried again has written an object a second time.
	wantWrittenOnce(t, c, widgets, engineObjects)
	c.Check()
}
