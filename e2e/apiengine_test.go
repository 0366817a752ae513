package e2e

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
)

// migrateThroughAPI changes a custom resource's storage version and creates a migration with the
// engine API. The migration is created before the change, and paused until it can be done, so
// that the trigger creates no other one.
func migrateThroughAPI(t *testing.T, s *cluster.Server, gr schema.GroupResource, to string) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	m := askForAPI(t, s, gr, to, func(spec *migrationv1alpha1.StorageVersionMigrationSpec) { spec.Paused = true })
	storeIn(t, s, gr, to)
	waitTarget(t, s, m, widgetEncoding(to))
	pauseMigration(t, s, m, false)
	return m
}

// waitTarget waits until a migration is for the encoding.
func waitTarget(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, encoding agree.Encoding) {
	t.Helper()
	waitFor(t, s, m, "is for "+string(encoding), func() bool { return migrationv1alpha1.TargetOf(m).Encoding == encoding })
}

// waitFor reads a migration again and again into m, until it is as is says.
func waitFor(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, what string, is func() bool) (took time.Duration) {
	t.Helper()
	return cluster.Eventually(t, cluster.SettleTimeout, "the migration "+m.Name+" "+what, func(ctx context.Context) error {
		now := migrationv1alpha1.StorageVersionMigration{}
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), &now); err != nil {
			return err
		}
		if *m = now; !is() {
			return fmt.Errorf("it has the annotations %v and is %+v", m.Annotations, m.Status)
		}
		return nil
	})
}

// askForAPI creates a migration with the engine API.
func askForAPI(t *testing.T, s *cluster.Server, gr schema.GroupResource, version string, change func(*migrationv1alpha1.StorageVersionMigrationSpec)) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "api-" + gr.Resource + "-"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: gr.Group, Version: version, Resource: gr.Resource}
	m.Spec.Engine = migrationv1alpha1.EngineAPI
	change(&m.Spec)
	must(t, s.Objects().Create(t.Context(), m))
	return m
}

func waitEnded(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	took := waitFor(t, s, m, "ends", func() bool { return migrationv1alpha1.Final(m) })
	t.Logf("migration %s ended after %v: %+v", m.Name, took.Round(time.Millisecond), m.Status.Progress)
	return m
}

// wantWrittenOnce expects that this many objects were written again since they were created, each of them once.
func wantWrittenOnce(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, want int) {
	t.Helper()
	found, err := c.Raw.Get(t.Context(), "/registry/"+gr.Group+"/"+gr.Resource+"/", clientv3.WithPrefix())
	must(t, err)
	again := 0
	for _, kv := range found.Kvs {
		switch kv.Version {
		case 1: // as it was created
		case 2:
			again++
		default:
			t.Errorf("%s was written %d times", kv.Key, kv.Version)
		}
	}
	if again != want {
		t.Errorf("%d objects were written again, want %d", again, want)
	}
}

