package skew

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/testbed/fakeapi"
)

var errBroken = errors.New("connection refused")

// world is a fake API with one controller. The calls of the controller are recorded, and a test can
// make them fail.
type world struct {
	*fakeapi.API
	t     *testing.T
	clock *clocktesting.FakeClock
	c     *Controller
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))}
	w.API = fakeapi.New(t, fakeapi.Config{
		Types:    []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, versionv1alpha1.AddToScheme},
		Statuses: []client.Object{&versionv1alpha1.ClusterVersion{}}, Unnamed: true, Ignored: []string{"update", "delete"},
	})
	w.c = w.newController()
	return w
}

func (w *world) newController() *Controller {
	w.t.Helper()
	return New(Config{Client: w.API, Clock: w.clock, Instance: "concord-a", Metrics: NewMetrics()})
}

// servers replaces all identity Leases; each server is "id=binary/emulation/min".
func (w *world) servers(servers ...string) {
	w.t.Helper()
	ctx := context.Background()
	must(w.t, w.Raw.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(storageversion.IdentityNamespace)))
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
		must(w.t, w.Raw.Create(ctx, lease))
	}
	// A Lease that is no server's, such as that of the elected controllers.
	other := &coordinationv1.Lease{}
	other.Name, other.Namespace = "concord-controllers", storageversion.IdentityNamespace
	must(w.t, w.Raw.Create(ctx, other))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// step lets a second pass and runs one step of the controller.
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
	must(w.t, w.Raw.Get(context.Background(), client.ObjectKey{Name: versionv1alpha1.ClusterVersionName}, cluster))
	return cluster
}

// status returns the values of the columns that kubectl get shows.
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
	must(w.t, w.Raw.List(context.Background(), &events, client.InNamespace("default")))
	slices.SortFunc(events.Items, func(a, b corev1.Event) int { return strings.Compare(a.Name, b.Name) })
	return events.Items
}

// expectEvents compares the types and reasons of all Events so far, sorted.
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
