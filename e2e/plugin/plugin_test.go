package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/stock"
)

// TestPlugin runs kubectl concord as an operator of a stock cluster would, with two kube-apiservers
// and our controllers beside them. The storage version of a custom resource becomes v2, its
// migration is throttled, paused and resumed, the pruning of storedVersions is held and released,
// and all of it is reverted. At last a migration waits for a kube-apiserver that does not answer.
func TestPlugin(t *testing.T) {
	const objects, few = 600, 20
	c := beside.New(t, itself.Programs)
	a, b := c.APIServer("a"), c.APIServer("b")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	// Gadgets and sprockets are migrated while the widgets' migration is paused or held: when
	// they are done, the controllers had time for the widgets, too.
	gadgets, sprockets := a.Define("gadgets", true, nil), a.Define("sprockets", true, nil)
	for _, other := range []*beside.Widgets{gadgets, sprockets} {
		other.Fill(few, nil)
	}
	config := itself.Quick()
	config.MaxObjectsPerSecond = 50 // so that the migration still runs when it is throttled
	p := newPlugin(t, a)
	p.run(0, "status").has("2 servers serve, without Concord, and no StorageState tells of concord controllers: nothing is migrated here")
	controllers := a.Controllers("controllers", config)
	for _, each := range []*beside.Widgets{w, gadgets, sprockets} {
		each.AwaitStored(beside.V1, beside.V1)
	}
	atRest(p, w)

	settling(p, w, controllers, config)
	throttledAndPaused(p, w)
	before := stored(w)
	gadgets.Store("v2")
	gadgets.AwaitPruned(few)
	if after := stored(w); after[beside.V2]-before[beside.V2] > mostUnderWay || after[beside.V1] == 0 {
		t.Errorf("the paused migration went on: from %v to %v", before, after)
	}
	resumed(p, w)

	p.await(fmt.Sprintf(`\S+ Succeeded %d 0 \S+ trigger from example.com/v1 to example.com/v2`, objects), "history", w.Name())
	w.AwaitStored(beside.V2, beside.V2)
	sprockets.Store("v2")
	sprockets.AwaitPruned(few)
	heldAndReleased(p, w)
	w.AwaitPruned(objects)
	p.run(0, "why", w.Name()).has("widgets.example.com: nothing blocks: every object is in example.com/v2.")
	p.run(0, "preflight", "--crd", onlyIn(w, "v2")).has("widgets.example.com: safe")
	p.run(2, "preflight", "--crd", onlyIn(w, "v1")).has("it drops example.com/v2, in which objects may be stored")

	askedFor(p, w, objects)
	reverted(p, w, objects)
	waiting(p, gadgets, b)
}

// mostUnderWay is how many patches of a migration can be under way when it is paused.
const mostUnderWay = 32

// atRest checks the output for a cluster in which nothing is to be done for the widgets, which are all in v1.
func atRest(p *plugin, w *beside.Widgets) {
	p.t.Helper()
	beside.Eventually(p.t, beside.Patience, "the status names no problem", func(context.Context) error {
		var now status.Cluster
		p.read(0, &now, "status", "-o", "json")
		for _, problem := range now.Problems {
			return errors.New(problem.Text)
		}
		if n := now.Counts; n.Stored == 0 || n.Agreed != n.Stored { // built-in resources are left as they are
			return fmt.Errorf("%+v", n)
		}
		if len(now.Servers) != 2 || now.Servers[0].State != servers.Serving || now.Servers[1].State != servers.Serving || len(now.Moving) > 0 {
			p.t.Errorf("the status has %+v and %+v", now.Servers, now.Moving)
		}
		return nil
	})
	p.run(0, "status").has("2 servers serve; of ").hasNo("MIGRATIONS").hasNo(w.Plural)
	p.run(0).has("2 servers serve; of ") // without a command the plugin shows the status
	for _, count := range []string{"--count=true", "--count=false"} {
		p.run(0, "why", w.Name(), count).has("nothing blocks: every object is in example.com/v1.").has("objects were not counted").has("example.com/v1 (target)")
	}
	p.run(0, "history", "widget").has("widgets.example.com: no migration that has ended is remembered")
	p.run(0, "preflight", "--crd", onlyIn(w, "v1")).has("CustomResourceDefinition widgets.example.com: safe")
	p.run(2, "preflight", "--crd", onlyIn(w, "v2")).has("widgets.example.com: unsafe").has("it drops example.com/v1, in which objects may be stored")

	// Stock kube-apiservers count nothing.
	const noCensus = "census of widgets.example.com: the kube-apiserver that answered takes no census (it is one without Concord"
	p.refused("census", w.Name()).has(noCensus)
	p.refused("migrate", w.Name(), "--dry-run").has(noCensus)
	p.refused("pause", w.Name()).has("kubectl concord migrate widgets.example.com asks for one")
	p.refused("why", "widgetts").has(`"widgetts" is no resource that is stored; kubectl get storagestates names those that are`)
	if all, err := w.Migrations(p.t.Context()); err != nil || len(all) > 0 {
		p.t.Errorf("there are %d migrations, %v", len(all), err)
	}
}

