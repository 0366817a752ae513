package join

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/concord-dev/concord/api/storageversion"
)

// election elects one server to run the controllers.
type election struct {
	client kubernetes.Interface
	// lock is the name of the Lease by which servers are elected.
	lock     string
	identity string
	duration time.Duration
	// lead runs the controllers until its context ends.
	lead func(context.Context)

	// serving is held during a term: client-go does not wait for the end of the last one
	// before it begins another.
	serving sync.Mutex
	term    atomic.Pointer[context.Context]
}

// leads says whether this server is elected now.
func (e *election) leads() bool {
	term := e.term.Load()
	return term != nil && (*term).Err() == nil
}

// campaign runs for election until ctx ends. It returns when the last term has ended.
func (e *election) campaign(ctx context.Context) {
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: e.lock},
				Client:     e.client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: e.identity},
			},
			LeaseDuration:   e.duration,
			RenewDeadline:   e.duration * 2 / 3,
			RetryPeriod:     e.duration / 6,
			ReleaseOnCancel: true,
			Name:            e.lock,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: e.serve,
				OnStoppedLeading: func() {},
			},
		})
	}
	e.serving.Lock()
	defer e.serving.Unlock()
}

// serve is one term.
func (e *election) serve(ctx context.Context) {
	e.serving.Lock()
	defer e.serving.Unlock()
	if ctx.Err() != nil {
		return // it ended while the one before was ending
	}
	e.term.Store(&ctx)
	e.lead(ctx)
}
