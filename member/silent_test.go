package member

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// silent makes the world's member that of a server with the gate StorageVersionAPI off.
func silent(erase func(context.Context) error) func(*Config) {
	return func(c *Config) { c.Erase, c.Bury = erase, nil }
}

var writes = []Request{
	{IsResource: true, Resource: secrets, Verb: "update"},
	{IsResource: true, Resource: widgets, Verb: "create"},
	{IsResource: true, Resource: schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, Verb: "update", Loopback: true},
}

func (w *world) expectAdmits(want bool) {
	w.t.Helper()
	for _, r := range writes {
		switch err := w.m.Admit(r); {
		case want && err != nil:
			w.t.Errorf("%s: %v", r.Resource, err)
		case !want && !apierrors.IsServiceUnavailable(err):
			w.t.Errorf("%s passes: %v", r.Resource, err)
		case !want:
			if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds <= 0 {
				w.t.Errorf("%s: nothing to wait for in %v", r.Resource, err)
			}
		}
	}
	if err := w.m.Ready(); (err == nil) != want {
		w.t.Errorf("Ready: %v, want ready %v", err, want)
	}
	lease := Request{IsResource: true, Resource: leases, Verb: "create", Loopback: true}
	if err := errors.Join(w.m.Admit(lease), w.m.Admit(Request{IsResource: true, Resource: secrets, Verb: "list"})); err != nil {
		w.t.Errorf("what is no write, or makes the Lease: %v", err)
	}
}

// TestSilent: the Lease that says "no reports" is created before the StorageVersions are deleted, and writes are
// refused until they are deleted (DESIGN 3.8).
func TestSilent(t *testing.T) {
	failing := errBroken
	var w *world
	w = newWorld(t, nil, silent(func(context.Context) error {
		if id := w.m.ID(); id == "" || w.lease(id).Annotations[storageversion.APIAnnotation] != storageversion.APIOff {
			t.Errorf("deleting before the Lease of %q says that there are no reports", id)
		}
		return failing
	}))
	w.expectAdmits(false)
	id := w.register()
	w.expectAdmits(false)
	if _, err := w.m.Step(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("Step: %v", err)
	}
	w.expectAdmits(false)
	failing = nil
	if _, err := w.m.Step(t.Context()); err != nil {
		t.Error(err)
	}
	w.expectAdmits(true)
	if err := w.m.Renew(t.Context()); err != nil {
		t.Error(err)
	}
	if w.lease(id).Annotations[storageversion.ReportedAnnotation] != "true" {
		t.Error("others would wait for reports that do not come")
	}
	failing = errors.New("deleted twice")
	if _, err := w.m.Step(t.Context()); err != nil {
		t.Error(err)
	}

	t.Run("not renewed", func(t *testing.T) {
		w.clock.Step(DefaultLeaseDuration)
		w.expectAdmits(false)
		if err := w.m.Renew(t.Context()); err != nil {
			t.Error(err)
		}
		w.expectAdmits(true)
	})
	t.Run("buried while it was paused", func(t *testing.T) {
		w.deleteLease(id)
		if err := w.m.Renew(t.Context()); !errors.Is(err, ErrLeaseGone) {
			t.Errorf("Renew: %v", err)
		}
		w.expectAdmits(false)
		if again := w.register(); again == id {
			t.Error("registered under the same ID")
		}
		w.expectAdmits(false)
		failing = nil
		if _, err := w.m.Step(t.Context()); err != nil {
			t.Error(err)
		}
		w.expectAdmits(true)
	})
	t.Run("its Lease is made to say otherwise", func(t *testing.T) {
		id := w.m.ID()
		lease := w.lease(id)
		delete(lease.Annotations, storageversion.APIAnnotation)
		w.Quietly(func() {
			must(t, w.client.Update(t.Context(), lease))
		})
		w.m.ObserveLease(lease, false)
		w.expectAdmits(false)
		w.register()
		if _, err := w.m.Step(t.Context()); err != nil {
			t.Error(err)
		}
		w.expectAdmits(true)
	})
	t.Run("departs", func(t *testing.T) {
		id := w.m.ID()
		if err := w.m.Depart(t.Context()); err != nil {
			t.Error(err)
		}
		if w.exists(id) {
			t.Error("the Lease is left behind")
		}
		w.expectAdmits(false)
	})
	if calls := w.Took(); strings.Contains(calls, "StorageVersion") {
		t.Errorf("calls %s, want none to an API that it does not serve", calls)
	}
}

// TestSilentRun: Run does the same by itself.
func TestSilentRun(t *testing.T) {
	erased := 0
	w := newWorld(t, nil, silent(func(context.Context) error { erased++; return nil }))
	done := make(chan struct{})
	go func() { defer close(done); w.m.Run(t.Context()) }()
	w.Eventually("ready", func() bool { return w.m.Ready() == nil })
	if err := w.m.Depart(t.Context()); err != nil {
		t.Error(err)
	}
	<-done
	if erased != 1 || strings.Contains(w.Took(), "StorageVersion") {
		t.Errorf("deleted %d times", erased)
	}
}

