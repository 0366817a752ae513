package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/watch"
	kubescheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/stock/replicas"
	"github.com/concord-dev/concord/workers"
)

// roundPause is the least time between two rounds: many definitions may change at once.
const roundPause = time.Second

var (
	// errConcord says that servers report by themselves.
	errConcord = errors.New("Concord servers report what they store")
	errUnasked = errors.New("kube-apiservers have not been asked yet")
)

// observer asks all kube-apiservers again and again, and presents its observations as StorageVersions, as reporting
// servers would have written them.
type observer struct {
	asking      *replicas.Asker
	definitions *definitions
	services    apiregistrationclient.APIServicesGetter
	clock       clock.WithTicker
	logger      logr.Logger
	// broadcast announces changed StorageVersions; nil if nobody watches them.
	broadcast *watch.Broadcaster
	// soon makes a full round begin at once.
	soon chan struct{}

	// asked is held while kube-apiservers are asked, so that rounds are observed in the order in which
	// they asked. Only full rounds, which are made one after the other, write remote and failed.
	asked sync.Mutex
	// remote are the group/versions that other programs serve, failed the replicas that did
	// not answer in the last full round: they are not waited for again while asked is held.
	remote map[schema.GroupVersion]bool
	failed map[observed.Process]string

	mu sync.Mutex
	// next are the looks at single resources that wait for asked: one round answers them all.
	next   *looks
	memory *observed.Memory
	known  knownVersions
	kinds  map[schema.GroupResource]string
	// unheard explains for resources why not all replicas said in the last look at it whether they serve it.
	unheard map[schema.GroupResource]string
	version int64
	// here are the replicas that answered in the last round.
	here []observed.Replica
	// whole says that a full round has finished; lacking is the number of replicas that did not answer in it.
	whole   bool
	lacking int
	// finished is when the last full round did, and failing why a later one did not.
	finished time.Time
	failing  error
	// patience is how long none may finish before that is a problem.
	patience time.Duration
}

// looks share a round. It begins after all of them were asked for, so that no answer is older than a look.
type looks struct {
	only []schema.GroupResource // observer.mu guards it until the round begins
	// made says that the round has finished, with err. The observer's asked guards both.
	made bool
	err  error
}

type knownVersions map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion

// Kind implements trigger.Kinds. Without an answer of every replica it is not known what is served.
func (o *observer) Kind(_ context.Context, gr schema.GroupResource) (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if kind, ok := o.kinds[gr]; ok {
		return kind, nil
	}
	if !o.whole || o.lacking > 0 {
		return "", o.unsaid(gr)
	}
	return "", &meta.NoResourceMatchError{PartialResource: gr.WithVersion("")}
}

// round asks every replica: about everything, or about some resources. Those who wait at the same time to ask
// about some share one round: many definitions may change at once.
func (o *observer) round(ctx context.Context, only ...schema.GroupResource) error {
	if len(only) == 0 {
		silent := o.stillSilent(ctx)
		o.asked.Lock()
		defer o.asked.Unlock()
		return o.makeRound(ctx, nil, silent)
	}
	shared := o.join(only)
	o.asked.Lock()
	defer o.asked.Unlock()
	if shared.made {
		return shared.err
	}
	o.mu.Lock()
	if o.next == shared {
		o.next = nil // who asks from now on needs newer answers
	}
	o.mu.Unlock()
	shared.err = o.makeRound(ctx, shared.only, o.failed)
	shared.made = ctx.Err() == nil // otherwise one of the others makes the round
	return shared.err
}

// join adds resources to the looks whose round has not begun yet.
func (o *observer) join(only []schema.GroupResource) *looks {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.next == nil {
		o.next = &looks{}
	}
	for _, gr := range only {
		if !slices.Contains(o.next.only, gr) { // a round is taken in once for each
			o.next.only = append(o.next.only, gr)
		}
	}
	return o.next
}

// makeRound makes one, while asked is held: about everything if only is empty. silent are not asked.
func (o *observer) makeRound(ctx context.Context, only []schema.GroupResource, silent map[observed.Process]string) error {
	full := len(only) == 0
	began := o.clock.Now()
	before, err := o.asking.Find(ctx)
	if err != nil {
		return err
	}
	if len(before.Concord) > 0 {
		return fmt.Errorf("%w: %s", errConcord, strings.Join(before.Concord, ", "))
	}
	if full {
		if err := o.readRemote(ctx); err != nil {
			return err
		}
	}
	defined := o.definitions.defined(only...)
	answers := o.ask(ctx, before.Replicas, only, silent)
	asked := o.clock.Now()
	after, err := o.asking.Find(ctx)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r := observed.Round{Began: began, Asked: asked, Before: before.Replicas, After: after.Replicas, Answers: answers, Only: only, Defined: defined}
	r.Versions = versionsOf(answers)
	if full {
		o.noteFailed(r)
	}
	o.observe(r)
	o.definitions.heard(defined)
	return nil
}

