package election

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// election returns an election in a namespace; if elected, it runs until its context ends.
func election(kube kubernetes.Interface, namespace string) *Election {
	return New(Config{
		Kube: kube, Namespace: namespace, Instance: "y", Clock: testclock.NewFakeClock(now),
		Lead: func(ctx context.Context) error { <-ctx.Done(); return nil },
		Await: func(ctx context.Context, try func(context.Context) error) error {
			return wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(ctx context.Context) (bool, error) { return try(ctx) == nil, nil })
		},
	})
}

// leaseOf returns the Lease of an election.
func leaseOf(namespace, holder string, renewed time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: lock},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(renewed)))},
	}
}

// TestRivals: each namespace has an election of its own. A process that is elected in one namespace must not work beside one that
// is elected in another, as long as that one renews its Lease, whatever its clock shows.
func TestRivals(t *testing.T) {
	for _, tc := range []struct {
		namespace string
		name      string
		lease     *coordinationv1.Lease
		renews    bool
		forbidden bool
		rival     bool
		first     bool // the other one has precedence
	}{
		{"concord-system", "in the same namespace", leaseOf("concord-system", "x", 0), true, false, false, false},
		{"concord-system", "in one that goes before it", leaseOf("kube-system", "x", 0), true, false, true, true},
		{"kube-system", "in another one", leaseOf("concord-system", "x", 0), true, false, true, false},
		{"apps", "from a namespace of its own", leaseOf("concord-system", "x", 0), true, false, true, true},
		{"concord-system", "its clock is behind", leaseOf("kube-system", "x", -time.Hour), true, false, true, true},
		{"concord-system", "it has ended", leaseOf("kube-system", "", 0), true, false, false, false},
		{"concord-system", "it was killed", leaseOf("kube-system", "x", time.Hour), false, false, false, false},
		{"concord-system", "it may not be looked there", leaseOf("kube-system", "x", 0), true, true, false, false},
		{"concord-system", "where others may write Leases", leaseOf("apps", "x", 0), true, false, false, false},
	} {
		kube, clock := fake.NewClientset(tc.lease), testclock.NewFakeClock(now)
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return tc.forbidden, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no right"))
		})
		r := New(Config{Kube: kube, Namespace: tc.namespace, Clock: clock}).newRivals()
		for range 2 {
			_ = r.none(t.Context(), false)
			clock.Step(lasts)
			if tc.renews {
				tc.lease.Spec.RenewTime.Time = tc.lease.Spec.RenewTime.Add(retry)
				must(t, kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), tc.lease.DeepCopy(), tc.lease.Namespace))
			}
		}
		if err := r.none(t.Context(), false); errors.Is(err, errRival) != tc.rival || tc.rival && !strings.Contains(err.Error(), "--leader-elect-resource-namespace="+tc.lease.Namespace) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if err := r.none(t.Context(), true); errors.Is(err, errRival) != tc.first {
			t.Errorf("%s: it has to give way, since %v", tc.name, err)
		}
	}
}

// TestCampaignAlone: a process does not run for election while one in another namespace is elected. If two are elected, one ends.
func TestCampaignAlone(t *testing.T) {
	rival := leaseOf(metav1.NamespaceSystem, "x", 0)
	kube := fake.NewClientset(rival)
	e := election(kube, "concord-system")
	ctx, cancel := context.WithCancel(t.Context())
	var elected bool
	kube.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		elected = true
		cancel()
		return false, nil, nil
	})
	looked := 0
	kube.PrependReactor("get", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetNamespace() != rival.Namespace {
			return false, nil, nil
		}
		if looked++; looked == 2 {
			if elected {
				t.Error("it ran for election beside another process")
			}
			rival.Spec.HolderIdentity = ptr.To("")
			must(t, kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), rival, rival.Namespace))
		}
		return false, nil, nil
	})
	if err := e.Campaign(ctx); !elected || looked < 2 {
		t.Errorf("elected: %v, after %d looks, %v", elected, looked, err)
	}
	rival.Spec.HolderIdentity = ptr.To("x")
	must(t, kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), rival, rival.Namespace))
	if err := e.leadAlone(t.Context(), e.newRivals()); !errors.Is(err, errRival) {
		t.Errorf("beside another one it ends with %v", err)
	}
}

