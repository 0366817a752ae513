package generic_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	metricsReference = "../../docs/metrics.md"
	monitoringFolder = "../../deploy/monitoring/"
)

// monitoredMetric matches the metrics in alerts and dashboard; TestExpressions of deploy compares it
// with PromQL's own parser.
var monitoredMetric = regexp.MustCompile(`\b(concord|storage_migrator|apiserver)_[a-z_]+[a-z]\b`)

// eventual are metrics that a server has only after a write has met a changed StorageVersion. That
// does not happen in this test; HastyFlips of e2e looks for them.
var eventual = sets.New("concord_fence_retries_total", "concord_fence_forwards_total")

// scraped returns the names of samples and the types of metrics that the shared server shows.
func scraped(ctx context.Context) (samples sets.Set[string], types map[string]string, err error) {
	raw, err := shared.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, nil, err
	}
	samples, types = sets.New[string](), map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) == 4 && fields[1] == "TYPE" {
			types[fields[2]] = fields[3]
		} else if !strings.HasPrefix(line, "#") {
			samples.Insert(line[:strings.IndexAny(line, "{ ")])
		}
	}
	return samples, types, nil
}

// TestMonitoredMetrics: every metric in an alert or in the dashboard is shown by a running server, and so are those of
// clients and work queues, for which Kubernetes' users have alerts.
func TestMonitoredMetrics(t *testing.T) {
	reference, err := os.ReadFile(metricsReference)
	mustDo(t, err)
	wanted := sets.New("rest_client_requests_total", "workqueue_depth")
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		content, err := os.ReadFile(monitoringFolder + file)
		mustDo(t, err)
		found := monitoredMetric.FindAllString(string(content), -1)
		if len(found) < 5 {
			t.Fatalf("%s names the metrics %v only", file, found)
		}
		wanted.Insert(found...)
	}
	for name := range wanted.Intersection(eventual) {
		if !strings.Contains(string(reference), "| `"+name+"` |") {
			t.Errorf("%s is monitored, and not in %s", name, metricsReference)
		}
	}
	migrateSecrets(t)
	eventually(t, "all monitored metrics are shown", func(ctx context.Context) error {
		samples, _, err := scraped(ctx)
		if missing := wanted.Difference(eventual).Difference(samples); err == nil && missing.Len() > 0 {
			err = fmt.Errorf("not shown: %v", sets.List(missing))
		}
		return err
	})
	if never := eventual.Difference(wanted); never.Len() > 0 {
		t.Errorf("not monitored at all: %v", sets.List(never))
	}
}

// migrateSecrets makes a migration of secrets.
func migrateSecrets(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(shared.admin)
	mustDo(t, err)
	if _, err := client.Resource(migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations")).Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": migrationv1alpha1.SchemeGroupVersion.String(), "kind": "StorageVersionMigration",
		"metadata": map[string]any{"generateName": "metrics-"},
		"spec":     map[string]any{"resource": map[string]any{"version": "v1", "resource": "secrets"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestReferenceOfMetrics: the metrics of Concord that a running server shows are in the reference,
// with their types.
func TestReferenceOfMetrics(t *testing.T) {
	reference, err := os.ReadFile(metricsReference)
	mustDo(t, err)
	_, types, err := scraped(t.Context())
	mustDo(t, err)
	own := 0
	for name, kind := range types {
		if !strings.HasPrefix(name, "concord_") && !strings.HasPrefix(name, "storage_migrator_") {
			continue
		}
		own++
		if !strings.Contains(string(reference), fmt.Sprintf("| `%s` | %s |", name, kind)) {
			t.Errorf("%s (%s) is not in %s", name, kind, metricsReference)
		}
	}
	if own < 8 {
		t.Errorf("only %d metrics of Concord's own are shown", own)
	}
}

// crowd is the number of clients that send too much. One user has room for 300 requests in queues.
const crowd = 600

// comeBack is the time after which a refused client tries again.
const comeBack = time.Second

// TestFlood: the clients of one user send more than the server can do. Some are told to come back
// later, and no request of another user is refused. The delay for that user is measured by
// bench/server. If etcd does not answer for a moment, on a busy machine, both users are told to try
// again; that does not count.
func TestFlood(t *testing.T) {
	ns := shared.namespace(t)
	flood, normal := shared.editor(t, ns, "flood"), shared.editor(t, ns, "normal")
	ctx, end := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	defer clients.Wait()
	defer end()
	var served, refused atomic.Int64
	for client := range crowd {
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				switch err := createOnce(ctx, flood, ns, fmt.Sprintf("flood-%d-%d", client, n)); {
				case err == nil:
					served.Add(1)
				case ctx.Err() != nil:
				case isOverload(err):
					refused.Add(1)
					pause(ctx, comeBack)
				case notNow(err):
					pause(ctx, comeBack)
				default:
					t.Errorf("flood: %v", err)
					return
				}
			}
		})
	}
	isRefused := func(context.Context) error {
		if refused.Load() == 0 {
			return fmt.Errorf("%d requests were served", served.Load())
		}
		return nil
	}
	eventually(t, "requests of the flood are refused", isRefused)
	for n := range 50 {
		again := false
		eventually(t, fmt.Sprintf("request %d of the other user is served", n), func(ctx context.Context) error {
			err := createOnce(ctx, normal, ns, fmt.Sprintf("normal-%d", n))
			if again && apierrors.IsAlreadyExists(err) {
				return nil // made by the attempt before
			}
			if err != nil && !notNow(err) {
				t.Fatal(err)
			}
			again = true
			return err
		})
	}
	refused.Store(0)
	eventually(t, "the flood goes on", isRefused)
	if served.Load() == 0 {
		t.Error("nothing of the flood was served")
	}
	samples, _, err := scraped(t.Context())
	mustDo(t, err)
	if !samples.Has("concord_turns_wait_duration_seconds_count") {
		t.Error("no request waited for its turn")
	}
}

// pause waits for d, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// notNow says whether etcd did not answer for a moment, so that the request can be made again.
func notNow(err error) bool { return apierrors.IsServiceUnavailable(err) || load.EtcdLate(err) }

// isOverload says whether a request was refused with 429 and Retry-After.
func isOverload(err error) bool {
	_, delay := apierrors.SuggestsClientDelay(err)
	return apierrors.IsTooManyRequests(err) && delay
}

// editor returns a client of a new service account that may edit the objects of a namespace.
func (s *running) editor(t *testing.T, ns, name string) kubernetes.Interface {
	t.Helper()
	must[*corev1.ServiceAccount](t)(s.kube.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))
	must[*rbacv1.RoleBinding](t)(s.kube.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: name, Namespace: ns}},
	}, metav1.CreateOptions{}))
	config := rest.AnonymousClientConfig(s.admin)
	config.BearerToken, config.QPS = s.token(t, ns, name), -1
	client := kubernetes.NewForConfigOrDie(config)
	eventually(t, name+" may create", func(ctx context.Context) error {
		err := createOnce(ctx, client, ns, name)
		if apierrors.IsAlreadyExists(err) {
			return nil // made by an attempt for which etcd was late
		}
		return err
	})
	return client
}

