package member

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// TestMoved goes through the outcomes of DESIGN 3.2, "On mismatch".
func TestMoved(t *testing.T) {
	const (
		again = iota
		supersededBy
		unavailable
	)
	for _, tc := range []struct {
		name   string
		enc    agree.Encoding // that the store writes
		report agree.Encoding // the own report that was found; "" if there is none
		old    bool           // the answer is older than the known revision
		back   bool           // the StorageVersion is older than the known revision, but the answer is not
		want   int
		open   bool // whether the resource is open afterwards
	}{
		{name: "somebody else joined or left", enc: v2, report: v2, want: again, open: true},
		{name: "the store is superseded", enc: v1, report: v2, want: supersededBy, open: true},
		{name: "own report missing", enc: v2, want: unavailable},
		{name: "own report missing, superseded store", enc: v1, want: unavailable},
		{name: "another encoding is reported by our name", enc: v2, report: v1, want: again},
		{name: "an old answer with the report", enc: v2, report: v2, old: true, want: again, open: true},
		{name: "an old answer without the report", enc: v2, old: true, want: again, open: true},
		{name: "an old answer with the report of before", enc: v2, report: v1, old: true, want: again, open: true},
		{name: "etcd was restored, with the report", enc: v2, report: v2, back: true, want: again},
		{name: "etcd was restored, with the report of before", enc: v2, report: v1, back: true, want: again},
		{name: "etcd was restored, without the report", enc: v2, back: true, want: again},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := withWidgets(t)
			w.m.ObserveCRD(w.setCRD("v2"))
			w.settle()
			known := w.status(widgets).Revision
			reports := []agree.Report{{Server: "other", Encoding: v1}}
			if tc.report != "" {
				reports = append(reports, agree.Report{Server: w.m.ID(), Encoding: tc.report})
			}
			at, mod := known-1, known-1
			switch {
			case tc.back:
				at = known + 1000
			case !tc.old:
				w.setReports(widgets, reports...)
				_, mod = w.reports(widgets)
				at = mod
			}
			err := w.m.Moved(t.Context(), widgets, tc.enc, at, mod, reports)
			ok := false
			switch tc.want {
			case again:
				ok = err == nil
			case supersededBy:
				ok = errors.Is(err, agree.ErrSuperseded)
			case unavailable:
				ok = apierrors.IsServiceUnavailable(err)
			}
			if !ok {
				t.Errorf("Moved: %v", err)
			}
			status := w.status(widgets)
			if status.Open != tc.open {
				t.Errorf("open: %v, want %v", status.Open, tc.open)
			}
			if tc.open {
				if want := max(known, mod); status.Revision != want {
					t.Errorf("revision %d, want %d", status.Revision, want)
				}
				return
			}
			w.Took()
			w.settle()
			w.expectOpen(widgets, v2)
			if w.Took() == "" {
				t.Error("not reported again")
			}
		})
	}
	t.Run("no StorageVersion", func(t *testing.T) {
		w := withWidgets(t)
		if err := w.m.Moved(t.Context(), widgets, v1, 1000, 0, nil); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Moved: %v", err)
		}
		if w.status(widgets).Open {
			t.Error("open without a StorageVersion")
		}
	})
	t.Run("an ID from before", func(t *testing.T) {
		w := withWidgets(t)
		old := w.m.ID()
		w.deleteLease(old)
		w.m.ObserveLeases(nil, 1000)
		w.register()
		reports, mod := w.reports(widgets) // the report of the old ID is still there
		if len(reports) != 1 || reports[0].Server != old {
			t.Fatalf("reports %v", reports)
		}
		if err := w.m.Moved(t.Context(), widgets, v1, mod, mod, reports); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Moved: %v", err)
		}
		if _, err := w.m.Revision(t.Context(), widgets, v1); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision: %v", err)
		}
	})
	t.Run("a built-in resource", func(t *testing.T) {
		w := newWorld(t, []Resource{builtin(secrets)})
		w.register()
		w.settle()
		if err := w.m.Moved(t.Context(), secrets, "v1", 1000, 1000, nil); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Moved: %v", err)
		}
		if err := w.m.Ready(); !errors.Is(err, errReportLost) {
			t.Errorf("Ready: %v", err)
		}
	})
	t.Run("a resource that is not known", func(t *testing.T) {
		w := newWorld(t, nil)
		if err := w.m.Moved(t.Context(), secrets, "v1", 1, 1, nil); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Moved: %v", err)
		}
	})
}

