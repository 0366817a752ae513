// Package elect elects one server of a cluster to do something, by a Lease in kube-system.
package elect

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/concord-dev/concord/api/storageversion"
)

// Election elects one server at a time.
type Election struct {
	// Client reaches the server as a user who may write the Lease.
	Client coordinationclient.LeasesGetter
	// Lock is the name of the Lease by which servers are elected.
	Lock string
	// Identity is this server's.
	Identity string
	// Duration is how long the elected one stays so without a renewal.
	Duration time.Duration
	// Lead is a term: the work of the elected one until its context ends.
	Lead func(context.Context)

	// serving is held during a term: client-go does not wait for the end of the last one
	// before it begins another.
	serving sync.Mutex
	term    atomic.Pointer[context.Context]
}

// Leads says whether this server is elected now.
func (e *Election) Leads() bool {
	term := e.term.Load()
	return term != nil && (*term).Err() == nil
}

// Campaign runs for election until ctx ends. It returns when the last term has ended.
func (e *Election) Campaign(ctx context.Context) {
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: e.Lock},
				Client:     e.Client,
				LockConfig: resourcelock.ResourceLockConfig{Identity: e.Identity},
			},
			LeaseDuration:   e.Duration,
			RenewDeadline:   e.Duration * 2 / 3,
			RetryPeriod:     e.Duration / 6,
			ReleaseOnCancel: true,
			Name:            e.Lock,
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
func (e *Election) serve(ctx context.Context) {
	e.serving.Lock()
	defer e.serving.Unlock()
	if ctx.Err() != nil {
		return // it ended while the one before was ending
	}
	e.term.Store(&ctx)
	e.Lead(ctx)
}
