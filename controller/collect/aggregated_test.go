package collect

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

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
	w.setReports("core.secrets")
	w.observe(5*time.Minute, func() {})
	w.expectServers("wardle.example.com.flunders", string(name)+"=v1")
	w.expectServers("core.secrets", "none")
	if !w.hasLease(name) {
		t.Fatal("its Lease was deleted")
	}
	if err := w.c.Bury(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	w.observe(10*time.Second, func() {})
	w.expectServers("wardle.example.com.flunders", "none")
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
		if err := w.c.Step(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []agree.ServerID{"a", "b"} {
		if !w.hasLease(id) {
			t.Errorf("the Lease of %s was deleted, of a time in which only an aggregated server renewed", id)
		}
	}
}
