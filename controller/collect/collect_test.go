package collect

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

func TestDecide(t *testing.T) {
	report := func(ids ...agree.ServerID) (reports []agree.Report) {
		for _, id := range ids {
			reports = append(reports, agree.Report{Server: id, Encoding: "v1"})
		}
		return reports
	}
	silent := agree.Report{Server: "off", Encoding: agree.Unknown, Decodable: []string{"Unknown"}}
	for _, tc := range []struct {
		name         string
		reports      []agree.Report
		participants []agree.ServerID // the server named "off" does not report
		starting     bool
		how          sweeping
		want         []agree.Report
		do           action
	}{
		{"all live", report("a", "b"), []agree.ServerID{"a", "b"}, false, sweeping{removeEmpty: true}, report("a", "b"), leave},
		{"removes the stale entries", report("a", "b"), []agree.ServerID{"a"}, false, sweeping{removeEmpty: true}, report("a"), write},
		{"if empty, deletes the storageVersion object", report(), []agree.ServerID{"a"}, false, sweeping{removeEmpty: true}, nil, remove},
		{"empty after the removal", report("b"), []agree.ServerID{"a"}, false, sweeping{removeEmpty: true}, nil, remove},
		{"empty while a server starts", report(), []agree.ServerID{"a"}, true, sweeping{removeEmpty: true}, nil, leave},
		{"stale while a server starts", report("b"), []agree.ServerID{"a"}, true, sweeping{removeEmpty: true}, nil, write},
		{"nobody is left", report("b"), nil, false, sweeping{removeEmpty: true}, nil, write},
		{"a burial deletes no StorageVersion", report("a"), []agree.ServerID{"b"}, false, sweeping{gone: "a"}, nil, write},
		{"buried although its Lease is back", report("a", "b"), []agree.ServerID{"a", "b"}, false, sweeping{gone: "a"}, report("b"), write},
		{"a silent server came", report("a"), []agree.ServerID{"a", "off"}, false, sweeping{removeEmpty: true}, append(report("a"), silent), write},
		{"a silent server lives", append(report("a"), silent), []agree.ServerID{"a", "off"}, false, sweeping{removeEmpty: true}, append(report("a"), silent), leave},
		{"a silent server went", append(report("a"), silent), []agree.ServerID{"a"}, false, sweeping{removeEmpty: true}, report("a"), write},
		{"nobody reports beside a silent server", []agree.Report{silent}, []agree.ServerID{"a", "off"}, false, sweeping{removeEmpty: true}, nil, remove},
		{"nobody can report beside a silent server", append(report("b"), silent), []agree.ServerID{"off"}, false, sweeping{removeEmpty: true}, []agree.Report{silent}, write},
	} {
		got, do := decide(tc.reports, split(tc.participants), tc.starting, tc.how)
		if !agree.Equal(got, tc.want) || do != tc.do {
			t.Errorf("%s: %v, %d, want %v, %d", tc.name, got, do, tc.want, tc.do)
		}
	}
}

// split returns the participants; the server named "off" is one that does not report.
func split(ids []agree.ServerID) agree.Participants {
	reporting, silent := sets.New(ids...), map[agree.ServerID]agree.Silence{}
	if reporting.Has("off") {
		reporting.Delete("off")
		silent["off"] = agree.Stock
	}
	return agree.NewParticipants(reporting.UnsortedList(), silent)
}

// TestExpire: "a Lease whose renewTime did not change during a whole duration of
// successful observation is deleted and its owner buried".
func TestExpire(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("old", true)
	w.setReports("core.secrets", "a", "old")
	w.pass(16, true, "a")
	if !w.hasLease("old") {
		t.Fatal("collected within the duration")
	}
	w.expectServers("core.secrets", "a,old=")
	w.Took()
	w.pass(1, true, "a")
	if got, want := w.Took(), "list LeaseList; delete Lease old if uid=uid-old and it is unchanged=true; "+
		"list StorageVersionList; list LeaseList; update status StorageVersion core.secrets"; got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
	if w.hasLease("old") || !w.hasLease("a") {
		t.Error("the wrong Lease is deleted")
	}
	w.expectServers("core.secrets", "a=v1")
}

