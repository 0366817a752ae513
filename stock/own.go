package stock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/stock/observed"
)

// Own migrates custom resources of one program, which says when to look at them. It keeps
// nothing in the cluster but status.storedVersions: with these it begins at every start.
type Own struct {
	config   Config
	objects  client.WithWatch
	observer *observer
	migrator *migrator

	mu    sync.Mutex // guards the fields below
	known map[string]*owned
	// unfinished are the resources to ask about during other work as well.
	unfinished map[schema.GroupResource]bool
}

// owned is what is remembered of a definition. A step of it holds mu, for as long as a migration takes.
type owned struct {
	mu     sync.Mutex
	proven proof
	failed failure
}

// proof records the definition and epoch for which a resource was proven, and when. It stays valid when the definition
// changes in other respects than the stored version, for example in a schema: every change of the stored version
// begins a new epoch, also if it is reverted. The zero value is of no definition.
type proof struct {
	crd types.UID
	of  evolve.Ref
	at  time.Time
}

// failure describes the last step of a definition; the zero value is that of one that did not fail.
type failure struct {
	inRow int
	// lasting is how many of them, the last ones, came of admission that changes objects at every write.
	lasting int
	why     string
	// of is what was tried: as long as it stays the same, it is not tried again until then.
	of    trial
	until time.Time
}

// trial is all of a definition that a step goes by. The zero value: it was not read.
type trial struct {
	uid          types.UID
	generation   int64
	stored       string
	held         bool
	prune        string
	pruneIsGiven bool
}

func trialOf(crd *apiextensionsv1.CustomResourceDefinition) trial {
	prune, given := crd.Annotations[observed.PruneAnnotation]
	return trial{
		uid: crd.UID, generation: crd.Generation, stored: strings.Join(crd.Status.StoredVersions, ","),
		held: migrationv1alpha1.Held(crd.Annotations), prune: prune, pruneIsGiven: given,
	}
}

// Standing is how far a resource is.
type Standing struct {
	// Done says that storedVersions names the stored version only.
	Done bool
	// Why says what is waited for, or what failed, and Again when to look again: 0 when the definition changes, or
	// while it is being migrated.
	Why   string
	Again time.Duration
}

// NewOwn returns an Own for a cluster. Of the Config it uses the fields that say how to ask and to migrate.
func NewOwn(config Config) (*Own, error) {
	c, err := newControllers(config)
	if err != nil {
		return nil, err
	}
	o := c.newObserver(nil, c.config.Logger)
	o.definitions = newDefinitions()
	m, err := newMigrator(o, c.config)
	if err != nil {
		return nil, err
	}
	m.pacer = m.newPacer(c.config.MaxObjectsPerSecond)
	return &Own{config: c.config, objects: c.objects, observer: o, migrator: m, known: map[string]*owned{}, unfinished: map[schema.GroupResource]bool{}}, nil
}

// Watch notes every state of the definitions of these names until ctx ends, calls changed for each that Step may go
// by, and goes on asking about those that are not done while Step migrates or pauses. Where two changes of a spec are made between two reads and none is
// watched, Step takes them for a stored version that was changed and changed back, and has it settle anew: with a
// definition that changes often it is never done. So it does after a time in which nobody asked.
func (o *Own) Watch(ctx context.Context, names []string, changed func(name string)) {
	var wg sync.WaitGroup
	for _, name := range names {
		source := o.observer.definitions.watching(o.objects, func(gr schema.GroupResource) { changed(gr.String()) }, func(*apiextensionsv1.CustomResourceDefinition) {},
			client.MatchingFields{metav1.ObjectNameField: name})
		wg.Go(func() { source.RunWithContext(ctx) })
	}
	ticker := o.config.Clock.NewTicker(o.config.Poll)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C():
			o.ask(ctx)
		}
	}
	wg.Wait()
}