// stillSilent asks the replicas anew that did not answer in the last full round, and returns those
// that do not answer still. Rounds for single resources need not wait for them meanwhile. An answer
// does not count: the full round that follows asks for it once more.
func (o *observer) stillSilent(ctx context.Context) map[observed.Process]string {
	if len(o.failed) == 0 {
		return nil
	}
	found, err := o.asking.Find(ctx)
	if err != nil {
		return nil // the round says it
	}
	again := slices.DeleteFunc(found.Replicas, func(r observed.Replica) bool {
		_, failed := o.failed[r.Process]
		return !failed
	})
	silent := map[observed.Process]string{}
	for p, answer := range o.ask(ctx, again, nil, nil) {
		if answer.Failed != "" {
			silent[p] = answer.Failed
		}
	}
	return silent
}

// ask asks the replicas concurrently, except for those that are known to be silent.
func (o *observer) ask(ctx context.Context, replicas []observed.Replica, only []schema.GroupResource, silent map[observed.Process]string) map[observed.Process]observed.Answer {
	groups := sets.New[string]()
	for _, gr := range only {
		groups.Insert(gr.Group)
	}
	answers := make([]observed.Answer, len(replicas))
	var wg sync.WaitGroup
	for i, r := range replicas {
		if why, ok := silent[r.Process]; ok {
			answers[i] = observed.Answer{Failed: why}
			continue
		}
		answers[i].Failed = "its answer was not understood" // unless it is, below
		wg.Go(func() {
			_ = workers.Do(ctx, "ask", func() error {
				answers[i] = o.asking.Ask(ctx, r, groups, o.remote)
				return nil
			})
		})
	}
	wg.Wait()
	all := map[observed.Process]observed.Answer{}
	for i, r := range replicas {
		all[r.Process] = answers[i]
	}
	return all
}

func (o *observer) noteFailed(r observed.Round) {
	failed := map[observed.Process]string{}
	for p, answer := range r.Answers {
		if answer.Failed == "" {
			continue
		}
		failed[p] = answer.Failed
		if o.failed[p] != answer.Failed {
			o.logger.Info("A kube-apiserver was asked in vain: nothing is agreed on", "lease", p.Lease, "holder", p.Holder, "reason", answer.Failed)
		}
	}
	o.failed = failed
}

func (o *observer) readRemote(ctx context.Context) error {
	services, err := o.services.APIServices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list APIServices: %w", err)
	}
	o.remote = map[schema.GroupVersion]bool{}
	for _, s := range services.Items {
		if s.Spec.Service != nil {
			o.remote[schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}] = true
		}
	}
	return nil
}

// versionsOf returns the known group/versions of kinds: the served ones, and those of Kubernetes' own types.
func versionsOf(answers map[observed.Process]observed.Answer) func(string) []schema.GroupVersion {
	versions := map[string][]schema.GroupVersion{}
	add := func(kind string, gv schema.GroupVersion) {
		if !slices.Contains(versions[kind], gv) {
			versions[kind] = append(versions[kind], gv)
		}
	}
	kinds := map[string]bool{}
	for _, answer := range answers {
		for _, shown := range answer.Shown {
			kinds[shown.Kind] = true
			for _, served := range shown.Served {
				if gv, err := schema.ParseGroupVersion(served); err == nil {
					add(shown.Kind, gv)
				}
			}
		}
	}
	if definition := "CustomResourceDefinition"; kinds[definition] {
		add(definition, apiextensionsv1beta1.SchemeGroupVersion) // not served, and yet the version that kube-apiservers store
	}
	for gvk := range kubescheme.Scheme.AllKnownTypes() {
		if kinds[gvk.Kind] {
			add(gvk.Kind, gvk.GroupVersion())
		}
	}
	return func(kind string) []schema.GroupVersion { return slices.Clone(versions[kind]) }
}

// observe records a round, and announces what has changed.
func (o *observer) observe(r observed.Round) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.here = slices.DeleteFunc(slices.Clone(r.After), func(x observed.Replica) bool {
		answer, ok := r.Answers[x.Process]
		return !ok || answer.Failed != ""
	})
	for _, gr := range o.memory.Observe(r) {
		o.tell(gr)
	}
	if why := o.memory.Anew(); why != "" {
		o.logger.Info("Built-in resources begin anew", "reason", why)
	}
	for _, gr := range r.Only {
		delete(o.unheard, gr)
		if v := r.Judge(gr); !v.Whole {
			o.unheard[gr] = v.Why
		}
	}
	for _, answer := range r.Answers {
		for gr, shown := range answer.Shown {
			o.kinds[gr] = shown.Kind
		}
	}
	if len(r.Only) == 0 {
		o.whole, o.lacking = true, len(r.After)-len(o.here)
		o.finished, o.failing = o.clock.Now(), nil
		o.measure(len(r.After))
	}
}

