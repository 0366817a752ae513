package stock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// election is the Lease of an election.
func election(namespace, holder string, renewed time.Duration) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: electionLock},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(renewed)))},
	}
}

// Each namespace has an election of its own: who is elected in one must not work beside who is elected in another,
// whatever its clock says, as long as that one renews its Lease.
func TestRivals(t *testing.T) {
	for _, tc := range []struct {
		namespace string
		name      string
		lease     *coordinationv1.Lease
		renews    bool
		forbidden bool
		rival     bool
		first     bool // it goes before this one
	}{
		{"concord-system", "in the same namespace", election("concord-system", "x", 0), true, false, false, false},
		{"concord-system", "in one that goes before it", election("kube-system", "x", 0), true, false, true, true},
		{"kube-system", "in another one", election("concord-system", "x", 0), true, false, true, false},
		{"apps", "from a namespace of its own", election("concord-system", "x", 0), true, false, true, true},
		{"concord-system", "its clock is behind", election("kube-system", "x", -time.Hour), true, false, true, true},
		{"concord-system", "it has ended", election("kube-system", "", 0), true, false, false, false},
		{"concord-system", "it was killed", election("kube-system", "x", time.Hour), false, false, false, false},
		{"concord-system", "it may not be looked there", election("kube-system", "x", 0), true, true, false, false},
		{"concord-system", "where others may write Leases", election("apps", "x", 0), true, false, false, false},
	} {
		kube, clock := fake.NewClientset(tc.lease), testclock.NewFakeClock(now)
		kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return tc.forbidden, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "", errors.New("no right"))
		})
		r := (&controllers{kube: kube, config: Config{ElectionNamespace: tc.namespace, Clock: clock}}).newRivals()
		for range 2 {
			_ = r.none(t.Context(), false)
			clock.Step(electionLease)
			if tc.renews {
				tc.lease.Spec.RenewTime.Time = tc.lease.Spec.RenewTime.Add(electionRetry)
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

// Who finds another one elected does not run for election until that one ends; of two that are elected, one ends.
func TestCampaignAlone(t *testing.T) {
	rival := election(metav1.NamespaceSystem, "x", 0)
	kube := fake.NewClientset(rival)
	c := &controllers{kube: kube, config: Config{ElectionNamespace: "concord-system", Instance: "y", Clock: testclock.NewFakeClock(now)}}
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
	if err := c.campaign(ctx); !elected || looked < 2 {
		t.Errorf("elected: %v, after %d looks, %v", elected, looked, err)
	}
	rival.Spec.HolderIdentity = ptr.To("x")
	must(t, kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), rival, rival.Namespace))
	if err := c.leadAlone(t.Context(), c.newRivals()); !errors.Is(err, errRival) {
		t.Errorf("beside another one it ends with %v", err)
	}
}

// A process that lacks a right on the Lease of its election, whichever it is, is not ready, and says so until it has it.
func TestElectionForbidden(t *testing.T) {
	for _, verb := range []string{"get", "create", "update"} {
		kube, lacks := fake.NewClientset(), true
		if verb == "update" {
			kube = fake.NewClientset(election(metav1.NamespaceSystem, "", -time.Hour))
		}
		kube.PrependReactor(verb, "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return lacks, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, electionLock, errors.New("no right to "+verb))
		})
		c := &controllers{kube: kube, config: Config{ElectionNamespace: metav1.NamespaceSystem, Instance: "y", Clock: testclock.NewFakeClock(now)}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.campaign(ctx) }()
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
			err := c.ready()
			return err != nil && strings.Contains(err.Error(), "no right to "+verb), nil
		})
		cancel()
		if err != nil || <-ended != nil {
			t.Errorf("without the right to %s: %v, it is ready: %v", verb, err, c.ready())
		}
		lacks = false
		record, _, err := c.ballot.Get(t.Context())
		if apierrors.IsNotFound(err) {
			err = c.ballot.Create(t.Context(), resourcelock.LeaderElectionRecord{})
		} else if err == nil {
			err = c.ballot.Update(t.Context(), *record)
		}
		if err != nil || c.ready() != nil {
			t.Errorf("with the right to %s: %v, %v", verb, err, c.ready())
		}
	}
}

// TestElectedElsewhere: a process that was forbidden to write the Lease, and is not elected since another one is, is ready
// once that can be: it writes nothing then.
func TestElectedElsewhere(t *testing.T) {
	lease := election(metav1.NamespaceSystem, "x", time.Hour)
	kube := fake.NewClientset(lease)
	c := &controllers{kube: kube}
	c.ballot.Interface = &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}, Client: kube.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: "y"},
	}
	c.ballot.unwritten = errors.New("no right to update")
	if c.ready() == nil {
		t.Error("it is ready without a right")
	}
	if _, _, err := c.ballot.Get(t.Context()); err != nil || c.ready() != nil {
		t.Errorf("%v; with the Lease at another process it is not ready: %v", err, c.ready())
	}
}
