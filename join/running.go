package join

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/join/elect"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/workers"
)

const (
	// storageVersionHook is the proposal's name of the check that passes when all
	// built-in resources are reported.
	storageVersionHook = "built-in-resources-storage-version-updater"
	// silentCheck passes when everybody can know that this server does not report.
	silentCheck = "identity"

	readyPoll = 10 * time.Millisecond
	// drainTimeout bounds how long a stopping server waits for the writes it has begun.
	drainTimeout  = 30 * time.Second
	departTimeout = 15 * time.Second
	// awayTimeout bounds both while etcd is away or takes no puts: nothing can land then.
	awayTimeout = 2 * time.Second
)

// Start serves the StorageVersions from a server whose New has returned, the last one of the delegation chain, and
// runs the protocol with it. Call it before PrepareRun.
func (j *Join) Start(server *genericapiserver.GenericAPIServer) error {
	if j.hosting != nil && j.crds.stores {
		return errors.New("join: an aggregated server cannot store custom resources: Config.Host is set, and CustomResources was called")
	}
	if j.started.Load() {
		return errors.New("join: Start was called twice")
	}
	if err := j.storing.intact(); err != nil {
		return err
	}
	j.inProcess.Serve(server.Handler)
	j.running.started = server.MuxAndDiscoveryCompleteSignals()
	hook, check := "concord-"+silentCheck, silentCheck
	if !j.config.Silent {
		hook, check = storageVersionHook, "storage-versions"
		if err := j.serveProtocol(server); err != nil {
			return err
		}
	}
	if err := j.attach(server, hook, check); err != nil {
		return fmt.Errorf("join: Start, which comes before PrepareRun: %w", err)
	}
	return nil
}

// attach adds the server's hooks and checks. hook and check are the names of the post-start hook and the readiness check.
// After PrepareRun no check can be added.
func (j *Join) attach(server *genericapiserver.GenericAPIServer, hook, check string) error {
	if j.config.Keyring != nil {
		j.storing.checkKeys(j.reporting.member.ID)
		if err := server.AddPostStartHook("concord-encryption", j.storing.followKeys); err != nil {
			return err
		}
	}
	if j.crds.stores {
		if err := server.AddPostStartHook("concord-bootstrap", j.bootstrap.start); err != nil {
			return err
		}
	}
	if err := server.AddPostStartHook(hook, j.running.start); err != nil {
		return err
	}
	if err := server.AddPreShutdownHook("concord-depart", afterOthers(server, j.running.depart)); err != nil {
		return err
	}
	if j.hosting != nil {
		server.RegisterDestroyFunc(j.closeAfter)
	}
	j.started.Store(true)
	if err := server.AddHealthChecks(j.etcd.health.Restored()); err != nil {
		return err
	}
	return server.AddReadyzChecks(healthz.NamedCheck(check, func(*http.Request) error { return j.Ready() }), j.etcd.health.Space())
}

// delegated takes the pre-shutdown hooks of the servers that this one delegates to, and returns
// what runs them: the library runs all hooks one after the other, in any order.
func delegated(server *genericapiserver.GenericAPIServer) func() error {
	delegate, ok := server.NextDelegate().(*genericapiserver.GenericAPIServer)
	if !ok {
		return func() error { return nil }
	}
	for name := range delegate.PreShutdownHooks() {
		delete(server.PreShutdownHooks(), name)
	}
	return delegate.RunPreShutdownHooks
}

// afterOthers is a pre-shutdown hook that begins with those of the servers that this one delegates to, which take its
// address away, for which it still has to write, and departs when the shutdown delay is over. Until then load balancers
// may send requests here, and the server serves on: the library waits for both the delay and the hooks.
func afterOthers(server *genericapiserver.GenericAPIServer, depart func() error) func() error {
	delay, others := server.ShutdownDelayDuration, delegated(server)
	return func() error {
		over := time.After(delay)
		err := others()
		<-over
		return errors.Join(err, depart())
	}
}

// closeAfter calls Close when an aggregated server has ended, because nobody else does.
func (j *Join) closeAfter() {
	if err := j.Close(); err != nil {
		klog.Background().Error(err, "The end of the connection to etcd")
	}
}