// revisionsOf returns, by key, the revision at which each stored object was last written.
func revisionsOf(t *testing.T, c *cluster.Cluster, gr schema.GroupResource) map[string]int64 {
	t.Helper()
	found, err := c.Raw.Get(t.Context(), "/registry/"+gr.Group+"/"+gr.Resource+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	revisions := map[string]int64{}
	for _, kv := range found.Kvs {
		revisions[string(kv.Key)] = kv.ModRevision
	}
	return revisions
}

// testAPIDefaults: the versions of a custom resource may have different defaults, also if its
// conversion changes only the apiVersion. After a migration through the API the watch cache has
// the object as it is stored, with the defaults of the version that it is stored in.
func testAPIDefaults(t *testing.T) {
	c := cluster.New(t)
	server := c.Start(cluster.Options{}, "one")[0]
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	crd := widgetCRD("v1")
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		v.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
		status := map[string]apiextensionsv1.JSONSchemaProps{"seen": text}
		if v.Name == "v2" {
			status["phase"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"Pending"`)}}
		}
		v.Schema.OpenAPIV3Schema.Properties["status"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: status}
	}
	createCRD(t, crd, server)
	fill(t, server, widgetsV1, 1)
	of := func(version string) dynamic.ResourceInterface {
		return server.Dynamic().Resource(widgets.WithVersion(version)).Namespace(metav1.NamespaceDefault)
	}
	list, err := of("v1").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("there are %+v: %v", list, err)
	}
	object := &list.Items[0]
	// The audit does not understand writes of statuses, so this test does not use it.
	object.Object["status"] = map[string]any{"seen": "yes"}
	if _, err := of("v1").UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.WaitSettled()
	get := func(revision string) *unstructured.Unstructured {
		t.Helper()
		found, err := of("v2").Get(t.Context(), object.GetName(), metav1.GetOptions{ResourceVersion: revision})
		must(t, err)
		return found
	}
	// From now on there is a watch cache of v2, and it has the object.
	if _, err := of("v2").List(t.Context(), metav1.ListOptions{ResourceVersion: "0"}); err != nil {
		t.Fatal(err)
	}
	if phase, _, _ := unstructured.NestedString(get("0").Object, "status", "phase"); phase != "" {
		t.Errorf("what is stored in v1 has v2's default %q", phase)
	}
	wantSucceeded(t, waitEnded(t, server, migrateThroughAPI(t, server, widgets, "v2")), 1)
	stored := get("")
	if phase, _, _ := unstructured.NestedString(stored.Object, "status", "phase"); phase != "Pending" {
		t.Errorf("what is stored in v2 has the phase %q", phase)
	}
	cluster.Eventually(t, time.Minute, "the cache has what is stored", func(context.Context) error {
		if cached := get("0"); !reflect.DeepEqual(cached, stored) {
			return fmt.Errorf("it has %v, and stored is %v", cached, stored)
		}
		return nil
	})
}

// testAPIWebhook: a migration through the API whose conversion webhook is slow, refuses every
// tenth object, is down for seconds, and is down for a minute, which is longer than a migration
// waits for it. Other migrations go on meanwhile. Objects that fail are named with their reason,
// the migration waits for a webhook that is down for a short time, and each retry writes only
// the objects that are left.
func testAPIWebhook(t *testing.T) {
	const objects, tenth = 200, 20
	hook := startConverter(t)
	c := cluster.New(t)
	c.Audit.With(func(l *audit.Ledger) { l.Normalize(convertibles, asV1) })
	servers := c.Start(atRate(150), "one", "two")
	createWidgets(t, "v1", servers...)
	createCRD(t, convertibleCRD(hook), servers...)
	fill(t, servers[0], widgetsV1, stored)
	fill(t, servers[0], convertiblesV1, objects)
	c.WaitSettled()
	before := texts(t, servers[0], "v1")
	v1, v2 := widgetEncoding("v1"), widgetEncoding("v2")

	hook.poison(everyTenth(before)...)
	hook.slow(30 * time.Millisecond)
	m := migrateThroughAPI(t, servers[0], convertibles, "v2")
	storeWidgetsIn(t, servers[1], "v2") // their migration waits for no webhook
	m = waitEnded(t, servers[1], m)
	if c.Encodings(widgets)[v2] == 0 {
		t.Error("no widget was rewritten before the webhook was done with")
	}
	again := askForAPI(t, servers[0], convertibles, "v2", func(spec *migrationv1alpha1.StorageVersionMigrationSpec) {
		spec.MaxObjectsPerSecond, spec.Paused = ptr.To[int64](50), true // so that no other one is made
	})
	wantFailures(t, m, map[migrationv1alpha1.MigrationFailureReason]int{migrationv1alpha1.FailureConversionWebhook: tenth}, objects-tenth)
	for _, f := range m.Status.Failures {
		if !strings.HasSuffix(f.Name, "0") || !strings.Contains(f.Message, f.Name+" is poisoned") {
			t.Errorf("a failure is %+v, want what the webhook says of the object", f)
		}
	}
	wantStored(t, c, convertibles, map[agree.Encoding]int{v1: tenth, v2: objects - tenth})
	wantWrittenOnce(t, c, convertibles, objects-tenth)
	awaitStored(t, c, widgets, v2, stored)
	wantEncoding(t, c, widgets, v2, stored)

	// The objects that are left are migrated, and none fails because the webhook is down for a short time.
	hook.slow(0)
	hook.poison()
	revisions := revisionsOf(t, c, convertibles)
	m = again
	pauseMigration(t, servers[0], m, false)
	awaitStored(t, c, convertibles, v2, objects-tenth+5)
	hook.stop()
	awaitLive(t, servers[1], m, 6*time.Second)
	if left := c.Encodings(convertibles)[v1]; left == 0 {
		t.Error("nothing was left when the webhook went away: nothing was tested")
	}
	hook.start()
	m = waitEnded(t, servers[1], m)
	wantSucceeded(t, m, objects)
	wantStored(t, c, convertibles, map[agree.Encoding]int{v2: objects})
	if written := writtenSince(t, c, convertibles, revisions); written != tenth {
		t.Errorf("%d objects were written again, %d were left", written, tenth)
	}

	// A webhook that stays down ends the migration, which names it; the objects that are left
	// are migrated later.
	m = migrateThroughAPI(t, servers[0], convertibles, "v1")
	awaitStored(t, c, convertibles, v1, objects/10)
	hook.stop()
	m = waitEnded(t, servers[0], m)
	done := c.Encodings(convertibles)[v1]
	wantFailures(t, m, map[migrationv1alpha1.MigrationFailureReason]int{migrationv1alpha1.FailureConversionWebhook: objects - done}, done)
	revisions = revisionsOf(t, c, convertibles)
	hook.awaitDown(time.Minute)
	hook.start()
	t.Logf("settled %v after the webhook is up again", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, convertibles, v1, objects)
	if written := writtenSince(t, c, convertibles, revisions); written != objects-done {
		t.Errorf("%d objects were written again, %d were left", written, objects-done)
	}
	wantTexts(t, before, servers...)
	c.Check()
}

// testAPIMigratorKilled: clients update, delete and create objects during a whole migration through
// the API, and the server that does it is killed twice in the middle. Another server goes on from
// where it was. No object is lost, no deleted object comes back, and none is written twice.
func testAPIMigratorKilled(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(atRate(150), "one", "two", "three")
	createWidgets(t, "v1", servers...)
	m := newMigrating(t, c, widgetsV1, engineObjects*2/3, servers...)
	live := migrateThroughAPI(t, servers[0], widgets, "v2")
	for range 2 {
		claimer := m.claimer()
		live = waitSaved(t, servers[0], live, claimer)
		m.awaitRewrites(1 + m.random.IntN(100))
		m.underWay("v2")
		claimer.Kill()
		t.Logf("killed %s after %d rewrites", claimer.Name, m.rewrites())
		wantResumed(t, m.claimer(), live)
		claimer.Start()
		claimer.WaitReady()
	}
	c.WaitReporters(restored, servers...)
	live = waitEnded(t, servers[1], live)
	if migrationv1alpha1.True(live, migrationv1alpha1.MigrationSucceeded) == nil {
		t.Errorf("it ended with %+v", live.Status)
	}
	wantAPI(t, live)
	m.ended("v2")
	wantStored(t, c, widgets, map[agree.Encoding]int{widgetEncoding("v2"): len(m.churn.Result().Want)})
	c.Ledger(func(l *audit.Ledger) {
		if n := l.NeedlessRewrites(); n > 0 {
			t.Errorf("%d objects that were done were written again", n)
		}
	})
}

// testAPIEtcdFaults: an etcd of three members loses its leader and then all members, and is compacted
// every second, while objects are migrated through the API. No object fails because of that.
func testAPIEtcdFaults(t *testing.T) {
	c := cluster.NewReplicated(t, 3)
	servers := c.Start(atRate(100), "one", "two")
	createWidgets(t, "v1", servers...)
	m := newMigrating(t, c, widgetsV1, engineObjects, servers...)
	live := migrateThroughAPI(t, servers[0], widgets, "v2")
	m.awaitRewrites(1)
	compacted := m.compactEverySecond(t.Logf) // an etcd that is killed is compacted later
	m.loseLeaders()
	live = waitEnded(t, servers[1], live)
	if n := compacted(); n < 5 {
		t.Errorf("%d compactions are too few to test anything", n)
	}
	if migrationv1alpha1.True(live, migrationv1alpha1.MigrationSucceeded) == nil || live.Status.Progress.Failed > 0 {
		t.Errorf("it ended with %+v", live.Status)
	}
	wantAPI(t, live)
	m.ended("v2")
}

// waitSaved waits until claimer, the server that does the migration, has saved more progress in its status.
func waitSaved(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, claimer *cluster.Server) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	before, now := saved(m), m.DeepCopy()
	waitFor(t, s, now, "is saved by "+claimer.Name, func() bool {
		id, _ := claimer.ID()
		return now.Annotations[migrationv1alpha1.ClaimedByAnnotation] == string(id) && now.Status.ContinueToken != "" && saved(now) > before
	})
	return now
}

// wantFailures fails unless a migration through the API has ended with the wanted numbers of
// failed objects, by reason, and of objects that are done.
func wantFailures(t *testing.T, m *migrationv1alpha1.StorageVersionMigration, want map[migrationv1alpha1.MigrationFailureReason]int, done int) {
	t.Helper()
	failed := 0
	p := m.Status.Progress
	condition := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed)
	if condition == nil || condition.Reason != migrationv1alpha1.ReasonObjectsFailed || p == nil || len(p.FailedByReason) != len(want) || int(p.Done) != done {
		t.Fatalf("it ended with %+v, want %d done and failures %v", m.Status, done, want)
	}
	for reason, n := range want {
		failed += n
		if int(p.FailedByReason[reason]) != n {
			t.Errorf("%d objects failed as %s, want %d", p.FailedByReason[reason], reason, n)
		}
	}
	if named := min(failed, migrationv1alpha1.MaxFailures); len(m.Status.Failures) != named || int(p.Failed) != failed {
		t.Errorf("%d objects failed and %d are named, want %d and %d", p.Failed, len(m.Status.Failures), failed, named)
	}
	for _, f := range m.Status.Failures {
		if want[f.Reason] == 0 {
			t.Errorf("a failure is %+v", f)
		}
	}
	wantAPI(t, m)
}

func wantSucceeded(t *testing.T, m *migrationv1alpha1.StorageVersionMigration, done int) {
	t.Helper()
	if migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) == nil || m.Status.Progress == nil || int(m.Status.Progress.Done) != done {
		t.Fatalf("it ended with %+v, want that it succeeded with %d done", m.Status, done)
	}
	wantAPI(t, m)
}

func wantAPI(t *testing.T, m *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	if m.Status.Engine != migrationv1alpha1.EngineAPI {
		t.Errorf("the engine is %q: the API's was not tested", m.Status.Engine)
	}
}

// wantStored fails unless this is how the objects are stored, as etcd has it and as `concord
// census` counts it.
func wantStored(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, want map[agree.Encoding]int) {
	t.Helper()
	if found := c.Encodings(gr); !maps.Equal(found, want) {
		t.Errorf("objects of %s are stored as %v, want %v", gr, found, want)
	}
	if counted := censusOf(t, c, gr); !maps.Equal(counted, want) {
		t.Errorf("the census counts %v of %s, want %v", counted, gr, want)
	}
}

// censusOf returns the counts of `concord census` for a resource.
func censusOf(t *testing.T, c *cluster.Cluster, gr schema.GroupResource) map[agree.Encoding]int {
	t.Helper()
	counted := map[agree.Encoding]int{}
	for _, row := range census(t, c) {
		if row.Resource == gr.String() {
			counted[row.Encoding] = row.Objects
		}
	}
	return counted
}

// awaitStored waits until at least n objects are in the encoding.
func awaitStored(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, encoding agree.Encoding, n int) {
	t.Helper()
	cluster.Eventually(t, cluster.SettleTimeout, fmt.Sprintf("%d objects are in %s", n, encoding), func(context.Context) error {
		if found := c.Encodings(gr); found[encoding] < n {
			return fmt.Errorf("they are stored as %v", found)
		}
		return nil
	})
}

// awaitLive waits for the duration, in which the migration must not end.
func awaitLive(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, duration time.Duration) {
	t.Helper()
	began := time.Now()
	cluster.Eventually(t, duration+time.Minute, "the fault lasts", func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if migrationv1alpha1.Final(m) {
			t.Fatalf("the migration did not wait: %+v", m.Status)
		}
		if rest := duration - time.Since(began); rest > 0 {
			return fmt.Errorf("%v to go", rest)
		}
		return nil
	})
}

// writtenSince counts the objects that were written since their revisions were read.
func writtenSince(t *testing.T, c *cluster.Cluster, gr schema.GroupResource, revisions map[string]int64) (n int) {
	t.Helper()
	for key, revision := range revisionsOf(t, c, gr) {
		if revision != revisions[key] {
			n++
		}
	}
	return n
}