func (o *observer) tell(gr schema.GroupResource) {
	was := o.known[gr]
	is, ok := o.memory.Of(gr)
	o.version++
	if !ok {
		if was != nil {
			delete(o.known, gr)
			if custom(was) { // the StorageState of another one stays, and its hashes need the kind
				delete(o.kinds, gr)
			}
			was = was.DeepCopy()
			was.ResourceVersion = fmt.Sprint(o.version)
			o.announce(watch.Deleted, was)
		}
		return
	}
	sv := storageVersionOf(gr, is, metav1.NewTime(o.clock.Now()))
	sv.ResourceVersion = fmt.Sprint(o.version)
	if crd := o.definitions.of(gr); crd != nil {
		sv.Annotations[storageversion.CRDAnnotation] = string(crd.UID)
	} else if custom(was) {
		sv.Annotations[storageversion.CRDAnnotation] = was.Annotations[storageversion.CRDAnnotation]
	}
	o.known[gr] = sv
	action := watch.Modified
	if was == nil {
		action = watch.Added
	}
	if was == nil || is.Why != messageOf(was) {
		o.logger.V(1).Info("Observed", "resource", gr.String(), "agreedOn", string(is.Common), "why", is.Why)
	}
	o.announce(action, sv.DeepCopy())
}

// found notes that an object was found which is stored in another way than all agree on.
func (o *observer) found(gr schema.GroupResource) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if crd := o.definitions.of(gr); crd != nil && o.memory.Found(gr, migrationv1alpha1.StoredVersions(crd)) {
		o.tell(gr)
	}
}

// custom says whether a StorageVersion is a custom resource's, whose definition may be gone.
func custom(sv *apiserverinternalv1alpha1.StorageVersion) bool {
	return sv != nil && storageversion.MadeFor(sv) != ""
}

func messageOf(sv *apiserverinternalv1alpha1.StorageVersion) string {
	for _, c := range sv.Status.Conditions {
		if c.Status == apiserverinternalv1alpha1.ConditionFalse {
			return c.Message
		}
	}
	return ""
}

// storageVersionOf returns the record of a resource in the form in which servers would report it.
func storageVersionOf(gr schema.GroupResource, r observed.Resource, now metav1.Time) *apiserverinternalv1alpha1.StorageVersion {
	sv := &apiserverinternalv1alpha1.StorageVersion{}
	sv.Name, sv.UID = storageversion.Name(gr), types.UID(r.UID)
	storageversion.SetReports(sv, r.Reports, now)
	storageversion.SetHistory(sv, r.History)
	if r.Definition != "" {
		sv.Annotations[storageversion.DefinitionAnnotation] = string(r.Definition)
	}
	condition := apiserverinternalv1alpha1.StorageVersionCondition{
		Type: apiserverinternalv1alpha1.AllEncodingVersionsEqual, Reason: storageversion.ReasonObserved, LastTransitionTime: now,
		Status: apiserverinternalv1alpha1.ConditionFalse, Message: r.Why,
	}
	sv.Status.CommonEncodingVersion = nil
	if r.Common != "" {
		sv.Status.CommonEncodingVersion = ptr.To(string(r.Common))
		condition.Status, condition.Message = apiserverinternalv1alpha1.ConditionTrue, "all kube-apiservers were seen to store "+string(r.Common)
	}
	sv.Status.Conditions = []apiserverinternalv1alpha1.StorageVersionCondition{condition}
	return sv
}

// of observes a resource once more and returns its StorageVersion; nil if it has none.
func (o *observer) of(ctx context.Context, gr schema.GroupResource) (*apiserverinternalv1alpha1.StorageVersion, error) {
	if has, err := o.has(gr); !has {
		return nil, err // nothing is known before the next full round
	}
	if err := o.round(ctx, gr); err != nil {
		return nil, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[gr].DeepCopy(), nil
}

// has reports whether a resource exists. A resource that no replica showed may exist as long as not all replicas have
// answered.
func (o *observer) has(gr schema.GroupResource) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.whole:
		return false, errUnasked
	case o.known[gr] == nil && o.lacking > 0:
		return false, o.unsaid(gr)
	}
	return o.known[gr] != nil, nil
}

func (o *observer) unsaid(gr schema.GroupResource) error {
	return fmt.Errorf("%d kube-apiservers did not say what %s is", o.lacking, gr)
}

// replicas returns the replicas that answered in the last round.
func (o *observer) replicas() []observed.Replica {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.here)
}

// run asks every replica about everything each period, and when a definition changes, until
// ctx ends, or with an error that wraps errConcord.
func (o *observer) run(ctx context.Context, period time.Duration) error {
	ticker := o.clock.NewTicker(period)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		case <-o.soon:
		}
		err := o.round(ctx)
		if errors.Is(err, errConcord) {
			return err
		}
		if err != nil && ctx.Err() == nil {
			o.fail(err)
			o.logger.Info("kube-apiservers were not asked: trying again", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-o.clock.After(roundPause):
		}
	}
}

func (o *observer) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failing = err
}

// hurry makes a full round begin at once.
func (o *observer) hurry() {
	select {
	case o.soon <- struct{}{}:
	default:
	}
}