// TestRevisionWaits: Revision waits for custom resources only, until they are open or the limit has passed.
func TestRevisionWaits(t *testing.T) {
	type result struct {
		revision int64
		err      error
	}
	ask := func(ctx context.Context, w *world, enc agree.Encoding) chan result {
		c := make(chan result, 1)
		go func() {
			revision, err := w.m.Revision(ctx, widgets, enc)
			c <- result{revision, err}
		}()
		w.Eventually("waiting", w.clock.HasWaiters)
		return c
	}
	limit := func(c *Config) { c.WaitLimit = 0 }
	t.Run("until open", func(t *testing.T) {
		w := withWidgets(t, limit)
		w.m.ObserveCRD(w.setCRD("v2"))
		waiting := ask(t.Context(), w, v2)
		w.settle()
		if r := <-waiting; r.err != nil || r.revision != w.status(widgets).Revision {
			t.Errorf("Revision: %v", r)
		}
	})
	t.Run("for the limit", func(t *testing.T) {
		w := withWidgets(t, limit)
		w.m.ObserveCRD(w.setCRD("v2"))
		waiting := ask(t.Context(), w, v2)
		w.clock.Step(DefaultWaitLimit - time.Second)
		if len(waiting) != 0 {
			t.Error("gave up early")
		}
		w.clock.Step(time.Second)
		if r := <-waiting; !apierrors.IsServiceUnavailable(r.err) {
			t.Errorf("Revision: %v", r)
		}
	})
	t.Run("for the context", func(t *testing.T) {
		w := withWidgets(t, limit)
		w.m.ObserveCRD(w.setCRD("v2"))
		ctx, cancel := context.WithCancel(t.Context())
		waiting := ask(ctx, w, v2)
		cancel()
		if r := <-waiting; !apierrors.IsServiceUnavailable(r.err) {
			t.Errorf("Revision: %v", r)
		}
	})
	t.Run("not for built-in resources", func(t *testing.T) {
		w := newWorld(t, []Resource{builtin(secrets)}, limit)
		w.register()
		_, err := w.m.Revision(t.Context(), secrets, "v1")
		want := "wait for storage version registration to complete for resource: secrets, last seen error: not reported yet"
		status := apierrors.APIStatus(nil)
		if !apierrors.IsServiceUnavailable(err) || !errors.As(err, &status) || status.Status().Message != want {
			t.Fatalf("Revision: %v, want %q", err, want)
		}
		if status.Status().Details.RetryAfterSeconds != 1 {
			t.Errorf("details %v", status.Status().Details)
		}
	})
	t.Run("not after departure", func(t *testing.T) {
		w := withWidgets(t, limit)
		w.m.ObserveCRD(w.setCRD("v2"))
		waiting := ask(t.Context(), w, v2)
		must(t, w.m.Depart(t.Context()))
		if r := <-waiting; !apierrors.IsServiceUnavailable(r.err) {
			t.Errorf("Revision: %v", r)
		}
	})
}

func TestWrongStore(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	w.register()
	w.settle()
	if _, err := w.m.Revision(t.Context(), secrets, "v0"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Revision: %v", err)
	}
}

// TestEtcdBegunAnew: a new etcd has lower revisions than those at which the reports of an earlier registration were
// lost. The reports of the new registration count all the same.
func TestEtcdBegunAnew(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	old := w.register()
	w.settle()
	const high = 1 << 20
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(secrets), ResourceVersion: strconv.Itoa(high)}}
	w.m.ObserveStorageVersion(sv, true)
	w.deleteLease(old)
	w.settle()
	if _, revision := w.reports(secrets); w.m.ID() == old || revision >= high {
		t.Fatalf("%s has its report at revision %d", w.m.ID(), revision)
	}
	w.expectOpen(secrets, "v1")
}

