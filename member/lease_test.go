package member

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func TestConfigValidate(t *testing.T) {
	bury := func(context.Context, agree.ServerID) error { return nil }
	api := newWorld(t, nil).client
	for _, tc := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"valid", Config{Client: api, Bury: bury}, ""},
		{"no client", Config{Bury: bury}, "Client"},
		{"no bury", Config{Client: api}, "Bury"},
		{"half a second", Config{Client: api, Bury: bury, LeaseDuration: 1500 * time.Millisecond}, "whole seconds"},
		{"renewed too late", Config{Client: api, Bury: bury, LeaseDuration: 5 * time.Second}, "at most half of its duration of 5s"},
		{"workers", Config{Client: api, Bury: bury, Workers: -1}, "Workers"},
	} {
		_, err := New(tc.cfg)
		if (err != nil) != (tc.want != "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want an error with %q", tc.name, err, tc.want)
		}
	}
}

func TestSetBuiltinsValidates(t *testing.T) {
	m := newWorld(t, nil).m
	if err := m.SetBuiltins([]Resource{{GroupResource: secrets, Encoding: "v1"}}); err == nil {
		t.Error("a resource that cannot decode its encoding was accepted")
	}
}

func TestRegister(t *testing.T) {
	w := newWorld(t, nil)
	id := w.register()
	lease := w.lease(id)
	if !strings.HasPrefix(string(id), "apiserver-") || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != string(id) {
		t.Errorf("ID %q, holder %v", id, lease.Spec.HolderIdentity)
	}
	if lease.Labels[storageversion.IdentityLabel] != storageversion.IdentityLabelValue {
		t.Errorf("labels %v", lease.Labels)
	}
	for annotation, want := range map[string]string{
		storageversion.BinaryVersionAnnotation:           "1.37",
		storageversion.EmulationVersionAnnotation:        "1.36",
		storageversion.MinCompatibilityVersionAnnotation: "1.35",
		storageversion.BuildAnnotation:                   "0.3.0",
	} {
		if got := lease.Annotations[annotation]; got != want {
			t.Errorf("%s: %q, want %q", annotation, got, want)
		}
	}
	if *lease.Spec.LeaseDurationSeconds != 15 || !lease.Spec.RenewTime.Time.Equal(w.clock.Now()) {
		t.Errorf("spec %v", lease.Spec)
	}
	if err := w.m.Register(t.Context()); err != nil || w.m.ID() != id || w.Took() != "" {
		t.Errorf("registered twice: %v, %s", err, w.m.ID())
	}
}

func TestRegisterCreatesTheNamespace(t *testing.T) {
	for _, exists := range []bool{false, true} { // true: another server creates it first
		w := newWorld(t, nil)
		missing := true
		w.Before = func(call string) error {
			switch {
			case call == "create Namespace kube-system":
				missing = false
				if exists {
					return apierrors.NewAlreadyExists(schema.GroupResource{Resource: "namespaces"}, "kube-system")
				}
			case missing && strings.HasPrefix(call, "create Lease"):
				return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "kube-system")
			}
			return nil
		}
		if err := w.m.Register(t.Context()); err != nil {
			t.Fatalf("Register: %v", err)
		}
		w.lease(w.m.ID())
		err := w.client.Get(t.Context(), client.ObjectKey{Name: "kube-system"}, &corev1.Namespace{})
		if !exists && err != nil {
			t.Errorf("namespace: %v", err)
		}
	}
}

// TestRegisterNeverReusesAnID: if the reply to the Lease's creation is lost, the next attempt uses another ID,
// since the first Lease may exist.
func TestRegisterNeverReusesAnID(t *testing.T) {
	w := newWorld(t, nil)
	w.After = func(string) error { return errBroken }
	if err := w.m.Register(t.Context()); !errors.Is(err, errBroken) {
		t.Fatalf("Register: %v", err)
	}
	first := w.Took()
	if err := w.m.Ready(); w.m.ID() != "" || err == nil {
		t.Errorf("registered as %q, ready: %v", w.m.ID(), err)
	}
	w.After = nil
	if err := w.m.Register(t.Context()); err != nil {
		t.Fatalf("Register: %v", err)
	}
	if second := w.Took(); first == second || !strings.Contains(second, string(w.m.ID())) {
		t.Errorf("first %q, then %q", first, second)
	}
}