// serveProtocol serves the StorageVersions, reports the resources that the server was built to
// store, and makes the parts that depend on both.
func (j *Join) serveProtocol(server *genericapiserver.GenericAPIServer) error {
	if err := j.storing.serveStorageVersions(server, j.local); err != nil {
		return err
	}
	if err := j.reporting.report(server, j.storing); err != nil {
		return err
	}
	if err := j.leading.newMirror(server, j.storing.switchedOn); err != nil {
		return err
	}
	j.counting.serve(server)
	if j.hosting == nil { // an aggregated server's cluster has servers that show it
		if err := serveDashboard(j.running.controllers, j.config, server); err != nil {
			return err
		}
	}
	j.crds.changed = func(is *apiextensionsv1.CustomResourceDefinition) {
		j.migrating.observe(is)
		j.leading.trigger.Look(migrationv1alpha1.ResourceOf(is))
	}
	return j.crds.follow(j.reporting.member)
}

// loops are the controllers' loops, by the names of their workers.
func (j *Join) loops() map[string]func(context.Context) {
	loops := map[string]func(context.Context){"definitions": j.crds.run}
	if !j.config.Silent {
		loops["collect"] = j.bootstrap.permitted(roles.Collector, func(ctx context.Context) { j.reporting.collect.Run(ctx, j.leading.election.Leads) })
	}
	if j.migrating.claim != nil {
		loops["migrate"] = j.bootstrap.acting(roles.Migrator, j.migrating.claim.Run)
	}
	if !j.config.NoControllers {
		for worker, e := range map[string]*elect.Election{"election": j.leading.election, "mirror-election": j.leading.mirror} {
			if e != nil {
				loops[worker] = j.bootstrap.permitted(roles.Election, e.Campaign)
			}
		}
	}
	return loops
}

// running are the protocol's loops of a serving process.
type running struct {
	silent    bool
	etcd      *Etcd
	reporting *reporting
	// loops returns the controllers' loops, by the names of their workers, when they are to begin.
	loops func() map[string]func(context.Context)
	// controllers ends with stop; member ends with Depart.
	controllers context.Context
	stop        context.CancelFunc

	// started are closed when the libraries' parts have begun; see letStart.
	started map[string]<-chan struct{}
	// abandoned is closed, by abandon, when the server ends without the generic server's consent.
	abandoned chan struct{}
	abandon   func()

	mu       sync.Mutex
	departed bool
	// controlling are the controllers' loops, membership is the member's.
	controlling, membership sync.WaitGroup
}

func newRunning(silent bool, etcd *Etcd, reporting *reporting, loops func() map[string]func(context.Context)) *running {
	r := &running{silent: silent, etcd: etcd, reporting: reporting, loops: loops, abandoned: make(chan struct{})}
	r.abandon = sync.OnceFunc(func() { close(r.abandoned) })
	// Not a hook's context: on a stop the server still answers while it drains, and the
	// loops end in an order of their own (depart).
	r.controllers, r.stop = context.WithCancel(context.Background())
	return r
}