// erase deletes all StorageVersions, as a silent server does.
func (w *world) erase() {
	w.t.Helper()
	w.Quietly(func() {
		must(w.t, w.client.DeleteAllOf(w.t.Context(), &v1alpha1.StorageVersion{}))
	})
}

// TestBesideSilent: a server with the gate off starts and stops, as another server sees it. It deletes the
// StorageVersions at each call of the other server's report.
func TestBesideSilent(t *testing.T) {
	const off agree.ServerID = "apiserver-off"
	for _, at := range []string{
		"get StorageVersion core.secrets", "create StorageVersion core.secrets", "list LeaseList", "update status StorageVersion core.secrets",
	} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t, []Resource{builtin(secrets)})
			w.register()
			w.Once(at, func() {
				w.addSilent(off)
				w.erase()
			})
			w.settle()
			reports, _ := w.reports(secrets)
			if common, agreed := agree.Common(reports); agreed || !slices.Contains(agree.Encodings(reports), "v1") || !slices.Equal(agree.Silent(reports), []agree.ServerID{off}) {
				t.Errorf("agreement on %q, reports %v", common, reports)
			}
			w.expectOpen(secrets, "v1")
			w.deleteLease(off)
			must(t, w.m.Report(t.Context(), secrets))
			reports, _ = w.reports(secrets)
			if common, _ := agree.Common(reports); common != "v1" {
				t.Errorf("agreement on %q after its end, reports %v", common, reports)
			}
		})
	}
}

func (w *world) addSilent(id agree.ServerID) {
	w.t.Helper()
	w.addLease(id)
	lease := w.lease(id)
	lease.Annotations = map[string]string{storageversion.APIAnnotation: storageversion.APIOff}
	w.Quietly(func() {
		must(w.t, w.client.Update(w.t.Context(), lease))
	})
}

// TestStockServer: for the Lease of a kube-apiserver without Concord, the other servers report Unknown, with the
// reason. For the Lease that upstream's code keeps in a Concord process they report nothing.
func TestStockServer(t *testing.T) {
	const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"
	w := newWorld(t, []Resource{builtin(secrets)})
	strip := func(id agree.ServerID) *coordinationv1.Lease {
		lease := w.lease(id)
		lease.Annotations = nil
		w.Quietly(func() {
			must(t, w.client.Update(t.Context(), lease))
		})
		return lease
	}
	upstreams := agree.ServerID(storageversion.NewUpstreamIdentity())
	w.addLease(upstreams)
	strip(upstreams)
	w.register()
	w.settle()
	reports, _ := w.reports(secrets)
	if common, agreed := agree.Common(reports); !agreed || len(reports) != 1 {
		t.Fatalf("agreement on %q beside upstream's own Lease, reports %v", common, reports)
	}

	w.addLease(stock)
	strip(stock)
	w.setReports(secrets) // the report is lost
	w.observe(secrets)
	w.settle()
	reports, _ = w.reports(secrets)
	if common, agreed := agree.Common(reports); agreed || len(reports) != 2 || !slices.Equal(agree.Silent(reports), []agree.ServerID{stock}) {
		t.Errorf("agreement on %q, reports %v", common, reports)
	}
	w.expectOpen(secrets, "v1")

	// Without the annotations on its Lease, this server would count as one that does not report.
	id := w.m.ID()
	w.m.ObserveLease(strip(id), false)
	if w.m.ID() != "" {
		t.Error("the server goes on with a Lease by which it counts as one that does not report")
	}
}

// TestSilentTellsTimeByItself: the time of the last renewal, which is compared with the Lease's duration, has a
// monotonic reading. The time on the Lease has none: if the clock were set back while the process is stopped, the
// server would not notice that its Lease has expired.
func TestSilentTellsTimeByItself(t *testing.T) {
	w := newWorld(t, nil, silent(func(context.Context) error { return nil }))
	w.m.cfg.Clock = clock.RealClock{}
	w.register()
	monotonic := func(when string) {
		t.Helper()
		if at := w.m.registration.renewed; !strings.Contains(at.String(), " m=") {
			t.Errorf("%s the time of the last renewal is %s: by the wall clock only", when, at)
		}
	}
	monotonic("after the registration")
	must(t, w.m.Renew(t.Context()))
	monotonic("after a renewal")
}

// TestSilentLeaves: a server with the gate off that leaves while writes are under way accepts no new ones, and its
// Lease stays.
func TestSilentLeaves(t *testing.T) {
	w := newWorld(t, nil, silent(func(context.Context) error { return nil }))
	id := w.register()
	if _, err := w.m.Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.expectAdmits(true)
	w.m.Leave()
	w.expectAdmits(false)
	if err := w.m.Renew(t.Context()); !errors.Is(err, errDeparted) {
		t.Errorf("Renew: %v", err)
	}
	w.lease(id) // fails the test if there is none
}
