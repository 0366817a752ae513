package stock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/controller/owncrds"
	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/stock/replicas"
	"github.com/concord-dev/concord/workers"
)

const (
	// retry is the time between tries at the steps that have to work before all else, and between
	// looks whether Concord servers are still there.
	retry = 2 * time.Second
	// patientFor: after so many times the longest gap between two rounds that succeed this process is not ready, if none
	// has; with the default settings after three minutes.
	patientFor = 4
	// queued is how many changed StorageVersions may wait for a watcher.
	queued = 1000
)

// lead works as long as this process is elected. While Concord servers are there it leaves
// everything to them.
func (c *controllers) lead(ctx context.Context) error {
	for ctx.Err() == nil && c.awaitStock(ctx) == nil { // awaitStock fails when ctx has ended
		err := c.work(ctx)
		if err != nil && !errors.Is(err, errConcord) {
			return err
		}
	}
	return nil
}

// awaitStock returns when no Concord server is there, or ctx ends.
func (c *controllers) awaitStock(ctx context.Context) error {
	looking := c.newAsker(logr.Discard()) // those of the work tell
	return c.await(ctx, waiting, func(ctx context.Context) error {
		f, err := looking.Find(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("kube-apiservers are not found: %w", err)
		case len(f.Concord) == 0:
			return nil
		}
		err = fmt.Errorf("%w: everything is left to them: %s", errConcord, strings.Join(f.Concord, ", "))
		if len(f.Replicas) > 0 {
			err = fmt.Errorf("%w; beside them %s reports nothing, so that they agree on nothing", err, f.Replicas[0].Lease)
		}
		return err
	})
}

// waiting is what await logs while other processes do the work: this one is ready.
const waiting = "Waiting"

// await repeats try until it succeeds, and logs each new reason why it does not. Its error is ctx's.
func (c *controllers) await(ctx context.Context, missing string, try func(context.Context) error) error {
	last := ""
	return wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		if err != nil && (missing != waiting || apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)) {
			c.lacking.Store(&err)
		} else {
			c.lacking.Store(nil)
		}
		if err != nil && err.Error() != last {
			last = err.Error()
			c.config.Logger.Info(missing, "reason", last)
		}
		return err == nil, nil
	})
}

func (c *controllers) newAsker(logger logr.Logger) *replicas.Asker {
	return replicas.New(replicas.Config{
		Kube: c.kube, Rest: c.config.Rest, Override: c.config.ReplicaAddresses, Together: c.config.Settings.BestEffort,
		Timeout: c.config.ReplicaTimeout, Clock: c.config.Clock, Logger: logger,
	})
}

// newObserver returns an observer that begins with these StorageStates.
func (c *controllers) newObserver(states map[schema.GroupResource]evolve.State, logger logr.Logger) *observer {
	// Before a round those are asked that were silent, which takes two and a half timeouts at most (replicas.Asker).
	gap := 2*c.config.Poll + 5*c.config.ReplicaTimeout/2
	return &observer{
		asking: c.newAsker(logger), clock: c.config.Clock, logger: logger, patience: patientFor * gap,
		soon:   make(chan struct{}, 1),
		memory: observed.NewMemory(observed.Config{Settle: c.config.Settle, Gap: gap, States: states}),
		known:  knownVersions{}, kinds: map[schema.GroupResource]string{}, unheard: map[schema.GroupResource]string{},
	}
}

// work holds the parts of an elected process.
type work struct {
	config   Config
	objects  client.WithWatch
	observer *observer
	trigger  *trigger.Controller
	migrate  *claim.Controller
	policy   *policy
	// fields is nil if managedFields are not to be cleaned.
	fields *fields
	tally  *tally.Controller
}

func (c *controllers) work(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := c.await(ctx, "The definitions of migration.k8s.io are not there yet", c.installed); err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	w, err := c.newWork(ctx)
	if err != nil || w == nil {
		return err
	}
	c.working.Store(w)
	defer c.working.Store(nil)
	var running sync.WaitGroup
	run := func(worker string, f func(context.Context)) {
		running.Go(func() { workers.Loop(ctx, worker, f) })
	}
	run("definitions", w.observer.definitions.run)
	if cache.WaitForCacheSync(ctx.Done(), w.observer.definitions.source.HasSynced) && w.first(ctx, cancel) {
		run("observer", func(ctx context.Context) {
			if err := w.observer.run(ctx, w.config.Poll); err != nil {
				cancel(err)
			}
		})
		run("trigger", w.trigger.Run)
		run("migrate", w.migrate.Run)
		if w.config.Mirror != MirrorNever {
			run("mirror", c.mirror)
		}
		run("tally", w.tally.Run)
		if w.fields != nil {
			run("managed-fields", w.fields.run)
		}
	}
	running.Wait()
	w.observer.broadcast.Shutdown()
	if cause := context.Cause(ctx); errors.Is(cause, errConcord) {
		return cause
	}
	return nil
}

// installed installs the definitions, if it is to, and says why they are not served yet.
func (c *controllers) installed(ctx context.Context) error {
	if c.config.InstallDefinitions {
		if err := owncrds.Install(ctx, c.objects, migrationv1alpha1.CRDs()); err != nil {
			return err
		}
	}
	for _, want := range migrationv1alpha1.CRDs() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.objects.Get(ctx, client.ObjectKeyFromObject(want), crd); err != nil {
			if apierrors.IsNotFound(err) && !c.config.InstallDefinitions {
				err = fmt.Errorf("%w: apply the manifests of concord controllers, or start with --install-crds", err)
			}
			return err
		}
		if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
			return fmt.Errorf("%s is not established", crd.Name)
		}
	}
	return nil
}

