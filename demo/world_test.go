package demo

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

// The prefixes of the keys of the objects that API servers share.
const (
	versionsPrefix = root + "storageversions/"
	leasesPrefix   = root + "leases/" + storageversion.IdentityNamespace + "/"
	statesPrefix   = root + migrationv1alpha1.GroupName + "/storagestates/"
	svmPrefix      = root + migrationv1alpha1.GroupName + "/storageversionmigrations/"
)

// prefixOf returns the prefix of the keys of a resource's objects; custom resources have their
// group in the key.
func prefixOf(gr schema.GroupResource) string {
	if gr == workload.Gadgets {
		return root + gr.Group + "/" + gr.Resource + "/"
	}
	return root + gr.Resource + "/"
}

// history feeds a world with events, one revision each.
type history struct {
	t        *testing.T
	world    *world
	revision int64
}

func newHistory(t *testing.T) *history { return &history{t: t, world: newWorld()} }

func (h *history) put(key string, value []byte) {
	h.t.Helper()
	h.revision++
	h.world.apply(ledger.Event{Revision: h.revision, Key: key, Value: value, At: at(int(h.revision))})
	if h.world.broken != nil {
		h.t.Fatal(h.world.broken)
	}
}

func (h *history) remove(key string) {
	h.t.Helper()
	h.put(key, nil)
}

func (h *history) protobuf(object runtime.Object, gv schema.GroupVersion) []byte {
	h.t.Helper()
	codec := scheme.Codecs.EncoderForVersion(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), gv)
	raw, err := runtime.Encode(codec, object)
	if err != nil {
		h.t.Fatal(err)
	}
	return raw
}

func (h *history) json(object any) []byte {
	h.t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		h.t.Fatal(err)
	}
	return raw
}

func (h *history) lease(id, release string) {
	h.put(leasesPrefix+id, h.protobuf(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: id, Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
		Annotations: map[string]string{storageversion.EmulationVersionAnnotation: release},
	}}, coordinationv1.SchemeGroupVersion))
}

func (h *history) reports(gr schema.GroupResource, epoch int64, encodings map[agree.ServerID]agree.Encoding) {
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(gr), UID: "u"}}
	var reports []agree.Report
	last := map[agree.Encoding]int64{}
	for id, encoding := range encodings {
		reports = append(reports, agree.Report{Server: id, Encoding: encoding, Decodable: []string{string(encoding)}})
		last[encoding] = epoch
	}
	storageversion.SetReports(sv, reports, metav1.Now())
	storageversion.SetHistory(sv, agree.History{Epoch: epoch, Last: last})
	h.put(versionsPrefix+sv.Name, h.protobuf(sv, v1alpha1.SchemeGroupVersion))
}

func (h *history) state(gr schema.GroupResource, epoch int64, stored ...string) {
	h.put(statesPrefix+gr.String(), h.json(migrationv1alpha1.StorageState{
		TypeMeta: metav1.TypeMeta{APIVersion: "migration.k8s.io/v1alpha1", Kind: "StorageState"},
		Spec:     migrationv1alpha1.StorageStateSpec{Resource: migrationv1alpha1.GroupResource{Group: gr.Group, Resource: gr.Resource}},
		Status:   migrationv1alpha1.StorageStateStatus{PersistedEncodings: stored, StorageVersionUID: "u", Epoch: epoch},
	}))
}

func TestWorldFollowsServers(t *testing.T) {
	h := newHistory(t)
	h.world.expect("server-1")
	h.lease("id1", "1.36")
	h.world.expect("server-2")
	h.lease("id2", "1.36")
	h.put(leasesPrefix+"other", h.protobuf(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, coordinationv1.SchemeGroupVersion))
	if id, ok := h.world.registered("server-2"); !ok || id != "id2" || h.world.Servers[id].Release != "1.36" || len(h.world.Servers) != 2 {
		t.Errorf("server-2 is %q, %v, among %v", id, ok, h.world.Servers)
	}
	h.remove(leasesPrefix + "id1")
	if _, ok := h.world.registered("server-1"); ok || h.world.Servers["id1"].Gone != h.revision {
		t.Error("server-1 is registered without a Lease")
	}
	// The server registers again although that was not expected, because its Lease was deleted.
	h.lease("id3", "1.36")
	if id, ok := h.world.registered("server-1"); !ok || id != "id3" {
		t.Errorf("server-1 is %q, %v", id, ok)
	}
}

func TestWorldFollowsStorage(t *testing.T) {
	h := newHistory(t)
	for _, name := range []string{"server-1", "server-2"} {
		h.world.expect(name)
		h.lease("id-"+name, "1.36")
	}
	both := []string{"server-1", "server-2"}
	want := map[schema.GroupResource]agree.Encoding{workload.Policies: "admissionregistration.k8s.io/v1"}
	assert := func(lack string) {
		t.Helper()
		if got := h.world.unsettled(both, want); lack == "" && got != "" || !strings.Contains(got, lack) {
			t.Errorf("unsettled = %q, want %q", got, lack)
		}
	}
	assert("it has no StorageVersion")
	h.reports(workload.Policies, 1, map[agree.ServerID]agree.Encoding{"id-server-1": "admissionregistration.k8s.io/v1beta1"})
	assert("1 of 2 reports")
	joined := h.revision
	h.reports(workload.Policies, 2, map[agree.ServerID]agree.Encoding{"id-server-1": "admissionregistration.k8s.io/v1beta1", "id-server-2": "admissionregistration.k8s.io/v1"})
	assert("servers report")
	h.reports(workload.Policies, 3, map[agree.ServerID]agree.Encoding{"id-server-1": "admissionregistration.k8s.io/v1", "id-server-2": "admissionregistration.k8s.io/v1"})
	assert("it has no StorageState")
	h.state(workload.Policies, 2, "admissionregistration.k8s.io/v1")
	assert("for u/2")
	h.state(workload.Policies, 3, "admissionregistration.k8s.io/v1")
	assert("")
	definition := root + "apiextensions.k8s.io/customresourcedefinitions/" + workload.Gadgets.String()
	crd := workload.Definition(workload.CustomVersions[0])
	crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
	h.put(definition, h.json(crd))
	assert(workload.Gadgets.String() + ": 0 of 2 reports")
	h.remove(definition)
	assert("")
	if lack := h.world.unreported("server-2"); lack != "" {
		t.Errorf("unreported = %q", lack)
	}
	if got := h.world.Of(workload.Policies).Joined["id-server-1"]; got != joined {
		t.Errorf("server-1 joined at %d, want %d", got, joined)
	}
	h.remove(leasesPrefix + "id-server-2")
	assert("server-2 is not registered")
	if got := h.world.reportedBy("id-server-2"); !strings.Contains(got, "still reported") {
		t.Errorf("reportedBy = %q", got)
	}
	h.remove(versionsPrefix + storageversion.Name(workload.Policies))
	if got := h.world.reportedBy("id-server-2"); got != "" {
		t.Errorf("reportedBy = %q without a StorageVersion", got)
	}
}

