package collect

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/testbed/fakeapi"
)

var errBroken = errors.New("connection refused")

// world is a fake API with one collector. The calls of the collector are recorded, and a test can
// make them fail.
type world struct {
	*fakeapi.API
	t      *testing.T
	client client.WithWatch // the API without recording and failures
	clock  *clocktesting.FakeClock
	c      *Collector
}

func newWorld(t *testing.T, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.API = fakeapi.New(t, fakeapi.Config{
		Types: []func(*runtime.Scheme) error{v1alpha1.AddToScheme, coordinationv1.AddToScheme}, Statuses: []client.Object{&v1alpha1.StorageVersion{}},
		Ignored: []string{"get", "create", "update"},
	})
	w.client = w.Raw
	cfg := Config{Client: w.API, Workers: 1, Clock: w.clock}
	for _, e := range edit {
		e(&cfg)
	}
	w.c = New(cfg)
	return w
}

// renew creates or renews a Lease with a duration of 15 s. The fake API does not check uids.
func (w *world) renew(id agree.ServerID, reported bool) {
	w.t.Helper()
	seconds, now := int32(15), metav1.NewMicroTime(w.clock.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: string(id), Namespace: "kube-system", UID: types.UID("uid-" + id),
		Labels:            map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
		CreationTimestamp: metav1.NewTime(w.clock.Now()),
	}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Spec = coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &now}
	lease.Annotations = map[string]string{storageversion.BinaryVersionAnnotation: "1.37"}
	if reported {
		lease.Annotations[storageversion.ReportedAnnotation] = "true"
	}
	if err != nil {
		err = w.client.Create(w.t.Context(), lease)
	} else {
		err = w.client.Update(w.t.Context(), lease)
	}
	must(w.t, err)
}

func (w *world) setReports(name string, servers ...agree.ServerID) {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(sv), sv)
	var reports []agree.Report
	for _, s := range servers {
		enc := agree.Encoding("v1")
		if strings.HasPrefix(string(s), "old") {
			enc = "v0"
		}
		reports = append(reports, agree.Report{Server: s, Encoding: enc, Decodable: []string{string(enc)}})
	}
	storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
	if err != nil {
		err = w.client.Create(w.t.Context(), sv)
	} else {
		err = w.client.Status().Update(w.t.Context(), sv)
	}
	must(w.t, err)
}

// servers returns the servers that report, and the encoding that they agree on; "none" if there is
// no StorageVersion.
func (w *world) servers(name string) string {
	w.t.Helper()
	sv := &v1alpha1.StorageVersion{}
	if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: name}, sv); err != nil {
		if apierrors.IsNotFound(err) {
			return "none"
		}
		w.t.Fatal(err)
	}
	var ids []string
	for _, r := range storageversion.Reports(sv) {
		ids = append(ids, string(r.Server))
	}
	common, _ := storageversion.Agreement(sv)
	return strings.Join(ids, ",") + "=" + string(common)
}

func (w *world) expectServers(name, want string) {
	w.t.Helper()
	if got := w.servers(name); got != want {
		w.t.Errorf("%s: reported by %s, want %s", name, got, want)
	}
}

func (w *world) hasLease(id agree.ServerID) bool {
	return w.client.Get(w.t.Context(), client.ObjectKey{Namespace: "kube-system", Name: string(id)}, &coordinationv1.Lease{}) == nil
}

// pass lets time go by in steps of a second; in each, the servers named renew their Leases and the
// collector steps.
func (w *world) pass(seconds int, leader bool, alive ...agree.ServerID) {
	w.t.Helper()
	for range seconds {
		w.clock.Step(time.Second)
		for _, id := range alive {
			w.renew(id, true)
		}
		if err := w.c.Step(w.t.Context(), leader); err != nil {
			w.t.Fatalf("Step: %v", err)
		}
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
