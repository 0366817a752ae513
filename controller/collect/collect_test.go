package collect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

var errBroken = errors.New("connection refused")

// world is an API with one collector; what goes over the wire is recorded and can fail.
type world struct {
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakeClock
	c      *Collector

	mu    sync.Mutex
	calls []string
	// before runs before a call, and its error replaces the call.
	before func(call string) error
}

func newWorld(t *testing.T, edit ...func(*Config)) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithGlobalResourceVersionCounter().
		WithStatusSubresource(&v1alpha1.StorageVersion{}).WithInterceptorFuncs(interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			return w.call("list", o, "", func() error { return c.List(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return w.call("delete", o, o.GetName()+preconditions(opts), func() error { return c.Delete(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return w.call("update "+sub, o, o.GetName(), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	}).Build()
	cfg := Config{Client: w.client, Workers: 1, Clock: w.clock}
	for _, e := range edit {
		e(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	w.c = c
	return w
}

func preconditions(opts []client.DeleteOption) string {
	var o client.DeleteOptions
	o.ApplyOptions(opts)
	if o.Preconditions == nil {
		return ""
	}
	return fmt.Sprintf(" if uid=%s and it is unchanged=%t", *o.Preconditions.UID, o.Preconditions.ResourceVersion != nil)
}

func (w *world) call(verb string, o any, name string, do func() error) error {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
	call := strings.TrimSpace(verb + " " + kind + " " + name)
	w.mu.Lock()
	w.calls = append(w.calls, call)
	before := w.before
	w.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			return err
		}
	}
	return do()
}

func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := strings.Join(w.calls, "; ")
	w.calls = nil
	return calls
}

// renew creates or renews a Lease of 15 s. The fake API checks no uids.
func (w *world) renew(id agree.ServerID, reported bool) {
	w.t.Helper()
	seconds, now := int32(15), metav1.NewMicroTime(w.clock.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Name: string(id), Namespace: "kube-system", UID: types.UID("uid-" + id),
		Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
	}}
	err := w.client.Get(w.t.Context(), client.ObjectKeyFromObject(lease), lease)
	lease.Spec = coordinationv1.LeaseSpec{LeaseDurationSeconds: &seconds, RenewTime: &now}
	if reported {
		lease.Annotations = map[string]string{storageversion.ReportedAnnotation: "true"}
	}
	if err != nil {
		err = w.client.Create(w.t.Context(), lease)
	} else {
		err = w.client.Update(w.t.Context(), lease)
	}
	if err != nil {
		w.t.Fatal(err)
	}
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
	if err != nil {
		w.t.Fatal(err)
	}
}

// servers returns who reports, and the agreement; "none" if there is no StorageVersion.
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

// pass lets time go by in steps of a second; those named renew in each.
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

func TestDecide(t *testing.T) {
	report := func(ids ...agree.ServerID) (reports []agree.Report) {
		for _, id := range ids {
			reports = append(reports, agree.Report{Server: id, Encoding: "v1"})
		}
		return reports
	}
	for _, tc := range []struct {
		name         string
		reports      []agree.Report
		participants []agree.ServerID
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
	} {
		got, do := decide(tc.reports, sets.New(tc.participants...), tc.starting, tc.how)
		if !agree.Equal(got, tc.want) || do != tc.do {
			t.Errorf("%s: %v, %d, want %v, %d", tc.name, got, do, tc.want, tc.do)
		}
	}
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
	w.took()
	w.pass(1, true, "a")
	if got, want := w.took(), "list LeaseList; delete Lease old if uid=uid-old and it is unchanged=true; "+
		"list StorageVersionList; list LeaseList; update status StorageVersion core.secrets"; got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
	if w.hasLease("old") || !w.hasLease("a") {
		t.Error("the wrong Lease is deleted")
	}
	w.expectServers("core.secrets", "a=v1")
}

// TestSuccessor: a new leader has observed already.
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
			w.before = func(call string) error {
				if call == "list LeaseList" {
					return errBroken
				}
				return nil
			}
			for range 60 {
				w.clock.Step(time.Second)
				if err := w.c.Step(w.t.Context(), true); !errors.Is(err, errBroken) {
					w.t.Fatalf("Step: %v", err)
				}
			}
			w.before = nil
		}},
		{"a slow answer", func(w *world) {
			w.before = func(string) error {
				w.before = nil
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
			w.pass(10, true, "a", "b")
			tc.outage(w)
			w.pass(5, true) // they do not renew at once
			w.pass(5, true, "a", "b")
			w.expectServers("core.secrets", "a,b=v1")
			w.pass(20, true, "a")
			w.expectServers("core.secrets", "a=v1")
		})
	}
}