// TestRegisterAgainUnderTheSameID: with SameID, all attempts of one registration use one Lease, since nobody would
// delete the Leases of attempts that were answered late. The next registration uses another one.
func TestRegisterAgainUnderTheSameID(t *testing.T) {
	w := newWorld(t, nil, func(c *Config) { c.SameID = true })
	for _, fault := range []func(func(string) error){
		func(f func(string) error) { w.After = f },
		func(f func(string) error) { w.Before = f },
		func(f func(string) error) { w.After = f },
	} {
		fault(func(string) error { return errBroken })
		if err := w.m.Register(t.Context()); !errors.Is(err, errBroken) {
			t.Fatalf("Register: %v", err)
		}
		w.Before, w.After = nil, nil
	}
	w.Took()
	first := w.register()
	leases := &coordinationv1.LeaseList{}
	if err := w.client.List(t.Context(), leases); err != nil || len(leases.Items) != 1 || leases.Items[0].Name != string(first) {
		t.Errorf("%s has the Leases %v, %v", first, leases.Items, err)
	}
	if err := w.m.Renew(t.Context()); err != nil {
		t.Errorf("Renew: %v", err)
	}
	w.deleteLease(first)
	if err := w.m.Renew(t.Context()); !errors.Is(err, ErrLeaseGone) {
		t.Errorf("Renew: %v", err)
	}
	if second := w.register(); second == first {
		t.Errorf("%s was registered twice", first)
	}
}

// TestRenew: "An error while reading Leases means unknown, never gone."
func TestRenew(t *testing.T) {
	notServed := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", leases, "", "404 page not found", 0, true)
	for _, tc := range []struct {
		name    string
		change  func(w *world, id agree.ServerID)
		update  error // for the first attempt
		get     error
		gone    bool
		renewed bool
	}{
		{name: "renewed", renewed: true},
		{name: "somebody edited it", change: editLease(func(l *coordinationv1.Lease) { l.Annotations["x"] = "y" }), renewed: true},
		{name: "update fails", update: errBroken},
		{name: "conflict, then the read fails", update: conflict("x"), get: errBroken},
		{name: "conflict, then the API is not served", update: conflict("x"), get: notServed},
		{name: "a lost reply", update: conflict("x"), renewed: true},
		{name: "deleted", change: (*world).deleteLease, gone: true},
		{name: "deleted and made again by somebody", change: func(w *world, id agree.ServerID) { w.deleteLease(id); w.addLease(id) }, gone: true},
		{name: "no identity Lease any more", change: editLease(func(l *coordinationv1.Lease) { l.Labels = nil }), gone: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, []Resource{builtin(secrets)})
			id := w.register()
			w.settle()
			if tc.change != nil {
				tc.change(w, id)
			}
			w.Before = func(call string) error {
				err := tc.update
				if strings.HasPrefix(call, "update Lease") {
					tc.update = nil
					return err
				}
				return tc.get
			}
			w.clock.Step(time.Second)
			err := w.m.Renew(t.Context())
			if errors.Is(err, ErrLeaseGone) != tc.gone || (err == nil) != tc.renewed {
				t.Errorf("Renew: %v", err)
			}
			if (w.m.ID() == "") != tc.gone {
				t.Errorf("ID %q afterwards", w.m.ID())
			}
			if tc.renewed {
				lease := w.lease(id)
				if !lease.Spec.RenewTime.Time.Equal(w.clock.Now()) {
					t.Errorf("renewed at %v, want %v", lease.Spec.RenewTime, w.clock.Now())
				}
			}
			_, err = w.m.Revision(t.Context(), secrets, "v1")
			if (err != nil) != tc.gone {
				t.Errorf("Revision: %v", err)
			}
		})
	}
}

func editLease(edit func(*coordinationv1.Lease)) func(*world, agree.ServerID) {
	return func(w *world, id agree.ServerID) {
		lease := w.lease(id)
		edit(lease)
		w.Quietly(func() {
			must(w.t, w.client.Update(w.t.Context(), lease))
		})
	}
}

