package browser

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/status"
)

// api is a fake API server, which lists and watches the objects that it is given. It can hold
// what no real cluster of a test has, such as ten thousand resources.
type api struct {
	*httptest.Server
	now time.Time

	mu       sync.Mutex
	revision int
	objects  map[string]map[string]map[string]any // by path and name
	changed  chan struct{}
	events   []event
}

type event struct {
	path, kind string
	object     map[string]any
}

const (
	leasesPath     = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	versionsPath   = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"
	statesPath     = "/apis/migration.k8s.io/v1alpha1/storagestates"
	migrationsPath = "/apis/migration.k8s.io/v1alpha1/storageversionmigrations"
	crdsPath       = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	releasesPath   = "/apis/concord.dev/v1alpha1/clusterversions"
	eventsPath     = "/api/v1/namespaces/default/events"
)

var kindOf = map[string][2]string{
	leasesPath: {"coordination.k8s.io/v1", "Lease"}, versionsPath: {"internal.apiserver.k8s.io/v1alpha1", "StorageVersion"},
	statesPath: {"migration.k8s.io/v1alpha1", "StorageState"}, migrationsPath: {"migration.k8s.io/v1alpha1", "StorageVersionMigration"},
	crdsPath: {"apiextensions.k8s.io/v1", "CustomResourceDefinition"}, releasesPath: {"concord.dev/v1alpha1", "ClusterVersion"}, eventsPath: {"v1", "Event"},
}

func newAPI(t testing.TB, o status.Observed) *api {
	t.Helper()
	a := &api{now: o.Now, objects: map[string]map[string]map[string]any{}, changed: make(chan struct{})}
	for i := range o.Leases {
		// Nobody renews Leases here: those of live servers get a duration that is longer than a test.
		if spec, long := &o.Leases[i].Spec, int32(3600); o.Now.Sub(spec.RenewTime.Time) < 10*time.Second {
			spec.LeaseDurationSeconds = &long
		}
		a.put(t, leasesPath, &o.Leases[i])
	}
	for i := range o.StorageVersions {
		a.put(t, versionsPath, &o.StorageVersions[i])
	}
	for i := range o.States {
		a.put(t, statesPath, &o.States[i])
	}
	for i := range o.Migrations {
		a.put(t, migrationsPath, &o.Migrations[i])
	}
	for i := range o.CRDs {
		a.put(t, crdsPath, &o.CRDs[i])
	}
	for i := range o.Versions {
		a.put(t, releasesPath, &o.Versions[i])
	}
	for i := range o.Events {
		a.put(t, eventsPath, &o.Events[i])
	}
	a.Server = httptest.NewServer(a)
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

func (a *api) config() *rest.Config {
	return &rest.Config{Host: a.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

// put adds or replaces an object.
func (a *api) put(t testing.TB, path string, obj any) {
	t.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
	must(t, err)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.revision++
	fields["apiVersion"], fields["kind"] = kindOf[path][0], kindOf[path][1]
	meta := fields["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(a.revision)
	name := meta["name"].(string)
	if a.objects[path] == nil {
		a.objects[path] = map[string]map[string]any{}
	}
	kind := "ADDED"
	if a.objects[path][name] != nil {
		kind = "MODIFIED"
	}
	a.objects[path][name] = fields
	a.events = append(a.events, event{path, kind, fields})
	close(a.changed)
	a.changed = make(chan struct{})
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !a.now.IsZero() {
		w.Header().Set("Date", a.now.UTC().Format(http.TimeFormat))
	}
	w.Header().Set("Content-Type", "application/json")
	kind, known := kindOf[r.URL.Path]
	switch {
	case r.URL.Path == "/version":
		_, _ = fmt.Fprint(w, `{"major":"1","minor":"37"}`) // the client is gone
	case !known:
		http.NotFound(w, r)
	case r.URL.Query().Get("watch") != "":
		a.watch(w, r)
	default:
		items := []any{}
		a.mu.Lock()
		at := strconv.Itoa(a.revision)
		for _, obj := range a.objects[r.URL.Path] {
			items = append(items, obj)
		}
		a.mu.Unlock()
		_ = json.NewEncoder(w).Encode(map[string]any{"apiVersion": kind[0], "kind": kind[1] + "List", "metadata": map[string]any{"resourceVersion": at}, "items": items})
	}
}

func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion")) // every event has the revision of its place
	control := http.NewResponseController(w)
	encoder := json.NewEncoder(w)
	for {
		_ = control.Flush() // the client is gone
		a.mu.Lock()
		more, changed := a.events[min(at, len(a.events)):], a.changed
		at = len(a.events)
		a.mu.Unlock()
		for _, e := range more {
			if e.path == r.URL.Path && encoder.Encode(map[string]any{"type": e.kind, "object": e.object}) != nil {
				return
			}
		}
		if len(more) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// story returns the observations in a story of package status.
func story(t testing.TB, name string) status.Observed {
	t.Helper()
	text, err := os.ReadFile("../../status/testdata/" + name + ".txtar")
	must(t, err)
	for _, f := range txtar.Parse(text).Files {
		if f.Name == "observed.yaml" {
			var o status.Observed
			must(t, yaml.UnmarshalStrict(f.Data, &o))
			return o
		}
	}
	t.Fatal("it has no observed.yaml")
	return status.Observed{}
}

// many returns a cluster of n custom resources without problems.
func many(t testing.TB, n int) status.Observed {
	t.Helper()
	var text strings.Builder
	text.WriteString("now: '2026-11-24T10:05:00Z'\nleases:\n")
	var servers []string
	for i := range 3 {
		id := fmt.Sprintf("apiserver-%016x", i+1)
		servers = append(servers, id)
		fmt.Fprintf(&text, "- metadata: {name: %s, namespace: kube-system, creationTimestamp: '2026-11-24T10:00:00Z', labels: {apiserver.kubernetes.io/identity: kube-apiserver}, annotations: {concord.dev/binary-version: '1.37', concord.dev/emulation-version: '1.37', concord.dev/min-compatibility-version: '1.36', concord.dev/reported: 'true'}}\n  spec: {holderIdentity: %s, leaseDurationSeconds: 15, renewTime: '2026-11-24T10:04:57.000000Z'}\n", id, id)
	}
	var o status.Observed
	must(t, yaml.UnmarshalStrict([]byte(text.String()), &o))
	for i := range n {
		gr := fmt.Sprintf("things%05d.group%03d.example.com", i, i%100)
		o.StorageVersions = append(o.StorageVersions, versionOf(gr, "v1", servers...))
		o.States = append(o.States, stateOf(gr, "v1"))
	}
	return o
}
