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

// stock is a name as kube-apiserver without Concord has it.
const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"

// renewStock writes a Lease as kube-apiserver does, which renews it every 10 s.
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

// observe lets time pass, with an observation every 10 s; before every one server a
// renews its Lease and the function each is called.
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

// TestStockServer: the Lease of a kube-apiserver without Concord keeps the others from
// agreeing from the next observation on. It lives for as long as it says itself, an hour
// after the last renewal, and nobody deletes it before.
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

// TestStockServerGoes: somebody deletes the Lease of a stock server that is gone.
func TestStockServerGoes(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renewStock(stock)
	w.setReports("core.secrets", "a")
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "a,"+stock+"=")
	must(t, w.client.Delete(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: stock}}))
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "a=v1")
}

// TestStockServerIsNotWaitedFor: it will never report, so that StorageVersions which nobody
// reports are not kept for it.
func TestStockServerIsNotWaitedFor(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renewStock(stock)
	w.setReports("core.secrets")
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "none")
}

// TestUpstreamsOwnLease: the Lease that upstream's code keeps in a Concord process, also
// when that has crashed, is no participant. It is deleted when it was not renewed for as long as it says.
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

// TestLeaseThatTellsLittle: a Lease without a duration lives as long as kube-apiserver's; one
// without a renewTime, as long as anything about it is written.
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
