// Package trigger keeps StorageStates true and starts migrations by itself (KEP-2343). It
// only carries out what package evolve decides: Step looks at one resource, Run looks
// whenever something changes. It runs on the elected server; two that both believe they
// lead do no harm, since every write is conditional on what was read.
package trigger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// Kinds gives the answers of discovery about resources.
type Kinds interface {
	// Kind returns the kind of the resource's objects. If no server serves the resource, meta.IsNoMatchError holds for
	// the error; any other error means that this is not known.
	Kind(ctx context.Context, gr schema.GroupResource) (string, error)
}

// KindsOf answers from a RESTMapper. A mapper that can be reset reads discovery again before it answers that a
// resource is not served.
func KindsOf(mapper meta.RESTMapper) Kinds { return mapped{mapper} }

type mapped struct{ meta.RESTMapper }

func (m mapped) Kind(_ context.Context, gr schema.GroupResource) (string, error) {
	kind, err := m.exactly(gr)
	if meta.IsNoMatchError(err) {
		meta.MaybeResetRESTMapper(m.RESTMapper)
		kind, err = m.exactly(gr)
	}
	return kind, err
}

// exactly finds the kind of the resource of that name in that group. A RESTMapper is made for what people type: it
// also takes singular names, capitals, the beginning of a group, and any group in place of none.
func (m mapped) exactly(gr schema.GroupResource) (string, error) {
	resources, err := m.ResourcesFor(gr.WithVersion(""))
	if err != nil {
		return "", err
	}
	for _, gvr := range resources {
		if gvr.GroupResource() != gr {
			continue
		}
		kinds, err := m.KindsFor(gvr)
		if err != nil {
			return "", err
		}
		for _, gvk := range kinds {
			if gvk.Group == gr.Group {
				return gvk.Kind, nil
			}
		}
	}
	return "", &meta.NoResourceMatchError{PartialResource: gr.WithVersion("")}
}

// Config configures a Controller.
type Config struct {
	// Client reads and writes API objects, uncached. Its scheme must hold StorageVersions,
	// StorageStates, StorageVersionMigrations, CustomResourceDefinitions, Leases and Events.
	Client client.WithWatch
	// Kinds is asked for the kinds of built-in resources, and which resources exist.
	Kinds Kinds
	// Census, if not nil, counts the stored values of a resource, and returns the encodings that it has found besides
	// the target's (evolve.Census), or ErrNotStored. It begins with a linearizable read. Without it, for example where
	// nobody can read etcd, a migration's own result counts.
	Census func(ctx context.Context, gr schema.GroupResource, target evolve.Target) ([]agree.Encoding, error)
	// Instance names this process in events.
	Instance string
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Settle is for how long after a server that does not report has gone no migration begins: it
	// may still complete writes (evolve.Silenced). Default: none.
	Settle time.Duration
	// Elapsed returns the time since some moment, for Settle, whatever is done to the clock.
	// Default: by Clock, whose real one has a monotonic reading.
	Elapsed func() time.Duration
	// Workers is how many resources Run looks at at a time. Default: 4.
	Workers int
	// Policy decides what the trigger may do by itself, given an observation and its CustomResourceDefinition, if
	// there is one. Nil: everything.
	Policy func(o evolve.Observation, crd *apiextensionsv1.CustomResourceDefinition) evolve.Policy
	// LastLook, if not nil, looks once more, directly before storedVersions are pruned, at what may be stored
	// in another encoding than the target's. It takes its own time; an error keeps storedVersions.
	LastLook func(ctx context.Context, gr schema.GroupResource, target evolve.Target) error
	// Ended is called for every migration that the trigger has ended, with the status Failed or, if it was deleted
	// before its end, Aborted. May be nil.
	Ended func(m *migrationv1alpha1.StorageVersionMigration, status string)
	// Logger defaults to none.
	Logger logr.Logger
}

// Controller looks at resources and does what evolve.Decide says.
type Controller struct {
	cfg Config
	// cached is where migrations are listed from while Run runs, nil else: their view may
	// lag, and one list per look is too many.
	cached func(schema.GroupResource) ([]*migrationv1alpha1.StorageVersionMigration, error)

	mu sync.Mutex
	// counted has the result of the last count of each resource.
	counted map[schema.GroupResource]evolve.Census
	// newest are the resourceVersions of the StorageStates that were read last.
	newest map[schema.GroupResource]string
	// silences has for each resource since when the silence that is over has been seen to be.
	silences map[schema.GroupResource]silence
	// failed has for each resource that was looked at when its failed migrations were first seen.
	failed map[schema.GroupResource]map[types.UID]failure
	// current is the run that is under way.
	current *run
}

// New returns a Controller; it does nothing by itself.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	cfg.Workers = cmp.Or(cfg.Workers, 4)
	if cfg.Ended == nil {
		cfg.Ended = func(*migrationv1alpha1.StorageVersionMigration, string) {}
	}
	if cfg.Elapsed == nil {
		begun := cfg.Clock.Now()
		cfg.Elapsed = func() time.Duration { return cfg.Clock.Since(begun) }
	}
	return newController(cfg)
}