// TestDeposed: a process that loses its election says so; one that is stopped does not.
func TestDeposed(t *testing.T) {
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			kube := fake.NewClientset()
			e := election(kube, metav1.NamespaceSystem)
			ended, leads := make(chan error, 1), make(chan struct{})
			lead := e.config.Lead
			e.config.Lead = func(ctx context.Context) error { close(leads); return lead(ctx) }
			go func() { ended <- e.Campaign(t.Context()) }()
			<-leads
			synctest.Wait()
			other := leaseOf(metav1.NamespaceSystem, "x", time.Hour)
			other.Spec.LeaseDurationSeconds = ptr.To[int32](3600)
			kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, lock, errors.New("another process wrote it"))
			})
			must(t, kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), other, other.Namespace))
			if err := <-ended; !errors.Is(err, errDeposed) {
				t.Errorf("it ends with %v", err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		e := election(fake.NewClientset(), metav1.NamespaceSystem)
		ctx, cancel := context.WithCancel(t.Context())
		lead := e.config.Lead
		e.config.Lead = func(ctx context.Context) error { cancel(); return lead(ctx) }
		if err := e.Campaign(ctx); err != nil {
			t.Errorf("stopped, it ends with %v", err)
		}
	})
}

// TestElectionForbidden: a process without a permission on the Lease of its election, or without a valid token, says so
// until it has it.
func TestElectionForbidden(t *testing.T) {
	for verb, refusal := range map[string]error{
		"get":    apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, lock, errors.New("no right to get")),
		"create": apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, lock, errors.New("no right to create")),
		"update": apierrors.NewUnauthorized("no right to update"),
	} {
		kube, lacks := fake.NewClientset(), true
		if verb == "update" {
			kube = fake.NewClientset(leaseOf(metav1.NamespaceSystem, "", -time.Hour))
		}
		kube.PrependReactor(verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return lacks, nil, refusal
		})
		e := election(kube, metav1.NamespaceSystem)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- e.Campaign(ctx) }()
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			err := e.Forbidden()
			return err != nil && strings.Contains(err.Error(), "no right to "+verb), nil
		})
		cancel()
		if err != nil || <-ended != nil {
			t.Errorf("without the right to %s: %v, it says %v", verb, err, e.Forbidden())
		}
		lacks = false
		record, _, err := e.ballot.Get(t.Context())
		if apierrors.IsNotFound(err) {
			err = e.ballot.Create(t.Context(), resourcelock.LeaderElectionRecord{})
		} else if err == nil {
			err = e.ballot.Update(t.Context(), *record)
		}
		if err != nil || e.Forbidden() != nil {
			t.Errorf("with the right to %s: %v, %v", verb, err, e.Forbidden())
		}
	}
}

// TestElectedElsewhere: a process could not write the Lease, and now another process is elected. It does not say any more that it
// may not write the Lease, since it does not have to.
func TestElectedElsewhere(t *testing.T) {
	lease := leaseOf(metav1.NamespaceSystem, "x", time.Hour)
	kube := fake.NewClientset(lease)
	e := election(kube, lease.Namespace)
	e.ballot.Interface = &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}, Client: kube.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "y"},
	}
	e.ballot.unwritten = errors.New("no right to update")
	if e.Forbidden() == nil {
		t.Error("it says nothing without a right")
	}
	if _, _, err := e.ballot.Get(t.Context()); err != nil || e.Forbidden() != nil {
		t.Errorf("%v; with the Lease at another process it says %v", err, e.Forbidden())
	}
}
