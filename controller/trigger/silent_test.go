package trigger

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"

// reportBeside writes the StorageVersion as a server does beside these servers, which do not report.
func (w *world) reportBeside(silent ...agree.ServerID) {
	w.t.Helper()
	w.report(append(slices.Repeat([]agree.Encoding{agree.Unknown}, min(len(silent), 1)), v1)...) // for the epoch and the history
	w.Quietly(func() {
		sv := w.storageVersion()
		why := map[agree.ServerID]agree.Silence{}
		for _, id := range silent {
			why[id] = agree.Stock
		}
		reports := agree.Settle(storageversion.Reports(sv), agree.NewParticipants([]agree.ServerID{"apiserver-1"}, why))
		storageversion.SetReports(sv, reports, metav1.NewTime(w.clock.Now()))
		w.must(w.client.Status().Update(context.Background(), sv))
	})
}

// stock makes the Lease of a kube-apiserver without Concord.
func (w *world) stock(name string) {
	w.t.Helper()
	lease := w.lease(name, false)
	lease.Annotations, lease.Spec.LeaseDurationSeconds = nil, ptr.To[int32](3600)
	w.Quietly(func() { w.must(w.client.Update(context.Background(), lease)) })
}

// waits returns the reason for which the only migration waits, by its status, and the number of Events
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

// TestBesideAStockServer: a migration that waits, and the StorageState, name the stock server and its
// Lease. There is one Event, when the migration begins to wait, and nothing is written while nothing
// changes.
func TestBesideAStockServer(t *testing.T) {
	w, c := newWorld(t, served)
	w.reportBeside(stock)
	w.user("mine", "v1")
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

// TestStockServerIsNotStarting: no migration waits for the report of a stock server, which never comes,
// nor for one of the Lease that upstream's code keeps in a Concord process.
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

const settle = time.Minute

// settling returns a world in which everything was migrated, at once. After a server that does not report has gone,
// its trigger waits for the time settle.
func settling(t *testing.T) (*world, *Controller) {
	t.Helper()
	w, c := newWorld(t, served)
	c.cfg.Settle = settle
	w.report(v1)
	w.wantBegun(c, true, "in a new cluster")
	w.migrated(c)
	return w, c
}

// migrated ends the only migration, and expects that nothing is left to migrate.
func (w *world) migrated(c *Controller) {
	w.t.Helper()
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	if stored := w.state().Status.PersistedEncodings; len(stored) != 1 || len(w.migrations()) != 1 {
		w.t.Fatalf("stored are %v, there are %d migrations", stored, len(w.migrations()))
	}
}

// begun lets the trigger do everything that is due, and counts the migrations that have a target and have
// not ended.
func (w *world) begun(c *Controller) (n int) {
	w.t.Helper()
	w.settle(c)
	for _, m := range w.migrations() {
		if !migrationv1alpha1.Final(&m) && migrationv1alpha1.TargetOf(&m).Encoding != "" {
			n++
		}
	}
	return n
}

// wantBegun asserts that there is such a migration, or that there is none.
func (w *world) wantBegun(c *Controller, want bool, when string) {
	w.t.Helper()
	if n := w.begun(c); (n > 0) != want {
		w.t.Errorf("%s: %d migrations have begun, want any: %t", when, n, want)
	}
}

// TestSettles: after a server that did not report has gone, no migration begins for the time settle. That
// time begins again when another such server has come and gone, and in a new leader, but not once everything was
// migrated since.
func TestSettles(t *testing.T) {
	w, c := settling(t)
	w.reportBeside(stock)
	w.wantBegun(c, false, "beside a stock server")
	w.clock.Step(2 * settle)
	w.report(v1)
	w.wantBegun(c, false, "when it has gone")
	w.clock.Step(settle - time.Second)
	w.wantBegun(c, false, "a second before the time is over")

	w.report(agree.Unknown, v1)
	w.report(v1)
	w.wantBegun(c, false, "when another has come and gone between two looks")
	w.clock.Step(settle - time.Second)
	w.wantBegun(c, false, "a second before the time after that one is over")
	leader := newController(c.cfg)
	w.wantBegun(leader, false, "on a new leader")
	w.clock.Step(settle - time.Second)
	w.wantBegun(leader, false, "a second before its time is over")
	w.clock.Step(time.Second)
	w.wantBegun(leader, true, "when it is over")
	w.migrated(leader)
	w.report(v2)
	w.wantBegun(newController(c.cfg), true, "on a new leader, for another version")
}

func TestSettlesBeforeUsersMigrations(t *testing.T) {
	w, c := settling(t)
	w.user("mine", "v1")
	w.settle(c)
	w.reportBeside(stock)
	w.settle(c)
	w.user("other", "v1")
	w.report(v1)
	result := w.step(c)
	for result.Again {
		result = w.step(c)
	}
	if result.After > settle || result.After <= 0 {
		t.Errorf("looks again after %s", result.After)
	}
	waiting := func() (n int) {
		for _, m := range w.migrations() {
			if migrationv1alpha1.Waiting(&m) != "" {
				n++
			}
		}
		return n
	}
	if waiting() == 0 {
		t.Errorf("no migration says that it waits: %v", w.migrations())
	}
	if done := w.settle(c); len(done) > 1 {
		t.Errorf("nothing has changed, and was done: %v", done)
	}
	w.clock.Step(settle)
	w.wantBegun(c, true, "when the time is over")
	if waiting() > 0 {
		t.Errorf("a migration that has begun says that it waits: %v", w.migrations())
	}
}