// TestSlowAnswer: a Lease was renewed while the collector waited for the answer to its list. Its
// time without renewal begins with the answer, and not when the list was sent.
func TestSlowAnswer(t *testing.T) {
	w := newWorld(t)
	w.Before = func(string) error {
		w.Before = nil
		w.clock.Step(1900 * time.Millisecond)
		w.renew("slow", true)
		return nil
	}
	w.pass(1, true)
	const step = 950 * time.Millisecond
	for age := step; age < 15*time.Second; age += step {
		w.clock.Step(step)
		w.renew("a", true)
		must(t, w.c.Step(t.Context(), true))
		if !w.hasLease("slow") {
			t.Fatalf("the Lease was collected %s after it was renewed", age)
		}
	}
}

// TestSuccessor: a collector observes before it is elected, so that it can delete Leases as soon as
// it is.
func TestSuccessor(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("old", true)
	w.setReports("core.secrets", "a", "old")
	w.pass(30, false, "a")
	w.expectServers("core.secrets", "a,old=")
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "a=v1")
}

// TestOutage: "time in which etcd or the API did not answer does not count".
func TestOutage(t *testing.T) {
	for _, tc := range []struct {
		name   string
		outage func(w *world)
	}{
		{"errors", func(w *world) {
			w.Fail("list LeaseList", errBroken)
			for range 60 {
				w.clock.Step(time.Second)
				if err := w.c.Step(w.t.Context(), true); !errors.Is(err, errBroken) {
					w.t.Fatalf("Step: %v", err)
				}
			}
			w.Before = nil
		}},
		{"a slow answer", func(w *world) {
			w.Before = func(string) error {
				w.Before = nil
				w.clock.Step(time.Minute)
				return nil
			}
		}},
		{"this process was paused", func(w *world) { w.clock.Step(time.Minute) }},
		{"the clock was set back", func(w *world) { w.clock.SetTime(w.clock.Now().Add(-time.Hour)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.renew("a", true)
			w.renew("b", true)
			w.setReports("core.secrets", "a", "b")
			w.pass(2, true, "a", "b")
			w.pass(14, true, "a") // b cannot renew any more
			tc.outage(w)
			w.pass(5, true) // a does not renew directly after the outage
			w.pass(10, true, "a")
			w.expectServers("core.secrets", "a,b=v1")
			w.pass(1, true, "a", "b")
			w.pass(16, true, "a")
			w.expectServers("core.secrets", "a=v1")
		})
	}
}

// TestSweepsOnlyWhenNeeded: if the StorageVersions are watched, the collector lists them only when
// something may have changed.
func TestSweepsOnlyWhenNeeded(t *testing.T) {
	w := newWorld(t)
	w.c.watched.Store(true)
	for _, id := range []agree.ServerID{"a", "b", "old"} {
		w.renew(id, true)
	}
	w.setReports("core.secrets", "a", "b", "old")
	swept := func() bool {
		w.Took()
		w.clock.Step(time.Second)
		for _, id := range []agree.ServerID{"a", "b"} {
			w.renew(id, true)
		}
		must(t, w.c.Step(t.Context(), true))
		return strings.Contains(w.Took(), "list StorageVersionList")
	}
	if !swept() {
		t.Error("not swept at first")
	}
	for w.hasLease("old") {
		if swept() && w.hasLease("old") {
			t.Error("swept without a reason")
		}
	}
	w.expectServers("core.secrets", "a,b=v1") // in the same step that deleted the Lease
	if !swept() || swept() {
		t.Error("not swept once after a Lease went")
	}
	must(t, w.c.sink().Update(&v1alpha1.StorageVersion{}))
	if !swept() || swept() {
		t.Error("not swept once after a change")
	}
	w.renew("c", true)
	if !swept() || swept() {
		t.Error("not swept once after a server joined")
	}
	must(t, w.c.Step(t.Context(), false))
	if !swept() || swept() {
		t.Error("not swept once as a new leader")
	}
	n := 0
	for range 61 {
		w.renew("c", true)
		if swept() {
			n++
		}
	}
	if n != 1 {
		t.Errorf("swept %d times in a minute without a change", n)
	}
}

// TestUnknownIsNotGone: nothing is deleted or dropped unless the Leases could be read.
func TestUnknownIsNotGone(t *testing.T) {
	for n := range 2 { // the first list of Leases, or the one after the StorageVersions, fails
		w := newWorld(t)
		w.renew("a", true)
		w.setReports("core.secrets", "a")
		w.setReports("core.configmaps")
		w.Before = func(call string) error {
			if call == "list LeaseList" {
				if n--; n < 0 {
					return errBroken
				}
			}
			return nil
		}
		if err := w.c.Step(t.Context(), true); !errors.Is(err, errBroken) {
			t.Errorf("Step: %v", err)
		}
		w.Before = nil
		w.expectServers("core.secrets", "a=v1")
		w.expectServers("core.configmaps", "=")
		w.pass(1, true, "a")
		w.expectServers("core.configmaps", "none")
	}
}

// TestRenewedAfterAll: a Lease that is renewed after the observation is not deleted.
func TestRenewedAfterAll(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("b", true)
	w.setReports("core.secrets", "a", "b")
	renewed := false
	w.Before = func(call string) error {
		if strings.HasPrefix(call, "delete Lease b") {
			renewed = true
			w.renew("b", true)
		}
		return nil
	}
	w.pass(17, true, "a")
	if !renewed || !w.hasLease("b") {
		t.Errorf("deletion tried: %v; Lease there: %v", renewed, w.hasLease("b"))
	}
	w.expectServers("core.secrets", "a,b=v1")
}

// TestLevelTriggered: "every ID in any report without a Lease is buried, whoever removed
// the Lease".
func TestLevelTriggered(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.setReports("core.secrets", "a", "oldest", "never-registered")
	w.setReports("core.configmaps", "oldest")
	w.setReports("core.events", "a")
	must(t, w.c.Step(t.Context(), true))
	w.expectServers("core.secrets", "a=v1")
	w.expectServers("core.configmaps", "none")
	w.expectServers("core.events", "a=v1")
	if got, want := w.Took(), "list LeaseList; list StorageVersionList; list LeaseList; "+
		"delete StorageVersion core.configmaps if uid=uid-core.configmaps and it is unchanged=true; "+
		"update status StorageVersion core.secrets"; got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
}

func TestHoldBack(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("b", false)
	w.setReports("core.secrets")
	w.pass(3, true, "a")
	w.expectServers("core.secrets", "=")
	w.renew("b", true)
	w.pass(1, true, "a")
	w.expectServers("core.secrets", "none")
}

// TestHoldBackEnds: a server whose Lease never says that it has reported keeps empty
// StorageVersions from being deleted for one duration of its Lease only.
func TestHoldBackEnds(t *testing.T) {
	w := newWorld(t)
	w.c.watched.Store(true)
	renew := func(seconds int) {
		for range seconds {
			w.clock.Step(time.Second)
			w.renew("a", false)
			must(t, w.c.Step(t.Context(), true))
		}
	}
	w.renew("a", false)
	w.setReports("core.secrets")
	renew(15)
	w.expectServers("core.secrets", "=")
	renew(1)
	w.expectServers("core.secrets", "none")
}

// TestConflict: a report that is written at the same time is not lost.
func TestConflict(t *testing.T) {
	for _, tc := range []struct {
		name    string
		reports []agree.ServerID
		call    string
	}{
		{"dropping a report", []agree.ServerID{"a", "oldest"}, "update status StorageVersion core.secrets"},
		{"deleting an empty StorageVersion", nil, "delete StorageVersion core.secrets"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t)
			w.renew("a", true)
			w.renew("b", true)
			w.setReports("core.secrets", tc.reports...)
			raced := false
			w.Before = func(call string) error {
				if strings.HasPrefix(call, tc.call) && !raced {
					raced = true
					w.Before = nil
					w.setReports("core.secrets", "a", "oldest", "b")
				}
				return nil
			}
			if err := w.c.Step(t.Context(), true); !apierrors.IsConflict(err) || !raced {
				t.Errorf("Step: %v, want a conflict", err)
			}
			w.expectServers("core.secrets", "a,oldest,b=")
			w.pass(1, true, "a", "b")
			w.expectServers("core.secrets", "a,b=v1")
		})
	}
}