func newController(cfg Config) *Controller {
	return &Controller{
		cfg: cfg, counted: map[schema.GroupResource]evolve.Census{}, newest: map[schema.GroupResource]string{},
		silences: map[schema.GroupResource]silence{}, failed: map[schema.GroupResource]map[types.UID]failure{},
	}
}

// Result is the outcome of one look.
type Result struct {
	// Done are the actions carried out, in order.
	Done []evolve.Action
	// Count, if not nil, is the target for which the stored values have to be counted, by
	// Controller.Count, before more can be decided; nothing was done.
	Count *evolve.Target
	// LastLook, if not nil, is the target for which there has to be a last look before storedVersions are
	// pruned; the rest was done.
	LastLook *evolve.Target
	// Again says that this look changed the facts on which the next one decides.
	Again bool
	// After is when to look again even if nothing changes; 0 is never.
	After time.Duration
	// Starting says that this look waits for servers that are still starting.
	Starting bool
}

// Step looks once at a resource and acts. It makes its API calls one after the other and starts no goroutine. After an
// error, conflicts included, it has to be repeated; what was done stands. A failed action does not hold up independent
// ones, because an action that can never succeed would do so for ever.
func (c *Controller) Step(ctx context.Context, gr schema.GroupResource) (Result, error) {
	return c.step(ctx, gr, lastLook{})
}

// RefusedLook is an error of a last look that stays until somebody changes something: the StorageState says it.
type RefusedLook string

// Error implements error.
func (r RefusedLook) Error() string { return string(r) }

// lastLook is a last look for a target, or why there could be none.
type lastLook struct {
	target  evolve.Target
	refused RefusedLook
}

// step is Step, directly after a last look, if there was one.
func (c *Controller) step(ctx context.Context, gr schema.GroupResource, looked lastLook) (Result, error) {
	var result Result
	l, err := c.look(ctx, gr)
	if err != nil {
		return result, fmt.Errorf("look at %s: %w", gr, err)
	}
	if c.cfg.Census == nil {
		l.Observation = evolve.Believed(l.Observation)
	} else if target, counts := evolve.Counts(l.Observation); counts {
		if l.Census = c.census(gr, target); l.Census == nil {
			result.Count = &target
			return result, nil
		}
	}
	actions := evolve.Decide(l.Observation)
	if evolve.Starts(actions) || len(l.Migrations) > 0 && l.StorageVersion == nil || l.NotServed() {
		// Only now it matters which servers are still starting and whether the resource exists.
		if err := c.lookCloser(ctx, l); err != nil {
			return result, fmt.Errorf("look at %s: %w", gr, err)
		}
		actions = evolve.Decide(l.Observation)
	}
	var failed error // the first
	refused := ""    // why the definition's storedVersions could not be changed
	for _, action := range actions {
		if failed != nil && evolve.Dependent(action) {
			continue
		}
		p, prunes := action.(evolve.Prune)
		_, keeps := action.(evolve.Keep)
		l.rehearses = prunes && c.cfg.LastLook != nil && looked.target != p.Target
		if err := c.act(ctx, l, action); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("%s: %s: %w", gr, action, err))
			if (prunes || keeps) && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) {
				refused = err.Error()
			}
			if changed(err) && !apierrors.IsAlreadyExists(err) {
				break // the others were decided on the same look
			}
			continue
		}
		if l.rehearses {
			result.LastLook = &p.Target
			continue
		}
		result.add(action)
		if stopped(action) && l.State == nil && c.cached == nil {
			result.Again = true // else the watch that fills the cache leads to the next look
		}
		if _, deleted := action.(evolve.DeleteState); deleted && l.StorageVersion != nil {
			result.Again = true // it begins anew
		}
		if log := c.cfg.Logger.V(2); log.Enabled() {
			log.Info("Done", "resource", gr.String(), "action", action.String())
		}
	}
	if result.LastLook != nil && refused == "" {
		refused = looked.refused.Error()
	}
	if failed == nil || refused != "" {
		if err := c.remember(ctx, l, result, refused); err != nil {
			failed = cmp.Or(failed, fmt.Errorf("%s: remember what has ended: %w", gr, err))
		}
	}
	if l.State != nil {
		result.wait(evolve.UntilBeat(gr, l.Now))
	}
	return result, failed
}

// stopped says whether an action has stopped a migration that the trigger made.
func stopped(a evolve.Action) bool {
	switch a.(type) {
	case evolve.DeleteMigration, evolve.ResetMigration:
		return true
	}
	return false
}

func (r *Result) add(action evolve.Action) {
	r.Done = append(r.Done, action)
	switch a := action.(type) {
	case evolve.WriteState:
		r.Again = r.Again || !a.Beat
	case evolve.Wait:
		r.wait(a.For)
		r.Starting = r.Starting || a.Starting
	}
}

func (r *Result) wait(d time.Duration) {
	if r.After == 0 || d < r.After {
		r.After = d
	}
}

// errChanged means that something is not any more as it was when the look began.
var errChanged = errors.New("it has changed meanwhile")

// changed reports whether the error only means that another writer was faster.
func changed(err error) bool {
	return errors.Is(err, errChanged) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || storageversion.IsGone(err)
}