// ask asks about all unfinished definitions in one round: with one round for each, the rounds of one definition could
// be further apart than the gap after which nobody counts as having asked. Errors are left to the next step.
func (o *Own) ask(ctx context.Context) {
	o.mu.Lock()
	all := slices.SortedFunc(maps.Keys(o.unfinished), func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	o.mu.Unlock()
	if len(all) == 0 {
		return // no resources would be all of them
	}
	if err := o.observer.round(ctx, all...); err != nil && ctx.Err() == nil {
		o.config.Logger.V(1).Info("kube-apiservers were not asked", "resources", len(all), "reason", err.Error())
	}
}

// asksAbout says whether ask is to ask about a resource.
func (o *Own) asksAbout(gr schema.GroupResource, unfinished bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if unfinished {
		o.unfinished[gr] = true
	} else {
		delete(o.unfinished, gr)
	}
}

// of returns what is remembered of a definition.
func (o *Own) of(name string) *owned {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known[name] == nil {
		o.known[name] = &owned{}
	}
	return o.known[name]
}

// Step does what can be done now for the definition of this name, which may take as long as a migration. While it
// migrates, it calls tell when the migration begins, when it is held up, and when it goes on. Steps of different
// definitions do not wait for each other. After an error it has to be called again after a while, as controllers create another migration: the error may concern one
// object, while all others have been migrated. Until then it does nothing, unless the facts that it depends on have
// changed.
func (o *Own) Step(ctx context.Context, name string, tell func(Standing)) Standing {
	k := o.of(name)
	k.mu.Lock()
	defer k.mu.Unlock()
	crd, err := o.read(ctx, name)
	var of trial
	if crd != nil {
		of = trialOf(crd)
		if left := k.failed.until.Sub(o.config.Clock.Now()); left > 0 && k.failed.of == of {
			return Standing{Why: k.failed.why, Again: left}
		}
	}
	standing := Standing{Why: "there is no CustomResourceDefinition of this name"}
	if crd != nil {
		standing, err = o.step(ctx, crd, k, tell)
	}
	if err != nil {
		lasting := k.failed.lasting
		k.failed = failure{inRow: k.failed.inRow + 1, why: err.Error(), of: of}
		pause := evolve.Backoff(k.failed.inRow)
		if errors.Is(err, claim.ErrChangedByAdmission) {
			k.failed.lasting = lasting + 1
			pause = evolve.LastingBackoff(k.failed.lasting) // all objects were written, and nothing is won by it
		}
		k.failed.until = o.config.Clock.Now().Add(pause)
		return Standing{Why: k.failed.why, Again: pause}
	}
	k.failed = failure{}
	if standing.Done || crd == nil {
		o.asksAbout(schema.ParseGroupResource(name), false) // a definition's name says what it is of
	}
	return standing
}

func (o *Own) step(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, k *owned, tell func(Standing)) (Standing, error) {
	gr, encoding := migrationv1alpha1.ResourceOf(crd), migrationv1alpha1.Stores(crd)
	if slices.Equal(crd.Status.StoredVersions, []string{encoding.Version()}) {
		k.proven = proof{}
		return Standing{Done: true}, nil
	}
	if why, err := o.elsewhere(ctx, gr); why != "" || err != nil {
		o.asksAbout(gr, false)
		return Standing{Why: why, Again: o.config.Poll}, err
	}
	o.asksAbout(gr, true)
	seen, standing, err := o.look(ctx, gr, encoding)
	if standing.Why != "" || err != nil {
		return standing, err
	}
	of := refOf(seen)
	if k.proven.crd != crd.UID || k.proven.of != of {
		k.proven = proof{}
		if err := o.migrate(ctx, crd, encoding, tell); err != nil {
			return Standing{}, fmt.Errorf("migrate %s to %s: %w", gr, encoding, err)
		}
		k.proven = proof{crd: crd.UID, of: of, at: o.config.Clock.Now()}
		return Standing{Why: "all objects are stored in " + string(encoding), Again: time.Nanosecond}, nil // everything is read again
	}
	return o.prune(ctx, crd, encoding, k.proven)
}

func refOf(seen observed.Resource) evolve.Ref {
	return evolve.Ref{UID: seen.UID, Epoch: seen.History.Epoch}
}

// read reads a definition, and notes what it says to store; nil if there is none.
func (o *Own) read(ctx context.Context, name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := o.objects.Get(ctx, client.ObjectKey{Name: name}, crd); storageversion.IsGone(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	o.observer.definitions.take(crd)
	return crd, nil
}

// elsewhere explains that Concord's controllers migrate a resource, which the heartbeat of its StorageState shows:
// each of the two would put back what the other prunes. Without the right to read StorageStates, or without any, it
// returns "".
func (o *Own) elsewhere(ctx context.Context, gr schema.GroupResource) (string, error) {
	state := &migrationv1alpha1.StorageState{}
	state.Name = migrationv1alpha1.StateName(gr)
	err := o.objects.Get(ctx, client.ObjectKeyFromObject(state), state)
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("read its StorageState: %w", err)
	case !observed.Kept(migrationv1alpha1.ViewState(state), o.config.Clock.Now()):
		return "", nil // it is another program's, or they have gone
	}
	return "concord controllers migrate it, since there is a StorageState " + state.Name, nil
}

// look asks the replicas about one resource. The Standing says why nothing is agreed on.
func (o *Own) look(ctx context.Context, gr schema.GroupResource, encoding agree.Encoding) (observed.Resource, Standing, error) {
	again := Standing{Again: o.config.Poll}
	err := o.observer.round(ctx, gr)
	if errors.Is(err, errConcord) {
		again.Why = err.Error() + ": they migrate by themselves"
		return observed.Resource{}, again, nil
	}
	if err != nil {
		return observed.Resource{}, again, err
	}
	o.observer.mu.Lock()
	defer o.observer.mu.Unlock()
	seen, ok := o.observer.memory.Of(gr)
	switch {
	case !ok && o.observer.unheard[gr] != "":
		again.Why = o.observer.unheard[gr]
		if len(o.observer.here) == 0 && !o.config.Settings.BestEffort {
			again.Why += "; if kube-apiservers cannot be asked one by one from here, BestEffort does without (docs/stock.md)"
		}
	case !ok && len(o.observer.here) == 0:
		again.Why = "no kube-apiserver with a live identity Lease was found in the last round"
	case !ok:
		again.Why = "no kube-apiserver serves it yet"
	case seen.Common == "":
		again.Why = seen.Why
	case seen.Common != encoding:
		again.Why = fmt.Sprintf("all kube-apiservers store %s, and the definition says %s", seen.Common, encoding)
	}
	return seen, again, nil
}

// migrate rewrites all objects, and proves the result. It tells when it begins, when it is held up, and when it goes
// on. Only the first error is told: later ones may name another object each.
func (o *Own) migrate(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, encoding agree.Encoding, tell func(Standing)) error {
	why := fmt.Sprintf("its objects are being migrated to %s", encoding)
	tell(Standing{Why: why})
	hindered := false
	result, err := o.migrator.Rewrite(ctx, jobOf(crd, encoding), func(p claim.Progress) {
		switch now := p.Hindered != ""; {
		case now == hindered:
			return
		case now:
			tell(Standing{Why: why + ", which does not get on: " + p.Hindered})
		default:
			tell(Standing{Why: why})
		}
		hindered = !hindered
	})
	if err != nil || result.Failed == 0 {
		return err
	}
	for _, f := range result.Failures[1:] { // the error names the first
		o.config.Logger.Info("An object cannot be migrated", "crd", crd.Name, "namespace", f.Namespace, "name", f.Name, "reason", f.Reason, "message", f.Message)
	}
	first := result.Failures[0]
	return fmt.Errorf("%d of %d objects cannot be written, among them %s/%s (%s): %s", result.Failed, result.Total, first.Namespace, first.Name, first.Reason, first.Message)
}

func rank(version string, encoding agree.Encoding) string {
	if version == encoding.Version() {
		return ""
	}
	return version
}

// prune sets storedVersions, if it is time, and nothing was written in another version since the proof. The
// definition is read once more between the last look, which takes its time, and the last questions to the
// replicas, and is written only if it has not changed since.
func (o *Own) prune(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, encoding agree.Encoding, proven proof) (Standing, error) {
	if kept := o.keeps(crd, proven); kept.Why != "" {
		return kept, nil
	}
	if err := o.migrator.lastLook(ctx, jobOf(crd, encoding)); err != nil {
		return Standing{}, err
	}
	now, err := o.read(ctx, crd.Name)
	if err != nil {
		return Standing{}, err
	}
	if now == nil || now.UID != crd.UID || migrationv1alpha1.Stores(now) != encoding || !slices.Equal(now.Status.StoredVersions, crd.Status.StoredVersions) {
		return Standing{Why: "the definition has changed", Again: time.Nanosecond}, nil
	}
	if kept := o.keeps(now, proven); kept.Why != "" {
		return kept, nil
	}
	seen, standing, err := o.look(ctx, migrationv1alpha1.ResourceOf(crd), encoding)
	if standing.Why != "" || err != nil {
		return standing, err
	}
	if proven.of != refOf(seen) {
		return Standing{Why: "another version may be stored again", Again: time.Nanosecond}, nil
	}
	now.Status.StoredVersions = []string{encoding.Version()}
	if err := o.objects.Status().Update(ctx, now); apierrors.IsConflict(err) {
		return Standing{Why: "the definition has changed", Again: o.config.Poll}, nil
	} else if err != nil {
		return Standing{}, fmt.Errorf("set storedVersions: %w", err)
	}
	return Standing{Done: true}, nil
}

// keeps says why storedVersions are kept for now, if they are.
func (o *Own) keeps(crd *apiextensionsv1.CustomResourceDefinition, p proof) Standing {
	now := evolve.Observation{Resource: migrationv1alpha1.ResourceOf(crd), Now: o.config.Clock.Now(), CRD: &evolve.CRD{Name: crd.Name}}
	policy := observed.Policy(now, crd.Annotations, o.config.Settings, p.at, true)
	if policy.KeepStored == "" && policy.PruneIn > 0 {
		return Standing{Why: "storedVersions are kept for a while after the proof", Again: min(policy.PruneIn, o.config.Poll)}
	}
	return Standing{Why: policy.KeepStored, Again: o.config.Poll}
}
