package collect

import (
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// TestAggregatedServer: the report of an aggregated API server stands as long as its Lease
// is there, which only its own kind deletes; and nobody waits for reports that it may make.
func TestAggregatedServer(t *testing.T) {
	w := newWorld(t, every10s)
	w.renew("a", true)
	name := agree.ServerID("apiserver-00c0ffee00c0ffee")
	w.renewStock(string(name), func(l *coordinationv1.Lease) {
		l.Labels[storageversion.AggregatedLabel] = "5a1c"
		l.Annotations[storageversion.BinaryVersionAnnotation] = "1.2"
		l.Spec.LeaseDurationSeconds = ptr.To[int32](20)
	})
	w.setReports("wardle.example.com.flunders", name)
	w.label("wardle.example.com.flunders")
	w.setReports("core.secrets")
	w.observe(15*time.Minute, func() {})
	w.expectServers("wardle.example.com.flunders", string(name)+"=v1")
	w.expectServers("core.secrets", "none")
	if !w.hasLease(name) {
		t.Fatal("its Lease was deleted")
	}
	must(t, w.c.Bury(t.Context(), name))
	w.observe(10*time.Second, func() {})
	w.expectServers("wardle.example.com.flunders", "=")
}

// label says of a StorageVersion that an aggregated server has made it.
func (w *world) label(name string) {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{}
	must(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, sv))
	sv.Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"}
	must(w.t, w.client.Update(w.t.Context(), sv))
}

// TestAggregatedVacancy: the StorageVersion of an aggregated server is kept without reports for as long as
// the server may take to come, or to come back, and no longer.
func TestAggregatedVacancy(t *testing.T) {
	const flunders = "wardle.example.com.flunders"
	w := newWorld(t, every10s)
	w.renew("a", true)
	w.setReports(flunders) // as it is made
	w.label(flunders)
	w.observe(9*time.Minute, func() {})
	w.expectServers(flunders, "=")
	aggregated := func(l *coordinationv1.Lease) {
		l.Labels[storageversion.AggregatedLabel] = "5a1c"
		l.Annotations[storageversion.BinaryVersionAnnotation] = "1.2"
	}
	w.renewStock("apiserver-00c0ffee00c0ffee", aggregated)
	w.setReports(flunders, "apiserver-00c0ffee00c0ffee")
	w.observe(20*time.Minute, func() {})
	w.expectServers(flunders, "apiserver-00c0ffee00c0ffee=v1")
	must(t, w.c.Bury(t.Context(), "apiserver-00c0ffee00c0ffee"))
	w.observe(9*time.Minute, func() {})
	w.expectServers(flunders, "=")
	w.observe(3*time.Minute, func() {})
	w.expectServers(flunders, "none")

	// Its Lease is all that is lost: the report goes in one sweep, and the StorageVersion later.
	w.renewStock("apiserver-00c0ffee00c0ffee", aggregated)
	w.setReports(flunders, "apiserver-00c0ffee00c0ffee")
	w.label(flunders)
	w.observe(20*time.Minute, func() {})
	must(t, w.c.deleteLease(t.Context(), "apiserver-00c0ffee00c0ffee"))
	w.observe(time.Minute, func() {})
	w.expectServers(flunders, "=")
}

// TestAggregatedOwing: nobody agrees without an aggregated server that may write and whose report is lost, also
// if its Lease came to say so after the others had read it.
func TestAggregatedOwing(t *testing.T) {
	const flunders = "wardle.example.com.flunders"
	w := newWorld(t)
	w.c.watched.Store(true)
	w.renew("a", true)
	r1 := agree.ServerID("apiserver-00c0ffee00c0ffee")
	aggregated := func(l *coordinationv1.Lease) {
		l.Labels[storageversion.AggregatedLabel] = "5a1c"
		l.Annotations[storageversion.BinaryVersionAnnotation] = "1.2"
		l.Annotations[storageversion.AggregatedResourcesAnnotation] = "flunders.wardle.example.com"
	}
	w.renewStock(string(r1), aggregated)
	w.renewStock("apiserver-00c0ffee00c0ffff", aggregated)
	w.setReports(flunders, "apiserver-00c0ffee00c0ffff")
	w.setReports("wardle.example.com.fischers", "apiserver-00c0ffee00c0ffff")
	w.pass(3, true, "a")
	w.expectServers(flunders, "apiserver-00c0ffee00c0ffff=v1")
	w.renewStock(string(r1), aggregated, func(l *coordinationv1.Lease) { l.Annotations[storageversion.ReportedAnnotation] = "true" })
	w.pass(1, true, "a")
	w.expectServers(flunders, "apiserver-00c0ffee00c0ffff,"+string(r1)+"=")
	w.expectServers("wardle.example.com.fischers", "apiserver-00c0ffee00c0ffff=v1")
	must(t, w.c.Bury(t.Context(), r1))
	w.expectServers(flunders, "apiserver-00c0ffee00c0ffff=v1")
}

// TestAggregatedServersRenewNobody: that the Lease of an aggregated server is put does not
// say that those of this cluster's servers could be.
func TestAggregatedServersRenewNobody(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("b", true)
	lease := func(l *coordinationv1.Lease) {
		l.Labels[storageversion.AggregatedLabel] = "5a1c"
		l.Annotations[storageversion.BinaryVersionAnnotation] = "1.2"
	}
	for range 60 { // a minute, in which nobody else renews
		w.renewStock("apiserver-00c0ffee00c0ffee", lease)
		w.clock.Step(time.Second)
		must(t, w.c.Step(t.Context(), true))
	}
	for _, id := range []agree.ServerID{"a", "b"} {
		if !w.hasLease(id) {
			t.Errorf("the Lease of %s was deleted, of a time in which only an aggregated server renewed", id)
		}
	}
}