func TestWorldTellsWritesFromRewrites(t *testing.T) {
	h := newHistory(t)
	object := func(gr schema.GroupResource, name string, m load.Mark) []byte {
		body, err := workload.NewBody(load.Key{Resource: gr, Name: name}, "v1", m)
		if err != nil {
			t.Fatal(err)
		}
		if raw, ok := body.([]byte); ok {
			return raw
		}
		return h.protobuf(body.(runtime.Object), schema.GroupVersion{Group: workload.Policies.Group, Version: "v1"})
	}
	m := load.Mark{Counter: 1, Attempt: "w1-1", Via: "server-1"}
	for _, gr := range workload.Shown {
		writer, loaded := prefixOf(gr)+workload.WriterPrefix+"a", prefixOf(gr)+workload.LoadPrefix+"a"
		h.put(writer, object(gr, "a", m))
		h.put(loaded, object(gr, "a", m))
		h.put(writer, object(gr, "a", m)) // a rewrite
		h.put(loaded, object(gr, "a", m)) // a rewrite
		h.put(writer, object(gr, "a", load.Mark{Counter: 2, Attempt: "w1-2", Via: "server-2"}))
	}
	journal, bursts := h.world.journal, h.world.bursts
	if len(journal) != 2*len(workload.Shown) || journal[1].mark != (load.Mark{Counter: 2, Attempt: "w1-2", Via: "server-2"}) || journal[1].revision != 5 {
		t.Errorf("journal %+v", journal)
	}
	for _, gr := range workload.Shown {
		if _, done, total := countsOf(h.world.Of(gr).Counts, agree.Encoding(gr.Group+"/v1")); done != 2 || total != 2 {
			t.Errorf("%s: %d of %d objects are in %s", gr, done, total, agree.Encoding(gr.Group+"/v1"))
		}
	}
	h.remove(prefixOf(workload.Gadgets) + workload.LoadPrefix + "a")
	if text, _, total := countsOf(h.world.Of(workload.Gadgets).Counts, ""); text != "v1 1" || total != 1 {
		t.Errorf("after a deletion %q are stored", text)
	}
	if len(bursts) != len(workload.Shown) {
		t.Fatalf("bursts %+v", bursts)
	}
	for _, b := range bursts {
		if b.objects != 2 || b.last.Sub(b.first) != time.Second {
			t.Errorf("burst %+v, want 2 objects in 1s", b)
		}
	}
}

func TestWorldFollowsMigrations(t *testing.T) {
	h := newHistory(t)
	svm := migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	svm.APIVersion, svm.Kind = "migration.k8s.io/v1alpha1", "StorageVersionMigration"
	svm.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: workload.Gadgets.Group, Version: "v1", Resource: workload.Gadgets.Resource}
	h.put(svmPrefix+"m", h.json(svm))
	svm.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationRunning, Status: "True"}}
	svm.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 10, Done: 4}
	h.put(svmPrefix+"m", h.json(svm))
	started := at(int(h.revision))
	for range 2 {
		h.put(prefixOf(workload.Gadgets)+workload.LoadPrefix+"a", h.json(map[string]string{"apiVersion": workload.CustomGroup + "/v1", "kind": "Gadget"}))
	}
	if bursts := h.world.bursts; len(bursts) != 1 || !bursts[0].first.Equal(started) {
		t.Errorf("bursts %+v, want one since the migration runs", bursts)
	}
	m := h.world.latest(workload.Gadgets)
	if m == nil || m.Phase != evolve.Running || m.Progress.Done != 4 {
		t.Errorf("migration %+v", m)
	}
	svm.UID = types.UID("m2")
	svm.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationRunning, Status: "False"},
		{Type: migrationv1alpha1.MigrationFailed, Status: "True", Reason: "AgreementLost"},
	}
	h.put(svmPrefix+"m2", h.json(svm))
	if m = h.world.latest(workload.Gadgets); m.Phase != evolve.Failed || m.Reason != "AgreementLost" {
		t.Errorf("the newest migration is %+v", m)
	}
}

func TestWorldKnowsWhatItHasNotSeen(t *testing.T) {
	h := newHistory(t)
	h.put(root+"configmaps/a/b", []byte("?")) // the census counts it
	h.world.apply(ledger.Event{Key: versionsPrefix + "core.a", Value: []byte("?"), Revision: 9})
	if h.world.broken == nil {
		t.Error("an unreadable StorageVersion is not noticed")
	}
}