func TestObserveLease(t *testing.T) {
	for _, tc := range []struct {
		name    string
		event   func(m *Member, lease *coordinationv1.Lease)
		revokes bool
	}{
		{"renewal", func(m *Member, l *coordinationv1.Lease) { m.ObserveLease(l, false) }, false},
		{"deletion", func(m *Member, l *coordinationv1.Lease) { m.ObserveLease(l, true) }, true},
		{"deletion of another", func(m *Member, l *coordinationv1.Lease) { l.Name = "x"; m.ObserveLease(l, true) }, false},
		{"deletion of one of this name before", func(m *Member, l *coordinationv1.Lease) { l.UID = "x"; m.ObserveLease(l, true) }, false},
		{"label removed", func(m *Member, l *coordinationv1.Lease) { l.Labels = nil; m.ObserveLease(l, false) }, true},
		{"in a list", func(m *Member, l *coordinationv1.Lease) { m.ObserveLeases([]coordinationv1.Lease{*l}, 1000) }, false},
		{"not in a list", func(m *Member, _ *coordinationv1.Lease) { m.ObserveLeases(nil, 1000) }, true},
		{"not in a list that is older", func(m *Member, _ *coordinationv1.Lease) { m.ObserveLeases(nil, 1) }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, []Resource{builtin(secrets)})
			id := w.register()
			w.settle()
			tc.event(w.m, w.lease(id))
			if err := w.m.Ready(); (err != nil) != tc.revokes {
				t.Errorf("Ready: %v", err)
			}
		})
	}
}

func TestDepart(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	id := w.register()
	w.settle()
	failures := 2
	bury := w.m.cfg.Bury
	w.m.cfg.Bury = func(ctx context.Context, id agree.ServerID) error {
		if failures--; failures >= 0 {
			go w.clock.Step(time.Minute) // the back-off is over
			return errBroken
		}
		return bury(ctx, id)
	}
	done := make(chan error, 1)
	go func() { done <- w.m.Depart(t.Context()) }()
	w.Eventually("departed", func() bool {
		if w.clock.HasWaiters() {
			w.clock.Step(time.Minute)
		}
		return len(done) == 1
	})
	if err := <-done; err != nil {
		t.Fatalf("Depart: %v", err)
	}
	if len(w.buried) != 1 || w.buried[0] != id {
		t.Errorf("buried %v, want %s", w.buried, id)
	}
	w.Took()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.m.ObserveStorageVersions(nil, 1000)
	for name, err := range map[string]error{
		"Renew": w.m.Renew(t.Context()), "Register": w.m.Register(t.Context()),
		"Report": w.m.Report(t.Context(), secrets), "Ready": w.m.Ready(),
	} {
		if !errors.Is(err, errDeparted) {
			t.Errorf("%s after Depart: %v", name, err)
		}
	}
	if wait, err := w.m.Step(t.Context()); wait >= 0 || err != nil || w.Took() != "" {
		t.Errorf("something is done after Depart: %v, %v", wait, err)
	}
	for _, gr := range []schema.GroupResource{secrets, widgets} {
		if _, err := w.m.Revision(t.Context(), gr, "v1"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision(%s): %v", gr, err)
		}
	}
}

// TestDepartWaits: Depart waits for a report that is under way, so that none is made after the burial.
func TestDepartWaits(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	w.register()
	reached, proceed := make(chan struct{}), make(chan struct{})
	w.Before = func(call string) error {
		if call == "list LeaseList" {
			close(reached)
			<-proceed
		}
		return nil
	}
	reported := make(chan error, 1)
	go func() { reported <- w.m.Report(t.Context(), secrets) }()
	<-reached
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.m.Depart(ctx); !errors.Is(err, context.Canceled) || len(w.buried) != 0 {
		t.Fatalf("Depart: %v; buried %v", err, w.buried)
	}
	close(proceed)
	if err := <-reported; !errors.Is(err, errDeparted) {
		t.Errorf("Report: %v", err)
	}
	if err := w.m.Depart(t.Context()); err != nil || len(w.buried) != 1 {
		t.Errorf("Depart: %v; buried %v", err, w.buried)
	}
	if reports, _ := w.reports(secrets); len(reports) != 0 {
		t.Errorf("reported after all: %v", reports)
	}
}
