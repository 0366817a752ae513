package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

const readyPoll = 10 * time.Millisecond

// running are the protocol's loops of a serving process.
type running struct {
	p *protocol
	// controllers ends with stop; member ends with Depart.
	controllers context.Context
	stop        context.CancelFunc

	mu       sync.Mutex
	departed bool
	done     sync.WaitGroup
}

func newRunning(p *protocol) *running {
	r := &running{p: p}
	// Not a hook's context: on a stop the server still answers while it drains, and the
	// loops end in an order of their own (depart).
	r.controllers, r.stop = context.WithCancel(context.Background())
	return r
}

// start is the post-start hook that passes when every built-in resource is reported, or,
// of a server that reports nothing, when everybody can know that.
func (r *running) start(hook genericapiserver.PostStartHookContext) error {
	if r.begin() {
		return nil
	}
	if err := r.p.awaitReady(hook); err != nil && hook.Err() == nil {
		return err
	}
	return nil // a hook's error ends the process at once, also one that is stopping
}

// begin starts the loops, unless the server is stopping already.
func (r *running) begin() (departed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.departed {
		return true
	}
	r.done.Go(func() { r.p.member.Run(context.Background()) })
	if !r.p.options.silent() {
		r.done.Go(func() { r.p.collect.Run(r.controllers, r.p.election.leads) })
		r.done.Go(func() {
			if r.p.awaitCRDs(r.controllers) == nil {
				r.p.migrate.Run(r.controllers)
			}
		})
	}
	if r.p.options.Controllers {
		r.done.Go(func() { r.p.election.campaign(r.controllers) })
		if r.p.mirror != nil {
			r.done.Go(func() { r.p.mirror.campaign(r.controllers) })
		}
	}
	return false
}

// depart is the pre-shutdown hook: the controllers stop, no new writes begin, the last
// ones land, the reports are dropped and the Lease with them (DESIGN 3.4). The server still
// listens meanwhile. While etcd is away none of that can be done: then it leaves as if it
// had crashed.
func (r *running) depart() error {
	r.mu.Lock()
	r.departed = true
	r.mu.Unlock()
	r.stop()
	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	go r.p.watchOutage(ctx, giveUp)
	select {
	case <-r.p.drain.begin():
	case <-ctx.Done():
	case <-time.After(drainTimeout):
		klog.Background().Info("Writes are still under way; their fence stops them", "after", drainTimeout)
	}
	departing, cancel := context.WithTimeout(ctx, departTimeout)
	defer cancel()
	err := r.p.member.Depart(departing)
	if outage := context.Cause(ctx); outage != nil && err != nil {
		klog.Background().Info("Leaving without dropping the reports: the other servers do so when the Lease has run out", "err", outage)
		// Requests that wait for etcd would hold up the stop.
		err = r.p.etcd.close()
	}
	r.done.Wait()
	r.letStart(departing)
	return err
}

// watchOutage gives up when etcd is away, awayTimeout after it was called at the earliest.
func (p *protocol) watchOutage(ctx context.Context, giveUp context.CancelCauseFunc) {
	select {
	case <-time.After(awayTimeout):
	case <-ctx.Done():
		return
	}
	// It ends with ctx, or with an outage.
	_ = wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) {
		err := p.etcd.health.err()
		if err != nil {
			giveUp(err)
		}
		return err != nil, nil
	})
}

// letStart returns when the libraries' hooks have run: one that is cut off by a stop ends
// the process with a fatal error. If they never will, it ends the server and does not return.
func (r *running) letStart(ctx context.Context) {
	for _, started := range r.p.started {
		select {
		case <-started:
			continue
		default:
		}
		select {
		case <-started:
		case <-ctx.Done():
			close(r.p.abandoned)
			select {}
		}
	}
}

// awaitReady returns when every built-in resource is reported.
func (p *protocol) awaitReady(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) { return p.member.Ready() == nil, nil })
	if err != nil {
		return errors.Join(err, p.member.Ready())
	}
	return nil
}

// awaitRegistered returns when this server has an identity Lease: before, it may be that
// none has.
func (p *protocol) awaitRegistered(ctx context.Context) error {
	return wait.PollUntilContextCancel(ctx, bootstrapRetry, true, func(context.Context) (bool, error) { return p.member.ID() != "", nil })
}

// lead runs the elected controllers until ctx ends.
func (p *protocol) lead(ctx context.Context) {
	var controllers sync.WaitGroup
	controllers.Go(func() { p.namespaces.Run(ctx) })
	if !p.options.silent() {
		controllers.Go(func() {
			if p.awaitCRDs(ctx) == nil {
				p.trigger.Run(ctx)
			}
		})
	}
	controllers.Go(func() {
		if p.awaitCRDs(ctx) == nil && p.awaitRegistered(ctx) == nil {
			p.skew.Run(ctx)
		}
	})
	controllers.Wait()
}
