package trigger

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

const (
	// minRetry and maxRetry bound the time between two looks that ended in errors.
	minRetry = 50 * time.Millisecond
	maxRetry = 30 * time.Second
	// stepTimeout bounds one look, in real time.
	stepTimeout = 30 * time.Second
	// tellPeriod is how often an error is logged that goes on.
	tellPeriod = time.Minute
	// lastLookPause is the time between two last looks of a resource.
	lastLookPause = 10 * time.Second
	// byResource indexes migrations.
	byResource = "resource"
	// worker is the name under which panics of its watches are counted.
	worker = "trigger-watch"
)

// run is one run of a Controller, while it leads.
type run struct {
	*Controller
	queue workqueue.TypedRateLimitingInterface[schema.GroupResource]

	mu sync.Mutex
	// starting are the resources that wait for servers that are still starting, or whose
	// look, which may find that out, is under way.
	starting map[schema.GroupResource]bool
	// told maps error texts, without the resource's name, to the time when they were last logged.
	told map[string]time.Time
	// looking holds the resources whose last look is under way, looked those that succeeded or were refused, until the
	// next look.
	looking map[schema.GroupResource]bool
	looked  map[schema.GroupResource]lastLook
	// lookers are the goroutines of last looks. Each that looks has a place in under, which has as many as
	// there are workers: many definitions may be due at once.
	lookers sync.WaitGroup
	under   chan struct{}
	// seen is nil until everything has been read once. The Controller's mu guards it.
	seen *seen
}

func newRun(c *Controller) *run {
	return &run{
		// The copy lists migrations from its own watch, and remembers nothing of a time before
		// it led.
		Controller: newController(c.cfg),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[schema.GroupResource](minRetry, maxRetry),
			workqueue.TypedRateLimitingQueueConfig[schema.GroupResource]{Clock: c.cfg.Clock}),
		starting: map[schema.GroupResource]bool{}, told: map[string]time.Time{},
		looking: map[schema.GroupResource]bool{}, looked: map[schema.GroupResource]lastLook{}, under: make(chan struct{}, c.cfg.Workers),
	}
}

// Run looks at every resource whenever something about it changes, and from time to time,
// until ctx ends. Call it while this server leads, once at a time.
func (c *Controller) Run(ctx context.Context) {
	r := newRun(c)
	c.setCurrent(r)
	defer c.setCurrent(nil)
	watched, sources := r.sources()
	var wg sync.WaitGroup
	for _, source := range sources {
		wg.Go(func() { source.RunWithContext(ctx) })
	}
	context.AfterFunc(ctx, r.queue.ShutDown)
	synced := true
	for _, source := range sources {
		synced = synced && cache.WaitForCacheSync(ctx.Done(), source.HasSynced)
	}
	if synced {
		r.cached = watched.of
		c.setSeen(r, watched)
		for range c.cfg.Workers {
			wg.Go(func() { r.work(ctx) })
		}
	}
	wg.Wait()
	r.lookers.Wait()
}

func (c *Controller) setCurrent(r *run) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current = r
}

func (c *Controller) setSeen(r *run, s seen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r.seen = &s
}

// Look has Run, if it runs, look at a resource because of something that it does not watch
// itself: the versions that a CustomResourceDefinition says are stored.
func (c *Controller) Look(gr schema.GroupResource) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil {
		c.current.queue.Add(gr)
	}
}

func (r *run) work(ctx context.Context) {
	for {
		gr, stop := r.queue.Get()
		if stop {
			return
		}
		r.one(ctx, gr)
		r.queue.Done(gr)
	}
}

// one looks at a resource and arranges for the next look.
func (r *run) one(ctx context.Context, gr schema.GroupResource) {
	// A server that has started by the time its Lease is read must not go unnoticed.
	r.setStarting(gr, true)
	var result Result
	err := workers.Do(ctx, "trigger", func() (err error) {
		for {
			if result, err = r.timely(ctx, gr); err != nil || result.Count == nil {
				return err
			}
			if err = r.Count(ctx, gr, *result.Count); err != nil {
				return err
			}
		}
	})
	r.setStarting(gr, result.Starting)
	if err != nil {
		log := r.cfg.Logger
		if changed(err) || errors.Is(err, context.Canceled) || !r.news(gr, err) {
			log = log.V(2)
		}
		log.Info("Looking again", "resource", gr.String(), "reason", err.Error())
		r.queue.AddRateLimited(gr)
		return
	}
	r.queue.Forget(gr)
	if result.LastLook != nil {
		r.lookLast(ctx, gr, *result.LastLook)
	}
	switch {
	case result.Again:
		r.queue.Add(gr)
	case result.After > 0:
		r.queue.AddAfter(gr, result.After)
	}
}

// news reports whether an error was not logged in the last tellPeriod, for this or another resource: hundreds may fail
// for one reason, again and again.
func (r *run) news(gr schema.GroupResource, err error) bool {
	now, reason := r.cfg.Clock.Now(), strings.ReplaceAll(err.Error(), gr.String(), "")
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.told, func(_ string, at time.Time) bool { return now.Sub(at) >= tellPeriod })
	if _, told := r.told[reason]; told {
		return false
	}
	r.told[reason] = now
	return true
}

