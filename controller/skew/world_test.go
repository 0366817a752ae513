package skew

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

var errBroken = errors.New("connection refused")

// world is an API with one controller; the calls that go over the wire are recorded and can fail.
type world struct {
	t      *testing.T
	client client.WithWatch
	clock  *clocktesting.FakeClock
	c      *Controller

	mu    sync.Mutex
	calls []string
	// before runs before a call, after when it was carried out; their error is the answer.
	before, after func(call string) error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, versionv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	w.client = fake.NewClientBuilder().WithScheme(scheme).WithStatusSubresource(&versionv1alpha1.ClusterVersion{}).
		WithInterceptorFuncs(interceptor.Funcs{
			List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
				return w.call("list", o, func() error { return c.List(ctx, o, opts...) })
			},
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				return w.call("get", o, func() error { return c.Get(ctx, key, o, opts...) })
			},
			Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return w.call("create", o, func() error { return c.Create(ctx, o, opts...) })
			},
			SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
				return w.call("update "+sub, o, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
			},
		}).Build()
	w.c = w.newController()
	return w
}

func (w *world) newController() *Controller {
	w.t.Helper()
	return New(Config{Client: w.client, Clock: w.clock, Instance: "concord-a", Metrics: NewMetrics()})
}

func (w *world) call(verb string, o any, do func() error) error {
	_, kind, _ := strings.Cut(fmt.Sprintf("%T", o), ".")
	call := verb + " " + kind
	w.mu.Lock()
	w.calls = append(w.calls, call)
	before, after := w.before, w.after
	w.mu.Unlock()
	if before != nil {
		if err := before(call); err != nil {
			return err
		}
	}
	err := do()
	if after != nil {
		if lost := after(call); lost != nil {
			return lost
		}
	}
	return err
}

// quietly runs without recording or failing.
func (w *world) quietly(do func() error) {
	w.t.Helper()
	w.mu.Lock()
	calls, before, after := w.calls, w.before, w.after
	w.before, w.after = nil, nil
	w.mu.Unlock()
	err := do()
	w.mu.Lock()
	w.calls, w.before, w.after = calls, before, after
	w.mu.Unlock()
	if err != nil {
		w.t.Fatal(err)
	}
}

// took returns the calls since the last took.
func (w *world) took() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	calls := strings.Join(w.calls, "; ")
	w.calls = nil
	return calls
}

// servers replaces all identity Leases; each server is "id=binary/emulation/min".
func (w *world) servers(servers ...string) {
	w.t.Helper()
	w.quietly(func() error {
		ctx := context.Background()
		if err := w.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(storageversion.IdentityNamespace)); err != nil {
			return err
		}
		for _, s := range servers {
			id, versions, _ := strings.Cut(s, "=")
			lease := &coordinationv1.Lease{}
			lease.Name, lease.Namespace = id, storageversion.IdentityNamespace
			lease.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
			if v := strings.Split(versions, "/"); len(v) == 3 {
				lease.Annotations = map[string]string{
					storageversion.BinaryVersionAnnotation:           v[0],
					storageversion.EmulationVersionAnnotation:        v[1],
					storageversion.MinCompatibilityVersionAnnotation: v[2],
				}
			}
			if err := w.client.Create(ctx, lease); err != nil {
				return err
			}
		}
		// A Lease of somebody else, as the elected controllers have one.
		other := &coordinationv1.Lease{}
		other.Name, other.Namespace = "concord-controllers", storageversion.IdentityNamespace
		return w.client.Create(ctx, other)
	})
}

// step lets a second pass and looks.
func (w *world) step() {
	w.t.Helper()
	w.clock.Step(time.Second)
	if err := w.c.Step(w.t.Context()); err != nil {
		w.t.Fatalf("Step: %v", err)
	}
}

func (w *world) cluster() *versionv1alpha1.ClusterVersion {
	w.t.Helper()
	cluster := &versionv1alpha1.ClusterVersion{}
	w.quietly(func() error {
		return w.client.Get(context.Background(), client.ObjectKey{Name: versionv1alpha1.ClusterVersionName}, cluster)
	})
	return cluster
}

// status returns the values that kubectl get shows.
func (w *world) status() string {
	w.t.Helper()
	s := w.cluster().Status
	of := func(conditionType string) string {
		if c := meta.FindStatusCondition(s.Conditions, conditionType); c != nil {
			return string(c.Status) + " " + c.Reason
		}
		return "none"
	}
	return fmt.Sprintf("%d %s..%s agree=%s allowed=%s", s.ServerCount, s.OldestEmulation, s.NewestEmulation,
		of(versionv1alpha1.ConditionVersionsAgree), of(versionv1alpha1.ConditionSkewAllowed))
}

func (w *world) expectStatus(want string) {
	w.t.Helper()
	if got := w.status(); got != want {
		w.t.Errorf("status:\n got %s\nwant %s", got, want)
	}
}

func (w *world) events() []corev1.Event {
	w.t.Helper()
	var events corev1.EventList
	w.quietly(func() error { return w.client.List(context.Background(), &events, client.InNamespace("default")) })
	slices.SortFunc(events.Items, func(a, b corev1.Event) int { return strings.Compare(a.Name, b.Name) })
	return events.Items
}

// expectEvents compares all events so far, sorted.
func (w *world) expectEvents(want ...string) {
	w.t.Helper()
	var got []string
	for _, e := range w.events() {
		got = append(got, e.Type+" "+e.Reason)
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		w.t.Errorf("events:\n got %v\nwant %v", got, want)
	}
}