// newWork reads the StorageStates from before and wires the parts of the work; nil if ctx ends first.
func (c *controllers) newWork(ctx context.Context) (*work, error) {
	states, err := c.states(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr // ctx has ended
	}
	services, err := apiregistrationclient.NewForConfig(c.config.Rest)
	if err != nil {
		return nil, fmt.Errorf("a client for APIServices: %w", err)
	}
	o := c.newObserver(states, c.config.Logger.WithName("observer"))
	o.services, o.broadcast = services, watch.NewLongQueueBroadcaster(queued, watch.WaitIfChannelFull)
	w := &work{config: c.config, objects: c.objects, observer: o, policy: newPolicy(c.config.Settings)}
	m, err := newMigrator(o, c.config)
	if err != nil {
		return nil, err
	}
	view := viewOf(c.objects, o, c.config.Instance)
	ended := func(m *migrationv1alpha1.StorageVersionMigration, status string) { migrationMetrics().Ended(m, status) }
	w.trigger = trigger.New(trigger.Config{
		Client: view, Kinds: o, Instance: c.config.Instance, Clock: c.config.Clock, Policy: w.policy.of, LastLook: m.lastLookAt, Ended: ended,
		Logger: c.config.Logger.WithName("trigger"),
	})
	o.definitions = watchDefinitions(c.objects, func(gr schema.GroupResource) {
		o.hurry()
		w.trigger.Look(gr)
	}, func(is *apiextensionsv1.CustomResourceDefinition) { w.migrate.ObserveDefinition(is) })
	if c.config.CleanFields {
		if w.fields, err = newFields(c.config, c.objects, o.definitions); err != nil {
			return nil, err
		}
	}
	w.tally = tally.New(tally.Config{Kept: w.trigger.Kept, Client: c.objects, Metrics: tallyMetrics(), Logger: c.config.Logger.WithName("tally")})
	w.migrate = claim.New(claim.Config{
		Client: view, ID: func() agree.ServerID { return agree.ServerID(c.config.Instance) }, Rewriter: m, API: m, Clock: c.config.Clock,
		Elsewhere: func(context.Context, schema.GroupVersionResource) (string, error) {
			return "kube-apiservers store it, and do not report", nil
		},
		Later: w.later, Metrics: migrationMetrics(), Logger: c.config.Logger.WithName("migrate"),
	})
	return w, nil
}

// later reports whether a migration has to wait for others: definitions that somebody changed, and migrations that
// somebody asked for, do not wait for all built-in resources, which begin again together.
func (w *work) later(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Labels[migrationv1alpha1.MadeByLabel] == migrationv1alpha1.MadeByTrigger && w.observer.definitions.of(migrationv1alpha1.Resource(m)) == nil
}

// states reads the StorageStates. The error is ctx's.
func (c *controllers) states(ctx context.Context) (map[schema.GroupResource]evolve.State, error) {
	states, list := map[schema.GroupResource]evolve.State{}, &migrationv1alpha1.StorageStateList{}
	err := c.await(ctx, "StorageStates are not read yet", func(ctx context.Context) error { return c.objects.List(ctx, list) })
	for i := range list.Items {
		states[schema.GroupResource(list.Items[i].Spec.Resource)] = migrationv1alpha1.ViewState(&list.Items[i])
	}
	return states, err
}

// first asks all kube-apiservers once before anything else begins, and says whether that may.
func (w *work) first(ctx context.Context, cancel context.CancelCauseFunc) bool {
	err := wait.PollUntilContextCancel(ctx, retry, true, func(ctx context.Context) (bool, error) {
		switch err := w.observer.round(ctx); {
		case errors.Is(err, errConcord):
			return false, err
		case err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil:
			w.config.Logger.Info("kube-apiservers were not asked yet", "reason", err.Error())
			return false, nil
		default:
			return err == nil, nil
		}
	})
	if err != nil {
		cancel(err)
	}
	return err == nil
}

// policy remembers the facts of the time before that observed.Policy needs.
type policy struct {
	settings observed.Settings

	mu sync.Mutex
	// met are the resources of which a StorageState was seen, even if it is gone now: a definition without its
	// finalizer can be deleted while its objects stay for another definition of the same name.
	met map[schema.GroupResource]bool
	// looked is when a resource was first seen to be stored in no encoding but the target's.
	looked map[schema.GroupResource]lookedAt
}

type lookedAt struct {
	target evolve.Target
	at     time.Time
}

func newPolicy(s observed.Settings) *policy {
	return &policy{settings: s, met: map[schema.GroupResource]bool{}, looked: map[schema.GroupResource]lookedAt{}}
}

// of is a trigger's Policy.
func (p *policy) of(o evolve.Observation, crd *apiextensionsv1.CustomResourceDefinition) evolve.Policy {
	p.mu.Lock()
	defer p.mu.Unlock()
	met := p.met[o.Resource]
	if o.State != nil {
		p.met[o.Resource] = true
	} else if o.StorageVersion == nil && crd == nil { // it is gone
		delete(p.looked, o.Resource)
	}
	var annotations map[string]string
	if crd != nil {
		annotations = crd.Annotations
	}
	return observed.Policy(o, annotations, p.settings, p.since(o), met)
}

// since returns when the resource was first seen to be stored only in the encoding that it should have.
func (p *policy) since(o evolve.Observation) time.Time {
	if o.State == nil || o.StorageVersion == nil {
		return o.Now
	}
	target, agreed := o.StorageVersion.Agreement()
	if !agreed || !o.State.Only(target.Encoding) {
		delete(p.looked, o.Resource)
		return o.Now
	}
	if was, ok := p.looked[o.Resource]; !ok || was.target != target {
		p.looked[o.Resource] = lookedAt{target, o.Now}
	}
	return p.looked[o.Resource].at
}
