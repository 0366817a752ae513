package browser

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	e2e "github.com/concord-dev/concord/e2e/cluster"
	testbed "github.com/concord-dev/concord/testbed/cluster"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

func create(t *testing.T, s *e2e.Server, n int) {
	t.Helper()
	must(t, s.Objects().Create(t.Context(), testbed.Definition(widgets, "v1")))
	api := s.Dynamic().Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
	e2e.Eventually(t, patience, "widgets are served", func(ctx context.Context) error {
		_, err := api.List(ctx, metav1.ListOptions{})
		return err
	})
	var all sync.WaitGroup
	for worker := range 8 {
		all.Go(func() {
			for i := worker; i < n; i += 8 {
				obj := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "widget-" + strconv.Itoa(i)}}}
				e2e.Eventually(t, patience, "widgets are created", func(ctx context.Context) error {
					_, err := api.Create(ctx, obj, metav1.CreateOptions{})
					return err
				})
			}
		})
	}
	all.Wait()
}

func flip(t *testing.T, s *e2e.Server) {
	t.Helper()
	must(t, e2e.ChangeDefinition(t.Context(), s.Objects(), widgets.String(), e2e.Store("v2")))
}

// asReported compares the rows in sight with the StorageVersions.
func (v *view) asReported(ctx context.Context, s *e2e.Server) error {
	var list apiserverinternalv1alpha1.StorageVersionList
	if err := s.Objects().List(ctx, &list); err != nil {
		return err
	}
	var heads []string
	v.eval(&heads, `() => [...document.querySelectorAll('concord-matrix thead th')].slice(4).map((e) => e.title)`)
	compared := 0
	for i := range list.Items {
		sv := &list.Items[i]
		gr, err := storageversion.GroupResource(sv.Name)
		if err != nil {
			return err
		}
		cells := v.row(gr.String())
		if cells == nil {
			continue // not in sight
		}
		for _, report := range storageversion.Reports(sv) {
			column := -1
			for at, id := range heads {
				if id == string(report.Server) {
					column = at + 4
				}
			}
			if column < 0 {
				return fmt.Errorf("%s has no column", report.Server)
			}
			gv, err := schema.ParseGroupVersion(string(report.Encoding.Plain()))
			if err != nil {
				return err
			}
			if cells[column] != gv.Version {
				return fmt.Errorf("of %s the page shows that %s writes %q, and it reports %s", gr, report.Server, cells[column], report.Encoding)
			}
			compared++
		}
	}
	if compared < 10 {
		return fmt.Errorf("%d cells were compared", compared)
	}
	return nil
}

func (v *view) settles(t *testing.T, s *e2e.Server) {
	t.Helper()
	e2e.Eventually(t, patience, "the page shows what is reported", func(ctx context.Context) error { return v.asReported(ctx, s) })
}