// timely is Step within stepTimeout; a count, or a last look, that it asks for takes its own time.
func (r *run) timely(ctx context.Context, gr schema.GroupResource) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	r.mu.Lock()
	looked := r.looked[gr]
	delete(r.looked, gr)
	r.mu.Unlock()
	return r.step(ctx, gr, looked)
}

// lookLast has a last look made, unless one is waited for, and has the resource looked at again after it.
// That may take as long as a migration, in which heartbeats go on.
func (r *run) lookLast(ctx context.Context, gr schema.GroupResource, target evolve.Target) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looking[gr] {
		return
	}
	r.looking[gr] = true
	r.lookers.Go(func() {
		select {
		case <-ctx.Done():
			return
		case r.under <- struct{}{}:
			defer func() { <-r.under }()
		}
		err := workers.Do(ctx, "last-look", func() error { return r.cfg.LastLook(ctx, gr, target) })
		last := lastLook{target: target}
		if errors.As(err, &last.refused) {
			last.target = evolve.Target{}
		}
		r.mu.Lock()
		delete(r.looking, gr)
		if err == nil || last.refused != "" {
			r.looked[gr] = last
		}
		r.mu.Unlock()
		if err == nil {
			r.queue.Add(gr)
			return
		}
		if ctx.Err() == nil && r.news(gr, err) {
			r.cfg.Logger.Info("storedVersions are not pruned", "resource", gr.String(), "reason", err.Error())
		}
		r.queue.AddAfter(gr, lastLookPause)
	})
}

func (r *run) setStarting(gr schema.GroupResource, starting bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if starting {
		r.starting[gr] = true
	} else {
		delete(r.starting, gr)
	}
}

// serverChanged looks again at the resources that wait for servers that start.
func (r *run) serverChanged() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for gr := range r.starting {
		r.queue.Add(gr)
	}
}

// sources returns the watches, and the stores of two of them.
func (r *run) sources() (seen, []cache.Controller) {
	c := r.cfg.Client
	_, versions := listwatch.Informer(c, worker, &apiserverinternalv1alpha1.StorageVersionList{}, nil, changes(nil, func(sv *apiserverinternalv1alpha1.StorageVersion) {
		if gr, err := storageversion.GroupResource(sv.Name); err == nil {
			r.queue.Add(gr)
		}
	}))
	stored, states := listwatch.Informer(c, worker, &migrationv1alpha1.StorageStateList{}, nil, changes(sameState, func(s *migrationv1alpha1.StorageState) {
		r.queue.Add(schema.GroupResource{Group: s.Spec.Resource.Group, Resource: s.Spec.Resource.Resource})
	}))
	indexers := cache.Indexers{byResource: func(obj any) ([]string, error) {
		return []string{migrationv1alpha1.Resource(obj.(*migrationv1alpha1.StorageVersionMigration)).String()}, nil
	}}
	store, migrations := listwatch.Informer(c, worker, &migrationv1alpha1.StorageVersionMigrationList{}, indexers, changes(sameMigration, func(m *migrationv1alpha1.StorageVersionMigration) {
		r.queue.Add(migrationv1alpha1.Resource(m))
	}))
	_, leases := listwatch.Informer(c, worker, &coordinationv1.LeaseList{}, nil, func(was, is *coordinationv1.Lease, gone bool) {
		if gone || was != nil && was.Annotations[storageversion.ReportedAnnotation] != is.Annotations[storageversion.ReportedAnnotation] {
			r.serverChanged()
		}
	}, client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabelsSelector{Selector: storageversion.Identities})
	return seen{stored, store}, []cache.Controller{versions, states, migrations, leases}
}

// changes handles every object that is created, deleted, or changed in a field on which a look depends; same, if not
// nil, reports whether none of these fields has changed.
func changes[T any, P interface {
	*T
	client.Object
}](same func(was, is P) bool, handle func(P)) func(was, is P, gone bool) {
	return func(was, is P, _ bool) {
		if was != nil && (was.GetResourceVersion() == is.GetResourceVersion() || same != nil && was.GetUID() == is.GetUID() && same(was, is)) {
			return
		}
		handle(is)
	}
}

// sameState reports whether two versions of a StorageState differ only in the heartbeat and in fields on which nothing
// depends. The trigger's own heartbeats are such changes.
func sameState(was, is *migrationv1alpha1.StorageState) bool {
	a, b := migrationv1alpha1.ViewState(was), migrationv1alpha1.ViewState(is)
	a.Heartbeat = b.Heartbeat
	return reflect.DeepEqual(a, b) && was.Status.CurrentStorageVersionHash == is.Status.CurrentStorageVersionHash &&
		slices.Equal(was.Status.PersistedStorageVersionHashes, is.Status.PersistedStorageVersionHashes)
}

// sameMigration says whether two readings of a migration mean the same to a decision,
// as those do between which only its progress was written.
func sameMigration(was, is *migrationv1alpha1.StorageVersionMigration) bool {
	return migrationv1alpha1.Resource(was) == migrationv1alpha1.Resource(is) &&
		migrationv1alpha1.ViewMigration(was) == migrationv1alpha1.ViewMigration(is)
}