// TestUnknownIsNotGone: nothing is collected unless the Leases could be read.
func TestUnknownIsNotGone(t *testing.T) {
	for n := range 2 { // the observation, and the read after the StorageVersions
		w := newWorld(t)
		w.renew("a", true)
		w.setReports("core.secrets", "a")
		w.setReports("core.configmaps")
		w.before = func(call string) error {
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
		w.before = nil
		w.expectServers("core.secrets", "a=v1")
		w.expectServers("core.configmaps", "=")
		w.pass(1, true, "a")
		w.expectServers("core.configmaps", "none")
	}
}

// TestRenewedAfterAll: the Lease is deleted only as it was observed.
func TestRenewedAfterAll(t *testing.T) {
	w := newWorld(t)
	w.renew("a", true)
	w.renew("b", true)
	w.setReports("core.secrets", "a", "b")
	renewed := false
	w.before = func(call string) error {
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
	if err := w.c.Step(t.Context(), true); err != nil {
		t.Fatalf("Step: %v", err)
	}
	w.expectServers("core.secrets", "a=v1")
	w.expectServers("core.configmaps", "none")
	w.expectServers("core.events", "a=v1")
	if got, want := w.took(), "list LeaseList; list StorageVersionList; list LeaseList; "+
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

// TestConflict: a report that was made meanwhile is not lost.
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
			w.before = func(call string) error {
				if strings.HasPrefix(call, tc.call) && !raced {
					raced = true
					w.before = nil
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
	if got, want := w.took(), "delete Lease old; list StorageVersionList; list LeaseList; "+
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
		w.before = func(c string) error {
			if c == strings.TrimSpace(call) {
				return failure
			}
			return nil
		}
		if err := w.c.Bury(t.Context(), "a"); err == nil {
			t.Errorf("%s fails with %v: no error", call, failure)
		}
		if call == "delete Lease a" && w.took() != call {
			t.Error("reports were dropped before the Lease")
		}
		w.before = nil
		if err := w.c.Bury(t.Context(), "a"); err != nil {
			t.Errorf("Bury again: %v", err)
		}
		w.expectServers("core.secrets", "=")
	}
}

// TestRun: the watch saves the sweeps when nothing changes, and misses nothing.
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
	eventually(t, "collected", func() bool { return w.servers("core.secrets") == "a=v1" })
	eventually(t, "quiet", func() bool {
		calls := w.took()
		return strings.Count(calls, "list LeaseList") > 3 && !strings.Contains(calls, "StorageVersion")
	})
	w.setReports("core.secrets", "a", "oldest") // a report that lands late
	eventually(t, "collected again", func() bool { return w.servers("core.secrets") == "a=v1" })
	w.setReports("core.configmaps", "a")
	w.renew("b", true)
	if err := w.client.Delete(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "buried although somebody else removed the Lease", func() bool {
		return w.servers("core.configmaps") == "none" && w.servers("core.secrets") == "none"
	})
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func TestValidate(t *testing.T) {
	api := newWorld(t).client
	for _, cfg := range []Config{{}, {Client: api, Interval: -1}, {Client: api, Workers: -1}} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v was accepted", cfg)
		}
	}
}