// settling stores the widgets in v2, and checks what is told while that has to settle. It does so for as long as the
// plugin needs, before other controllers begin with the migration.
func settling(p *plugin, w *beside.Widgets, controllers *cluster.Process, config stock.Config) {
	p.t.Helper()
	controllers.Terminate()
	patient := config
	patient.Settle = time.Hour
	controllers = w.Server.Controllers("patient", patient)
	w.Store("v2")
	p.await(`widgets.example.com: all kube-apiservers store example.com/v2: until \S+ UTC`, "status")
	controllers.Terminate()
	w.Server.Controllers("again", config)
}

// throttledAndPaused throttles the migration that the change of the storage version starts, and
// pauses it on its way.
func throttledAndPaused(p *plugin, w *beside.Widgets) {
	p.t.Helper()
	p.await(`widgets.example.com: throttled to 5 objects/s: migration \S+`, "throttle", w.Name(), "5")
	p.await(`MIGRATIONS widgets.example.com to example.com/v2: running \[[#.]+\] \d+ % [1-9]\d* of 600, \d+/s`, "status")
	m := theMigration(p, w)
	if rate := m.Spec.MaxObjectsPerSecond; rate == nil || *rate != 5 {
		p.t.Errorf("it is throttled, and its spec says %+v", m.Spec)
	}
	p.run(0, "pause", w.Name(), "--dry-run").has("widgets.example.com: paused (dry run): migration " + m.Name)
	if theMigration(p, w).Spec.Paused {
		p.t.Error("a dry run has paused it")
	}
	p.run(0, "pause", w.Name()).has("widgets.example.com: paused: migration " + m.Name)
	p.run(0, "pause", w.Name()).has("widgets.example.com: paused already: migration " + m.Name)
	isPaused, goOn := "widgets.example.com: its migration is paused at ", "do: let it go on: kubectl concord resume widgets.example.com"
	p.run(0, "status").has(isPaused).has(goOn).has("widgets.example.com to example.com/v2: paused [").has(" of 600")
	p.run(2, "why", w.Name()).has("v1 cannot be taken out of its CustomResourceDefinition").has(isPaused).has(goOn).has("example.com/v2 (target)")
	var answer status.Answer
	p.read(2, &answer, "why", w.Name(), "-o", "json")
	if !answer.Blocked || len(answer.Moving) != 1 || answer.Moving[0].Migration != m.Name || answer.Moving[0].State != status.IsPaused ||
		len(answer.Problems) != 1 || answer.Problems[0].Kind != status.Paused {
		p.t.Errorf("of the paused migration %s it is told %+v", m.Name, answer)
	}
	p.refused("cancel", w.Name()).has("was made by Concord itself")
}

// resumed puts the pruning on hold, and lets the paused migration go on as fast as it can.
func resumed(p *plugin, w *beside.Widgets) {
	p.t.Helper()
	m := theMigration(p, w)
	must(p.t, w.Change(func(crd *apiextensionsv1.CustomResourceDefinition) {
		metav1.SetMetaDataAnnotation(&crd.ObjectMeta, migrationv1alpha1.HoldAnnotation, "true")
	}))
	p.run(0, "throttle", w.Name(), "none").has("widgets.example.com: not throttled any more: migration " + m.Name)
	if rate := theMigration(p, w).Spec.MaxObjectsPerSecond; rate == nil || *rate != 0 {
		p.t.Errorf("it is not throttled any more, and its spec says %v", rate)
	}
	p.run(0, "resume", w.Name()).has("widgets.example.com: resumed: migration " + m.Name)
}

// heldAndReleased checks that storedVersions on hold are not pruned, though all objects are in
// v2, and releases them.
func heldAndReleased(p *plugin, w *beside.Widgets) {
	p.t.Helper()
	if versions, err := w.StoredVersions(p.t.Context()); err != nil || !slices.Equal(versions, []string{"v1", "v2"}) {
		p.t.Errorf("on hold, storedVersions are %v, %v", versions, err)
	}
	isHeld, goOn := "widgets.example.com: its cut-over is on hold", "do: let it go on: kubectl annotate crd widgets.example.com concord.dev/hold-"
	p.run(0, "status").has(isHeld).has(goOn).hasNo("MIGRATIONS")
	p.run(2, "why", w.Name()).has("its definition lists example.com/v1 in status.storedVersions").has(isHeld).has(goOn)
	p.refused("revert", w.Name(), "--to", "v1").has("the cut-over of widgets.example.com is on hold").has("kubectl annotate crd widgets.example.com concord.dev/hold-")
	must(p.t, w.Change(func(crd *apiextensionsv1.CustomResourceDefinition) {
		delete(crd.Annotations, migrationv1alpha1.HoldAnnotation)
	}))
}