// createOnce creates a ConfigMap, and does not try again.
func createOnce(ctx context.Context, client kubernetes.Interface, ns, name string) error {
	var status int
	err := client.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(ns).Resource("configmaps").Body(configMap(name, nil)).Do(ctx).StatusCode(&status).Error()
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("answered with %d", status)
	}
	return err
}

// TestWatchCacheOutlivesStorageVersion: a new storage version of a CRD, and the migration to it,
// keep the watch cache and its watches.
func TestWatchCacheOutlivesStorageVersion(t *testing.T) {
	ctx, ns := t.Context(), shared.namespace(t)
	crds, crd := twoVersions(t, "gears")
	gears := dynamic.NewForConfigOrDie(shared.admin).Resource(schema.GroupVersionResource{Group: crd.Spec.Group, Version: "v2", Resource: "gears"}).Namespace(ns)
	eventually(t, "a custom resource", func(ctx context.Context) error {
		_, err := gears.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "test.concord.dev/v2", "kind": "Gear", "metadata": map[string]any{"name": "g"}, "teeth": int64(12),
		}}, metav1.CreateOptions{})
		return err
	})
	watcher := must[watch.Interface](t)(gears.Watch(ctx, metav1.ListOptions{ResourceVersion: "0"}))
	defer watcher.Stop()
	seen := func() *unstructured.Unstructured {
		t.Helper()
		select {
		case event := <-watcher.ResultChan():
			if u, ok := event.Object.(*unstructured.Unstructured); ok {
				return u
			}
			t.Fatalf("the watch from before saw %s %+v", event.Type, event.Object)
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
		return nil
	}
	created, filled := seen(), watchCachesFilled(t, "gears")
	if filled == 0 {
		t.Fatal("no watch cache of gears")
	}

	storeIn(t, crds, crd.Name, "v2")
	eventually(t, "the migration", func(ctx context.Context) error {
		crd, err := crds.Get(ctx, crd.Name, metav1.GetOptions{})
		if err == nil && !slices.Equal(crd.Status.StoredVersions, []string{"v2"}) {
			err = fmt.Errorf("stored: %v", crd.Status.StoredVersions)
		}
		return err
	})
	if migrated := seen(); migrated.GetResourceVersion() == created.GetResourceVersion() || migrated.GetUID() != created.GetUID() {
		t.Errorf("the watch from before saw %+v after %+v", migrated, created)
	}
	if list := must[*unstructured.UnstructuredList](t)(gears.List(ctx, metav1.ListOptions{ResourceVersion: "0"})); len(list.Items) != 1 {
		t.Errorf("a list from the watch cache: %+v", list)
	}
	if now := watchCachesFilled(t, "gears"); now != filled {
		t.Errorf("watch caches of gears were filled %d times, and %d times after the migration", filled, now)
	}
}

// twoVersions makes a CRD with the versions v1, which is stored, and v2.
func twoVersions(t *testing.T, plural string) (crds apiextensionsclient.CustomResourceDefinitionInterface, crd *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	crds = apiextensions.NewForConfigOrDie(shared.admin).ApiextensionsV1().CustomResourceDefinitions()
	definition := cluster.Definition(schema.GroupResource{Group: "test.concord.dev", Resource: plural}, "v1")
	return crds, must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Create(t.Context(), definition, metav1.CreateOptions{}))
}

// storeIn sets the storage version of a CRD of twoVersions.
func storeIn(t *testing.T, crds apiextensionsclient.CustomResourceDefinitionInterface, name, version string) {
	t.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/storage","value":%t},{"op":"replace","path":"/spec/versions/1/storage","value":%t}]`, version == "v1", version == "v2")
	must[*apiextensionsv1.CustomResourceDefinition](t)(crds.Patch(t.Context(), name, types.JSONPatchType, []byte(patch), metav1.PatchOptions{}))
}

// watchCachesFilled returns how often watch caches of a resource were filled by a list.
func watchCachesFilled(t *testing.T, resource string) (times int) {
	t.Helper()
	raw := must[[]byte](t)(shared.kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))
	for line := range strings.Lines(string(raw)) {
		if strings.HasPrefix(line, "apiserver_watch_cache_initializations_total{") && strings.Contains(line, `resource="`+resource+`"`) {
			n := 0
			if _, err := fmt.Sscan(line[strings.LastIndex(line, " "):], &n); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			times += n
		}
	}
	return times
}