// TestBury: "Lease before reports".
func TestBury(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("old", true)
	w.setReports("core.secrets", "a", "old")
	w.setReports("core.configmaps", "old")
	w.setReports("core.events", "a")
	if err := w.c.Bury(t.Context(), "old"); err != nil {
		t.Fatalf("Bury: %v", err)
	}
	if got, want := w.Took(), "delete Lease old; list StorageVersionList; list LeaseList; "+
		"update status StorageVersion core.configmaps; update status StorageVersion core.secrets"; got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
	w.expectServers("core.secrets", "a=v1")
	w.expectServers("core.configmaps", "=")
	if w.hasLease("old") {
		t.Error("the Lease is there")
	}
	if err := w.c.Bury(t.Context(), "old"); err != nil {
		t.Errorf("Bury again: %v", err)
	}
}

func TestBuryErrors(t *testing.T) {
	notServed := apierrors.NewGenericServerResponse(http.StatusNotFound, "delete", storageversion.Resource, "a", "404 page not found", 0, true)
	for call, failure := range map[string]error{
		"delete Lease a":                            errBroken,
		"list StorageVersionList":                   errBroken,
		"list LeaseList":                            errBroken,
		"update status StorageVersion core.secrets": apierrors.NewConflict(storageversion.Resource, "core.secrets", errBroken),
		"delete Lease a ":                           notServed,
	} {
		w := newWorld(t)
		w.renew("a", true)
		w.setReports("core.secrets", "a")
		w.Fail(strings.TrimSpace(call), failure)
		if err := w.c.Bury(t.Context(), "a"); err == nil {
			t.Errorf("%s fails with %v: no error", call, failure)
		}
		if call == "delete Lease a" && w.Took() != call {
			t.Error("reports were dropped before the Lease")
		}
		w.Before = nil
		if err := w.c.Bury(t.Context(), "a"); err != nil {
			t.Errorf("Bury again: %v", err)
		}
		w.expectServers("core.secrets", "=")
	}
}

// TestRun: with the watch, the collector does not list StorageVersions while nothing changes, and
// misses no change.
func TestRun(t *testing.T) {
	w := newWorld(t, func(c *Config) {
		c.Clock = clock.RealClock{}
		c.Interval = 5 * time.Millisecond
		c.Workers = 4
	})
	w.renew("a", true)
	w.setReports("core.secrets", "a", "oldest")
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() { w.c.Run(ctx, func() bool { return true }) })
	w.Eventually("collected", func() bool { return w.servers("core.secrets") == "a=v1" })
	looks := 0 // without a call for StorageVersions between them
	w.Eventually("quiet", func() bool {
		calls := w.Took()
		if looks += strings.Count(calls, "list LeaseList"); strings.Contains(calls, "StorageVersion") {
			looks = 0
		}
		return looks > 3
	})
	w.setReports("core.secrets", "a", "oldest") // a report that is written late
	w.Eventually("collected again", func() bool { return w.servers("core.secrets") == "a=v1" })
	w.setReports("core.configmaps", "a")
	w.renew("b", true)
	must(t, w.client.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "a"}}))
	w.Eventually("buried although somebody else removed the Lease", func() bool {
		return w.servers("core.configmaps") == "none" && w.servers("core.secrets") == "none"
	})
}
