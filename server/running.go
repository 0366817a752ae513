package server

import (
	"context"
	"errors"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/api/storageversion"
)

// controllersLock is the Lease of the elected controllers.
const (
	controllersLock = "concord-controllers"
	readyPoll       = 10 * time.Millisecond
)

// running are the protocol's loops of a serving process.
type running struct {
	p *protocol
	// stop ends the controllers; member ends with Depart.
	stop context.CancelFunc
	done sync.WaitGroup
}

func newRunning(p *protocol) *running { return &running{p: p, stop: func() {}} }

// start is the post-start hook that passes when every built-in resource is reported.
func (r *running) start(hook genericapiserver.PostStartHookContext) error {
	// Not the hook's context: on a stop the server still answers while it drains, and the
	// loops end in an order of their own (depart).
	ctx, stop := context.WithCancel(context.WithoutCancel(hook))
	r.stop = stop
	r.done.Go(func() { r.p.member.Run(context.WithoutCancel(hook)) })
	r.done.Go(func() { r.p.observeServers(ctx) })
	r.done.Go(func() {
		if r.p.awaitCRDs(ctx) == nil {
			r.p.migrate.Run(ctx)
		}
	})
	if r.p.options.Controllers {
		r.done.Go(func() { r.p.campaign(ctx) })
	}
	return r.p.awaitReady(hook)
}

// depart is the pre-shutdown hook: the controllers stop, no new writes begin, the last
// ones land, the reports are dropped (DESIGN 3.4). The server still listens meanwhile.
func (r *running) depart() error {
	r.stop()
	select {
	case <-r.p.drain.begin():
	case <-time.After(drainTimeout):
		klog.Background().Info("Writes are still under way; their fence stops them", "after", drainTimeout)
	}
	ctx, cancel := context.WithTimeout(context.Background(), departTimeout)
	defer cancel()
	err := r.p.member.Depart(ctx)
	r.done.Wait()
	return err
}

// awaitReady returns when every built-in resource is reported.
func (p *protocol) awaitReady(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) { return p.member.Ready() == nil, nil })
	if err != nil {
		return errors.Join(err, p.member.Ready())
	}
	return nil
}

// observeServers watches the identity Leases, on every server, so that whoever is
// elected next need not start counting.
func (p *protocol) observeServers(ctx context.Context) {
	p.collect.Run(ctx, p.leading.Load)
}

// campaign runs for election until ctx ends, and leads when it is elected.
func (p *protocol) campaign(ctx context.Context) {
	duration := p.options.ControllerLeaseDuration
	for ctx.Err() == nil {
		leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{
				LeaseMeta:  metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: controllersLock},
				Client:     p.kube.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: p.identity},
			},
			LeaseDuration:   duration,
			RenewDeadline:   duration * 2 / 3,
			RetryPeriod:     duration / 6,
			ReleaseOnCancel: true,
			Name:            controllersLock,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: p.lead,
				OnStoppedLeading: func() { p.leading.Store(false) },
			},
		})
	}
}

// lead runs the elected controllers until ctx ends.
func (p *protocol) lead(ctx context.Context) {
	p.leading.Store(true)
	defer p.leading.Store(false)
	var controllers sync.WaitGroup
	controllers.Go(func() { p.namespaces.Run(ctx) })
	controllers.Go(func() {
		if p.awaitCRDs(ctx) == nil {
			p.trigger.Run(ctx)
		}
	})
	controllers.Wait()
}
