package collect

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// TestAggregatedServer: the report of an aggregated API server stays as long as its Lease exists, which only
// other aggregated servers delete. An aggregated server that has not reported keeps no StorageVersions from
// being deleted.
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

// label marks a StorageVersion as made by an aggregated API server.
func (w *world) label(name string) {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{}
	must(w.t, w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, sv))
	sv.Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"}
	must(w.t, w.client.Update(w.t.Context(), sv))
}

// TestAggregatedVacancy: the StorageVersion of an aggregated API server stays without reports for 10 minutes,
// in which the server may start or start again, and is then deleted.
func TestAggregatedVacancy(t *testing.T) {
	const flunders = "wardle.example.com.flunders"
	w := newWorld(t, every10s)
	w.renew("a", true)
	w.setReports(flunders) // without a report, as just created
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

	// If only the Lease is deleted, the report is dropped in one sweep, and the StorageVersion is deleted
	// later.
	w.renewStock("apiserver-00c0ffee00c0ffee", aggregated)
	w.setReports(flunders, "apiserver-00c0ffee00c0ffee")
	w.label(flunders)
	w.observe(20*time.Minute, func() {})
	must(t, w.c.deleteLease(t.Context(), "apiserver-00c0ffee00c0ffee"))
	w.observe(time.Minute, func() {})
	w.expectServers(flunders, "=")
}

// TestAggregatedOwing: servers do not agree without an aggregated API server that may write and whose report is
// lost, also if its Lease says that it has reported only after the collector read the reports.
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

// TestAggregatedServersRenewNobody: a renewal of an aggregated API server's Lease does not prove that the
// servers of this cluster could renew theirs.
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

// stock is the name of the Lease of a kube-apiserver without Concord.
const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"

// renewStock writes a Lease as kube-apiserver does; kube-apiserver renews it every 10 s.
func (w *world) renewStock(name string, edit ...func(*coordinationv1.Lease)) {
	w.t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: "kube-system", UID: types.UID("uid-" + name),
		Labels:            map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
		Annotations:       map[string]string{"kubernetes.io/peer-advertise-address": "10.0.0.1:6443"},
		CreationTimestamp: metav1.NewTime(w.clock.Now()),
	}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Spec = coordinationv1.LeaseSpec{
		HolderIdentity: ptr.To(name + "_" + "5a1c"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NewMicroTime(w.clock.Now())),
	}
	for _, e := range edit {
		e(lease)
	}
	if err != nil {
		err = w.client.Create(w.t.Context(), lease)
	} else {
		err = w.client.Update(w.t.Context(), lease)
	}
	must(w.t, err)
}

// observe lets time pass, with an observation every 10 s. Before each, server a renews its Lease and the
// function each is called.
func (w *world) observe(d time.Duration, each func()) {
	w.t.Helper()
	for range d / (10 * time.Second) {
		w.clock.Step(10 * time.Second)
		w.renew("a", true)
		each()
		if err := w.c.Step(w.t.Context(), true); err != nil {
			w.t.Fatalf("Step: %v", err)
		}
	}
}

func every10s(c *Config) { c.Interval = 10 * time.Second }

// TestStockServer: the Lease of a kube-apiserver without Concord keeps the others from agreeing from the next
// observation on. The Lease has a duration of an hour, and is not deleted before an hour has passed since its
// renewal.
func TestStockServer(t *testing.T) {
	w := newWorld(t, every10s)
	w.c.watched.Store(true)
	w.renew("a", true)
	w.setReports("core.secrets", "a")
	w.observe(time.Minute, func() {})
	w.expectServers("core.secrets", "a=v1")

	w.observe(2*time.Hour, func() { w.renewStock(stock) })
	w.expectServers("core.secrets", "a,"+stock+"=")
	sv := &v1alpha1.StorageVersion{}
	must(t, w.client.Get(t.Context(), client.ObjectKey{Name: "core.secrets"}, sv))
	if c := sv.Status.Conditions[0]; c.Status != v1alpha1.ConditionFalse || !strings.Contains(c.Message, stock+" (kube-apiserver without Concord") ||
		!strings.Contains(c.Message, "kubectl delete lease -n kube-system "+stock) {
		t.Errorf("the condition is %+v", c)
	}
	revision := sv.ResourceVersion
	w.observe(3590*time.Second, func() {})
	if !w.hasLease(stock) {
		t.Fatal("a stock Lease was deleted within its hour")
	}
	if err := w.client.Get(t.Context(), client.ObjectKey{Name: "core.secrets"}, sv); err != nil || sv.ResourceVersion != revision {
		t.Errorf("the StorageVersion was written although nothing changed: %v", err)
	}
	w.observe(30*time.Second, func() {})
	if w.hasLease(stock) {
		t.Error("the Lease is there for longer than it says")
	}
	w.expectServers("core.secrets", "a=v1")
}

// TestStockServerIsNotWaitedFor: a stock server never reports, so a StorageVersion without reports is not kept
// for it.
func TestStockServerIsNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renewStock(stock)
	w.setReports("core.secrets")
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "none")
}

// TestUpstreamsOwnLease: the Lease that upstream's code keeps in a Concord process is no participant, also
// after a crash of the process. It is deleted when it was not renewed for its own duration.
func TestUpstreamsOwnLease(t *testing.T) {
	w := newWorld(t, every10s)
	w.renew("a", true)
	name := storageversion.NewUpstreamIdentity()
	w.setReports("core.secrets", "a")
	w.observe(2*time.Hour, func() { w.renewStock(name) })
	w.observe(3590*time.Second, func() {})
	w.expectServers("core.secrets", "a=v1")
	if !w.hasLease(agree.ServerID(name)) {
		t.Error("it was deleted within its hour")
	}
	w.observe(30*time.Second, func() {})
	w.expectServers("core.secrets", "a=v1")
	if w.hasLease(agree.ServerID(name)) {
		t.Error("it is there for longer than it says")
	}
}

// TestLeaseThatTellsLittle: a Lease without a duration expires after an hour, the duration of kube-apiserver's
// Leases. A Lease without a renewTime expires when it was not written at all for its duration.
func TestLeaseThatTellsLittle(t *testing.T) {
	noDuration := func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = nil }
	for name, edit := range map[string]func(*coordinationv1.Lease){
		"no duration":     noDuration,
		"no whole second": func(l *coordinationv1.Lease) { l.Spec.LeaseDurationSeconds = ptr.To[int32](0) },
		"no renewTime":    func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil },
		"nothing at all":  func(l *coordinationv1.Lease) { l.Spec = coordinationv1.LeaseSpec{} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, every10s)
			n := 0
			touched := func(l *coordinationv1.Lease) {
				edit(l)
				n++
				l.Annotations["touched"] = fmt.Sprint(n)
			}
			w.renew("a", true)
			w.observe(65*time.Minute, func() { w.renewStock(stock, touched) })
			w.observe(59*time.Minute, func() {})
			if !w.hasLease(stock) {
				t.Fatal("it was deleted within an hour of being written")
			}
			w.observe(2*time.Minute, func() {})
			if w.hasLease(stock) {
				t.Error("it is never deleted")
			}
		})
	}
}