// TestMigration: the page follows a migration as its status tells it, names the object that cannot be migrated, and
// says so when the cluster is killed and when it is back.
func TestMigration(t *testing.T) {
	const objects = 300
	c := e2e.New(t)
	servers := c.Start(e2e.Options{Args: "--migration-max-objects-per-second=8"}, "one", "two")
	create(t, servers[0], objects)
	c.WaitSettled()
	if _, err := c.Raw.Put(t.Context(), "/registry/example.com/widgets/default/broken", `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"brok`); err != nil {
		t.Fatal(err)
	}
	v := open(t, chromium(t), serve(t, servers[0].Config()).local.URL(), look{width: 1280, height: 900})
	v.waitText("#live", "live")
	v.waitText("#headline", "2 servers serve")
	v.settles(t, servers[0])
	flip(t, servers[0])
	v.waitText("#migrations", "widgets.example.com to v2: running", "of 301 objects", "a second")
	last := -1.0
	for last < 0.5 {
		var share float64
		v.eval(&share, `() => document.querySelector('progress')?.value ?? 1`)
		if share < last {
			t.Fatalf("the bar went back from %v to %v", last, share)
		}
		last = share
		var m migrationv1alpha1.StorageVersionMigrationList
		must(t, servers[0].Objects().List(t.Context(), &m))
		for i := range m.Items {
			if p := m.Items[i].Status.Progress; migrationv1alpha1.Resource(&m.Items[i]) == widgets && !migrationv1alpha1.Final(&m.Items[i]) && p != nil && p.Total > 0 && share < 1 && share > float64(p.Done+p.Failed)/float64(p.Total) {
				t.Fatalf("the bar is at %v, and the migration, which was looked at later, at %+v", share, p)
			}
		}
	}
	v.waitText("#problems", "widgets.example.com: 1 of 301 objects cannot be migrated", "default/broken")
	v.settles(t, servers[0])
	v.waitText("#timeline", "widgets.example.com: the migration failed, ObjectsFailed: 1 object, such as default/broken")
	for _, s := range servers {
		s.Kill()
	}
	v.waitText("#live", "stale since", "the cluster does not answer")
	for _, s := range servers {
		s.Start()
	}
	v.waitText("#live", "live")
	v.waitText("#problems", "default/broken")
}

// TestRoll: the page that a server itself serves, at /concord/, follows a roll to another
// emulation version: it shows disagreement while that lasts, servers that come and go, and
// agreement in the end. Only users with the permission get the page.
func TestRoll(t *testing.T) {
	c := e2e.New(t)
	from := e2e.Options{Emulation: "1.36", MinCompatibility: "1.35"}
	servers := c.Start(from, "stays", "one", "two")
	c.WaitSettled()
	v := open(t, chromium(t), through(t, servers[0].Config())+"/concord/", look{width: 1280, height: 900})
	v.waitText("#live", "live")
	v.waitText("#headline", "3 servers serve", "all are agreed on and in one version")
	v.settles(t, servers[0])
	before := servers[1].IDs()
	servers[1].Restart(e2e.Options{})
	v.waitText("#problems", "servers disagree", "mutatingadmissionpolicies.admissionregistration.k8s.io")
	v.settles(t, servers[0])
	v.waitText("#timeline", string(before[0])+" (1.37 as 1.36) left")
	servers[2].Restart(e2e.Options{})
	servers[0].Restart(e2e.Options{})
	v.waitText("#live", "live")
	v.waitText("#headline", "3 servers serve", "all are agreed on and in one version")
	v.settles(t, servers[0])
	v.waitText("#timeline", "was started", "all servers agree")

	nobody := servers[0].Config()
	nobody.Impersonate = rest.ImpersonationConfig{UserName: "nobody"}
	for _, path := range []string{"/concord/", "/concord/page/page.js", "/concord/page/stream"} {
		if code := get(t, nobody, path); code != http.StatusForbidden {
			t.Errorf("%s is answered with %d to who may not get it", path, code)
		}
	}
	if code := get(t, servers[0].Config(), "/concord/page/page.js"); code != http.StatusOK {
		t.Errorf("an administrator is answered with %d", code)
	}
}

func get(t *testing.T, config *rest.Config, path string) int {
	t.Helper()
	c, err := rest.HTTPClientFor(config)
	must(t, err)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.TrimSuffix(config.Host, "/")+path, http.NoBody)
	must(t, err)
	answer, err := c.Do(r)
	must(t, err)
	_ = answer.Body.Close() // its code is what counts
	return answer.StatusCode
}

// through returns a URL that passes requests on to a server with the credentials of config, as
// kubectl proxy does.
func through(t *testing.T, config *rest.Config) string {
	t.Helper()
	transport, err := rest.TransportFor(config)
	must(t, err)
	to, err := url.Parse(config.Host)
	must(t, err)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }})
	t.Cleanup(func() { proxy.CloseClientConnections(); proxy.Close() })
	return proxy.URL
}

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
