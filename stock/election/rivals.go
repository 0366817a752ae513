package election

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// rivals are processes that are elected in other namespaces. Each namespace has an election of its own, and two
// that work at once take each other's migrations away, so that none ends.
type rivals struct {
	kube kubernetes.Interface
	// namespace is where this process is elected.
	namespace string
	clock     clock.PassiveClock
	// renewed holds, for each namespace, the time in its Lease and since when the Lease has had that time, because
	// clocks differ.
	renewed map[string]renewal
}

type renewal struct {
	said metav1.MicroTime
	at   time.Time
}

// errRival says that another process is elected in another namespace.
var errRival = errors.New("another process is elected in another namespace")

func (e *Election) newRivals() *rivals {
	return &rivals{kube: e.config.Kube, namespace: e.config.Namespace, clock: e.config.Clock, renewed: map[string]renewal{}}
}

// usual are the namespaces of elections: the default, and the manifests'. In others people may write Leases who
// are to have no say in this.
var usual = []string{metav1.NamespaceSystem, "concord-system"}

// none returns an error that names the process that is elected in another of the usual namespaces. With first it looks
// only in the namespaces that precede this process's: of two processes that were elected at once, one has to give way.
func (r *rivals) none(ctx context.Context, first bool) error {
	for _, namespace := range usual {
		if namespace == r.namespace {
			if first {
				return nil
			}
			continue
		}
		lease, err := r.kube.CoordinationV1().Leases(namespace).Get(ctx, lock, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("get the Lease %s of %s: %w", lock, namespace, err)
		}
		if holder := r.holder(lease); holder != "" {
			return fmt.Errorf("%w: %s in %s; they would undo each other's work: end that one, or start this one with --leader-elect-resource-namespace=%s", errRival, holder, namespace, namespace)
		}
	}
	return nil
}

// holder returns the holder of a Lease; "" if the Lease was not seen to be renewed for the time that it lasts.
func (r *rivals) holder(lease *coordinationv1.Lease) string {
	now, said := r.clock.Now(), ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{})
	known, ok := r.renewed[lease.Namespace]
	if !ok || !known.said.Equal(&said) {
		known = renewal{said, now}
		r.renewed[lease.Namespace] = known
	}
	if now.Sub(known.at) >= lasts {
		return ""
	}
	return ptr.Deref(lease.Spec.HolderIdentity, "")
}

// leadAlone leads until another process is elected in a namespace that precedes this process's. r knows the processes
// that were there before.
func (e *Election) leadAlone(ctx context.Context, r *rivals) error {
	if err := r.none(ctx, true); errors.Is(err, errRival) {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.config.Lead(ctx) })
	group.Go(func() error {
		err := wait.PollUntilContextCancel(ctx, renewDeadline, false, func(ctx context.Context) (bool, error) {
			if err := r.none(ctx, true); errors.Is(err, errRival) {
				return false, err
			}
			return false, nil // who cannot ask cannot renew the Lease, either
		})
		if errors.Is(err, errRival) {
			return err
		}
		return nil // ctx has ended
	})
	return group.Wait()
}