// askedFor migrates the widgets on request though all are in v2 already, and expects both
// migrations in the history.
func askedFor(p *plugin, w *beside.Widgets, objects int) {
	p.t.Helper()
	p.run(0, "migrate", w.Name(), "--max-objects-per-second", "0").has(fmt.Sprintf("widgets.example.com: succeeded: %d objects are in example.com/v2", objects))
	p.await(fmt.Sprintf(`Succeeded %d 0 \S+ concord-migrate to example.com/v2 .* Succeeded %[1]d 0 \S+ trigger from example.com/v1 to example.com/v2`, objects), "history", w.Name())
}

// reverted prints the plan to go back to v1, which changes nothing, and then carries it out.
func reverted(p *plugin, w *beside.Widgets, objects int) {
	p.t.Helper()
	const plan = "widgets.example.com goes back from v2 to v1: 1. the CustomResourceDefinition stores v1"
	p.refused("revert", "configmaps", "--to", "v1").has("configmaps has no CustomResourceDefinition")
	p.run(0, "revert", w.Name(), "--to", "v1").has(plan).has("Nothing was changed: give --yes to do it.")
	if versions, err := w.StoredVersions(p.t.Context()); err != nil || !slices.Equal(versions, []string{"v2"}) {
		p.t.Errorf("after a plan storedVersions are %v, %v", versions, err)
	}
	p.run(0, "revert", w.Name(), "--to", "v1", "--yes").has(plan).has("kubectl concord why widgets.example.com tells how far the objects are.")
	w.AwaitStored(beside.V1, beside.V1)
	if counts := stored(w); len(counts) != 1 || counts[beside.V1] != objects {
		p.t.Errorf("after the way back stored are %v", counts)
	}
	p.await(`widgets.example.com: nothing blocks: every object is in example.com/v1\.`, "why", w.Name())
	if versions, err := w.StoredVersions(p.t.Context()); err != nil || !slices.Equal(versions, []string{"v1"}) {
		p.t.Errorf("after the way back storedVersions are %v, %v", versions, err)
	}
	p.run(0, "status").hasNo("MIGRATIONS").hasNo(w.Plural)
}

// waiting creates a migration that waits for a paused kube-apiserver, and takes it back.
func waiting(p *plugin, w *beside.Widgets, silent *beside.APIServer) {
	p.t.Helper()
	silent.Pause()
	defer silent.Resume()
	w.Store("v1")
	const why = `it is not known what servers write.* apiserver-\S+ does not answer at `
	p.await("NOT WELL .*"+why, "status")
	var ending sync.WaitGroup
	p.t.Cleanup(ending.Wait)
	var out, complaints string
	var code int
	ending.Go(func() { out, complaints, code = p.exec("migrate", w.Name()) })
	p.await(`MIGRATIONS gadgets.example.com: pending`, "status")
	p.awaitCode(2, " does not answer at "+silent.Address, "why", w.Name()) // the status may have told of other resources alone
	p.run(2, "why", w.Name()).has("v2 cannot be taken out of its CustomResourceDefinition").has(" does not answer at " + silent.Address).has("gadgets.example.com: pending")
	p.run(0, "cancel", w.Name()).has("gadgets.example.com: cancelled: migration gadgets.example.com-")
	ending.Wait()
	if code != 2 {
		p.t.Errorf("a migration that is taken back ends with exit code %d, not 2", code)
	}
	saying(p.t, []string{"migrate"}, out).has("gadgets.example.com: cancelled: the migration ")
	saying(p.t, []string{"migrate"}, complaints).has("1 of 1 migrations did not succeed: gadgets.example.com")
}

// stored counts the widgets in raw etcd by version.
func stored(w *beside.Widgets) map[string]int {
	t := w.Server.Cluster.T
	t.Helper()
	counts, err := w.Stored(t.Context(), 0)
	must(t, err)
	return counts
}

// theMigration returns the only migration of the widgets.
func theMigration(p *plugin, w *beside.Widgets) migrationv1alpha1.StorageVersionMigration {
	p.t.Helper()
	all, err := w.Migrations(p.t.Context())
	if err != nil || len(all) != 1 {
		p.t.Fatalf("there are %d migrations, %v", len(all), err)
	}
	return all[0]
}

// onlyIn writes a CRD of the widgets that has only this version into a file, and returns its path.
func onlyIn(w *beside.Widgets, version string) string {
	return w.Server.Cluster.Write("only-"+version+".yaml", `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  versions:
  - {name: `+version+`, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`)
}