// TestLateReportIsNotForgotten: a read finds the wanted report; then the report of an earlier attempt arrives, and
// the member learns of that first. The older read does not open the resource.
func TestLateReportIsNotForgotten(t *testing.T) {
	for _, open := range []bool{false, true} {
		s := newState(true)
		s.aim(target{resource: builtin(secrets), known: true})
		if open && !s.stands("v1", 10) {
			t.Fatal("not open")
		}
		if s.learn("self", 12, []agree.Report{{Server: "self", Encoding: "v1+key"}}) != open || s.open() {
			t.Errorf("open %v: the late report was not noticed", open)
		}
		if s.stands("v1", 10) || s.open() {
			t.Errorf("open %v: opened by what was read at 10", open)
		}
		if !s.stands("v1", 13) || !s.open() {
			t.Errorf("open %v: not opened again", open)
		}
	}
}

func TestObserveStorageVersions(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)})
	w.register()
	w.settle()
	w.m.ObserveStorageVersions(nil, 1)
	if err := w.m.Ready(); err != nil {
		t.Errorf("a list that is older than the reports: %v", err)
	}
	w.m.ObserveStorageVersions(nil, 1000)
	for _, gr := range []schema.GroupResource{secrets, configMaps} {
		if w.status(gr).Open {
			t.Errorf("%s is open although there is no StorageVersion", gr)
		}
	}
}

// TestGate goes through the list of DESIGN 3.1.
func TestGate(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets), builtin(leases), builtin(storageversion.Resource), builtin(schema.GroupResource{Resource: "namespaces"})})
	request := func(verb string, gr schema.GroupResource) Request {
		return Request{IsResource: true, Verb: verb, Resource: gr}
	}
	loopback := func(r Request) Request { r.Loopback = true; return r }
	for _, tc := range []struct {
		name    string
		request Request
		passes  bool
	}{
		{"requests that are not for a resource", Request{}, true},
		{"get", request("get", secrets), true},
		{"list", request("list", secrets), true},
		{"watch", request("watch", secrets), true},
		{"create", request("create", secrets), false},
		{"update", request("update", secrets), false},
		{"patch", request("patch", secrets), false},
		{"delete", request("delete", secrets), false},
		{"deletecollection", request("deletecollection", secrets), false},
		{"loopback, anything", loopback(request("create", secrets)), false},
		{"loopback, storageversions", loopback(request("create", storageversion.Resource)), true},
		{"loopback, identity Lease", loopback(request("update", leases)), true},
		{"loopback, system namespaces", loopback(request("create", schema.GroupResource{Resource: "namespaces"})), true},
		{"storageversions", request("create", storageversion.Resource), false},
		{"leases", request("update", leases), false},
		{"reviews", request("create", schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}), true},
		{"custom resources", request("create", widgets), true},
	} {
		if err := w.m.Admit(tc.request); (err == nil) != tc.passes {
			t.Errorf("%s while closed: %v", tc.name, err)
		} else if err != nil && !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%s: %v, want a 503", tc.name, err)
		}
	}
	if early, err := New(w.m.cfg); err != nil || !apierrors.IsServiceUnavailable(early.Admit(request("create", secrets))) {
		t.Errorf("create before the built-in resources are known: no 503, or %v", err)
	}
	w.register()
	w.settle()
	for _, verb := range []string{"create", "delete"} {
		if err := w.m.Admit(request(verb, secrets)); err != nil {
			t.Errorf("%s when open: %v", verb, err)
		}
	}
	w.m.ObserveStorageVersions(nil, 1000)
	if err := w.m.Admit(request("create", secrets)); err == nil {
		t.Error("create after the report was lost")
	}
}

