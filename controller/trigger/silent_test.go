package trigger

import (
	"context"
	"slices"
	"strings"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"

// reportBeside writes the StorageVersion as a server does that sees these silent ones.
func (w *world) reportBeside(silent ...agree.ServerID) {
	w.t.Helper()
	w.report(append(slices.Repeat([]agree.Encoding{agree.Unknown}, min(len(silent), 1)), v1)...) // the epoch
	w.Quietly(func() {
		sv := &apiserverinternalv1alpha1.StorageVersion{}
		w.must(w.client.Get(context.Background(), client.ObjectKey{Name: storageversion.Name(cronJobs)}, sv))
		why := map[agree.ServerID]agree.Silence{}
		for _, id := range silent {
			why[id] = agree.Stock
		}
		reports := agree.Settle(storageversion.Reports(sv), agree.NewParticipants([]agree.ServerID{"apiserver-1"}, why))
		storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
		w.must(w.client.Status().Update(context.Background(), sv))
	})
}

// stock makes a Lease as kube-apiserver does.
func (w *world) stock(name string) {
	w.t.Helper()
	lease := w.lease(name, false)
	lease.Annotations, lease.Spec.LeaseDurationSeconds = nil, ptr.To[int32](3600)
	w.Quietly(func() { w.must(w.client.Update(context.Background(), lease)) })
}

func (w *world) user(name string) {
	w.t.Helper()
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: cronJobs.Group, Version: "v1", Resource: cronJobs.Resource},
	}}
	m.Name = name
	w.Quietly(func() { w.must(w.client.Create(context.Background(), m)) })
}

// waits returns what the only migration says that it waits for, and the number of events
// that tell of it.
func (w *world) waits() (string, int) {
	w.t.Helper()
	var events corev1.EventList
	w.Quietly(func() { w.must(w.client.List(context.Background(), &events)) })
	n := 0
	for _, e := range events.Items {
		if e.Reason == migrationv1alpha1.ReasonWaitingForAgreement && e.InvolvedObject.Name == "mine" {
			n++
		}
	}
	all := w.migrations()
	if len(all) != 1 {
		w.t.Fatalf("%d migrations, want one", len(all))
	}
	return migrationv1alpha1.Waiting(&all[0]), n
}

// TestBesideAStockServer: a migration that waits, and the state, name the server for which
// others report Unknown, and its Lease; there is one event, when it begins to wait, and
// nothing is written while nothing changes.
func TestBesideAStockServer(t *testing.T) {
	w, c := newWorld(t, served)
	w.reportBeside(stock)
	w.user("mine")
	w.settle(c)
	want := "1 server does not report what it encodes: " + stock + " (kube-apiserver without Concord, identity Lease kube-system/" + stock + ")"
	why, events := w.waits()
	if !strings.HasPrefix(why, want) || !strings.HasSuffix(why, "kubectl delete lease -n kube-system "+stock) || events != 1 {
		t.Errorf("the migration waits for %q, with %d events; want %q", why, events, want)
	}
	if state := w.state(); state.Status.CurrentEncoding != migrationv1alpha1.Unknown || state.Status.Message != why {
		t.Errorf("the state says %+v", state.Status)
	}
	w.wantEvent("mine", migrationv1alpha1.ReasonWaitingForAgreement)
	if done := w.settle(c); len(done) > 0 {
		t.Errorf("nothing has changed, and was done: %v", done)
	}

	w.reportBeside(stock, "apiserver-another")
	w.settle(c)
	if why, events := w.waits(); !strings.Contains(why, "apiserver-another") || !strings.Contains(why, stock) || events != 1 {
		t.Errorf("beside two, it waits for %q, with %d events; want one", why, events)
	}

	w.report(v1)
	w.settle(c)
	m := w.migrations()[0]
	if why, _ := w.waits(); why != "" || migrationv1alpha1.TargetOf(&m).Encoding != v1 {
		t.Errorf("when all agree it waits for %q, for the target %s", why, migrationv1alpha1.TargetOf(&m))
	}
	if state := w.state(); state.Status.Message != "" || state.Status.CurrentEncoding != string(v1) {
		t.Errorf("the state says %+v", state.Status)
	}
}

// TestStockServerIsNotStarting: no migration waits for a report that never comes, nor for
// the report of a Lease that upstream's code keeps in a Concord process.
func TestStockServerIsNotStarting(t *testing.T) {
	for _, name := range []string{stock, storageversion.NewUpstreamIdentity()} {
		w, c := newWorld(t, served)
		w.lease("apiserver-0", true)
		w.stock(name)
		w.report(v1)
		w.settle(c)
		if len(w.migrations()) != 1 {
			t.Errorf("a migration waits for %s", name)
		}
	}
}