// start is the post-start hook that passes when every built-in resource is reported, or,
// of a server that reports nothing, when everybody can know that.
func (r *running) start(hook genericapiserver.PostStartHookContext) error {
	if err := r.reporting.allReported(); err != nil {
		return err
	}
	if r.begin() {
		return nil
	}
	if err := r.reporting.awaitReady(hook); err != nil && hook.Err() == nil {
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
	r.membership.Go(func() { r.reporting.member.Run(context.Background()) })
	if r.reporting.host != nil {
		r.reporting.host.Start(r.controllers)
	}
	for worker, loop := range r.loops() {
		r.controlling.Go(func() { workers.Loop(r.controllers, worker, loop) })
	}
	return false
}

// depart is the pre-shutdown hook: the controllers end, no new writes begin, the last ones finish, and the reports are
// dropped with the Lease. The server still listens meanwhile, and takes the last writes of the
// controllers, with which they give up migrations and elections. While etcd is unreachable or accepts no puts none of
// that is possible; then the server leaves as if it had crashed.
func (r *running) depart() error {
	r.mu.Lock()
	r.departed = true
	r.mu.Unlock()
	r.stop()
	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	workers.Go(ctx, "outage", func() { watchOutage(ctx, r.refuses, giveUp) })
	controlled := make(chan struct{})
	go func() {
		defer close(controlled)
		r.controlling.Wait()
	}()
	if !await(ctx, controlled) {
		klog.Background().Info("Controllers have not ended yet; what they write from now on is refused", "after", drainTimeout)
	}
	drained := r.reporting.drain.Begin()
	stuck := !await(ctx, drained)
	if r.silent { // an outage may have ended the wait, and etcd be back before the Lease is deleted
		select {
		case <-drained:
		default:
			stuck = true
		}
	}
	departing, cancel := context.WithTimeout(ctx, departTimeout)
	defer cancel()
	depart := r.reporting.member.Depart
	if r.reporting.host != nil {
		depart = r.reporting.host.Depart
	}
	if stuck && r.silent {
		klog.Background().Info("Writes are still under way, and no fence would stop them: leaving without deleting the identity Lease, and without etcd; the other servers drop the Lease when it has run out", "after", drainTimeout)
		r.reporting.member.Leave()
		depart = func(context.Context) error { return r.etcd.Close() }
	} else if stuck {
		klog.Background().Info("Writes are still under way; their fence stops them", "after", drainTimeout)
	}
	err := depart(departing)
	if outage := context.Cause(ctx); outage != nil && err != nil {
		klog.Background().Info("Leaving without dropping the reports: the other servers do so when the Lease has run out", "err", outage)
		if err = nil; r.etcd.health.Away() != nil {
			err = r.etcd.Close() // requests that wait for it would hold up the stop
		}
	}
	<-controlled
	r.membership.Wait()
	r.letStart(departing)
	return err
}

// refuses says why etcd takes no puts at present; nil where it does, also at an older revision than before.
func (r *running) refuses() error {
	if r.etcd.health.WentBack() != nil {
		return r.etcd.health.Away()
	}
	return r.etcd.health.Unwritable()
}

// await returns when an event has happened or is not worth to be waited for any more, and
// false if it took too long.
func await(ctx context.Context, event <-chan struct{}) bool {
	select {
	case <-event:
	case <-ctx.Done():
	case <-time.After(drainTimeout):
		return false
	}
	return true
}

// watchOutage gives up when etcd has an outage, awayTimeout after it was called at the earliest.
func watchOutage(ctx context.Context, outage func() error, giveUp context.CancelCauseFunc) {
	select {
	case <-time.After(awayTimeout):
	case <-ctx.Done():
		return
	}
	// It ends with ctx, or with an outage.
	_ = wait.PollUntilContextCancel(ctx, readyPoll, true, func(context.Context) (bool, error) {
		err := outage()
		if err != nil {
			giveUp(err)
		}
		return err != nil, nil
	})
}

// Run runs a prepared server until it has stopped, after the end of ctx, and then returns
// what run returns. If etcd does not answer while the server stops, or the server was stopped
// before it had begun, Run returns although run does not: the process is to end.
func (j *Join) Run(ctx context.Context, run func(context.Context) error) error {
	finished := make(chan error, 1)
	go func() { finished <- run(ctx) }()
	ended := make(chan struct{})
	defer close(ended)
	defer context.AfterFunc(ctx, func() { j.running.abandonInOutage(ended) })()
	select {
	case err := <-finished:
		return err
	case <-j.running.abandoned:
		return nil
	}
}

// abandonInOutage abandons a server that stops while etcd is away: the last requests of others,
// such as those for upstream's identity Lease, would be tried for minutes.
func (r *running) abandonInOutage(ended <-chan struct{}) {
	ctx, giveUp := context.WithCancelCause(context.Background())
	defer giveUp(nil)
	workers.Go(ctx, "outage", func() { watchOutage(ctx, r.etcd.health.Away, giveUp) })
	select {
	case <-ctx.Done():
	case <-ended:
		return
	}
	select {
	case <-time.After(awayTimeout): // in which the server says why it leaves so
	case <-ended:
	}
	r.abandon()
}

// letStart returns when the libraries' hooks have run, because a hook that is interrupted by a stop ends the process
// with a fatal error. If they will never run, it ends the server and does not return.
func (r *running) letStart(ctx context.Context) {
	for _, started := range r.started {
		select {
		case <-started:
			continue
		default:
		}
		select {
		case <-started:
		case <-ctx.Done():
			r.abandon()
			select {}
		}
	}
}