// TestGateWithoutStorage: while etcd does not answer, requests that would write to it are refused, except for those
// by which the server itself recovers.
func TestGateWithoutStorage(t *testing.T) {
	var away error
	w := newWorld(t, []Resource{builtin(secrets), builtin(leases)}, func(c *Config) { c.Storage = func() error { return away } })
	w.register()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.settle()
	reviews := schema.GroupResource{Group: "authorization.k8s.io", Resource: "selfsubjectaccessreviews"}
	admit := func(verb string, gr schema.GroupResource, loopback bool) error {
		return w.m.Admit(Request{IsResource: true, Verb: verb, Resource: gr, Loopback: loopback})
	}
	for _, outage := range []error{nil, errBroken, nil} {
		away = outage
		for _, gr := range []schema.GroupResource{secrets, widgets, leases} {
			for _, verb := range []string{"create", "delete"} {
				err := admit(verb, gr, false)
				if (err != nil) != (outage != nil) {
					t.Errorf("with storage %v: %s %s: %v", outage, verb, gr, err)
				}
				var status *apierrors.StatusError
				if err != nil && (!errors.As(err, &status) || !apierrors.IsServiceUnavailable(err) || status.ErrStatus.Details.RetryAfterSeconds != 1 || !strings.Contains(err.Error(), errBroken.Error())) {
					t.Errorf("%s %s: %#v, want a 503 with the reason", verb, gr, err)
				}
			}
			if err := admit("get", gr, false); err != nil {
				t.Errorf("get %s: %v", gr, err)
			}
		}
		for name, err := range map[string]error{"own Lease": admit("update", leases, true), "review": admit("create", reviews, false)} {
			if err != nil {
				t.Errorf("with storage %v: %s: %v", outage, name, err)
			}
		}
	}
}

// TestGateOfDeletes: while the storage accepts deletes only, the gate lets deletes pass and requests that store
// nothing, and refuses all other writes.
func TestGateOfDeletes(t *testing.T) {
	full := fmt.Errorf("no space: %w", ErrDeletesOnly)
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) { c.Storage = func() error { return full } })
	w.register()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.settle()
	for _, gr := range []schema.GroupResource{secrets, widgets} {
		for verb, passes := range map[string]bool{"create": false, "update": false, "patch": false, "delete": true, "deletecollection": true, "list": true} {
			if err := w.m.Admit(Request{IsResource: true, Verb: verb, Resource: gr}); (err == nil) != passes {
				t.Errorf("%s %s: %v", verb, gr, err)
			}
			if err := w.m.Admit(Request{IsResource: true, Verb: verb, Resource: gr, StoresNothing: true}); err != nil {
				t.Errorf("%s %s, of which nothing is stored: %v", verb, gr, err)
			}
		}
	}
	full = errors.New("etcd does not answer")
	if err := w.m.Admit(Request{IsResource: true, Verb: "create", Resource: secrets, StoresNothing: true}); err == nil {
		t.Error("a storage that is away is asked for what stores nothing")
	}
}

// TestUnregisteredWithoutStorage: if the server has lost its Lease while the storage accepts deletes only, a delete
// is refused, with the reason why the server cannot register.
func TestUnregisteredWithoutStorage(t *testing.T) {
	var away error
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) { c.Storage = func() error { return away } })
	w.register()
	w.settle()
	w.m.ObserveLease(w.lease(w.m.ID()), true)
	away = fmt.Errorf("no space: %w", ErrDeletesOnly)
	err := w.m.Admit(Request{IsResource: true, Verb: "delete", Resource: secrets})
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "Lease") || !strings.Contains(err.Error(), "no space") {
		t.Errorf("error %v", err)
	}
}

func TestGateHandler(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	var rejected error
	known := true
	handler := w.m.Gate(
		http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusCreated) }),
		func(*http.Request) (Request, bool) {
			return Request{IsResource: true, Verb: "create", Resource: secrets}, known
		},
		func(rw http.ResponseWriter, _ *http.Request, err error) {
			rejected = err
			rw.WriteHeader(http.StatusServiceUnavailable)
		})
	serve := func() int {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, "/api/v1/namespaces/x/secrets", nil))
		return recorder.Code
	}
	if code := serve(); code != http.StatusServiceUnavailable || !apierrors.IsServiceUnavailable(rejected) {
		t.Errorf("closed: %d, %v", code, rejected)
	}
	w.register()
	w.settle()
	if code := serve(); code != http.StatusCreated {
		t.Errorf("open: %d", code)
	}
	known = false
	if code := serve(); code != http.StatusServiceUnavailable {
		t.Errorf("without request info: %d", code)
	}
}
