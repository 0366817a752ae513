package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/stock/observed"
)

// Cluster is how a cluster is.
type Cluster struct {
	// Servers lists servers with problems first.
	Servers []servers.Server `json:"servers"`
	// Counts are of the resources that servers store.
	Counts Counts `json:"resources"`
	// Do is what to do where nothing is migrated, because only stock servers serve and nothing tells of concord controllers.
	Do string `json:"do,omitempty"`
	// Problems are the cluster's problems, the most urgent first.
	Problems []Problem `json:"problems"`
	// Settling explains why servers do not agree yet on resources for which that passes by itself.
	Settling []string `json:"settling,omitempty"`
	// Unsettled are the resources that servers agree on, and that may be in several versions, while nothing keeps
	// them from it and no migration is asked for: it begins in a moment, or is left to people.
	Unsettled []string `json:"unsettled,omitempty"`
	// Unserved are the resources that no server serves now, and that objects may be stored of.
	Unserved []string `json:"unserved,omitempty"`
	// NothingKnown lists other resources that no server serves now: they are known from a StorageState only, and it
	// names no version.
	NothingKnown []string `json:"nothingKnown,omitempty"`
	// Unseen lists resources with a CustomResourceDefinition about whose storage nothing is known yet. Counts leaves
	// them out.
	Unseen []string `json:"unseen,omitempty"`
	// Moving lists the unfinished migrations, those that make progress first.
	Moving []Moving `json:"moving"`
	// Unread lists what could not be read, and so is not known.
	Unread []string `json:"unread,omitempty"`
	// Rows are all resources, those with problems first, for a view that shows every one.
	Rows []Row `json:"-"`
}

// Counts counts resources.
type Counts struct {
	Stored int `json:"stored"`
	// Agreed is of how many all servers agree on the encoding, Settled in how many every
	// object is in it.
	Agreed  int `json:"agreed"`
	Settled int `json:"settled"`
}

// Of says how the cluster is that was observed.
func Of(o Observed) Cluster {
	x := indexed(o)
	c := Cluster{Servers: x.servers, Problems: []Problem{}, Moving: []Moving{}, Unread: o.Unread}
	waits := map[string][]string{}
	var problems []Problem
	for _, r := range x.sorted() {
		own := x.problems(r)
		if r.counts() {
			c.Counts.Stored++
			if r.common != "" {
				c.Counts.Agreed++
			}
			if r.settled() && !slices.ContainsFunc(own, func(p Problem) bool { return p.Kind == BadObjects }) {
				c.Counts.Settled++
			}
		}
		if why := r.settling(); why != "" {
			c.Settling = append(c.Settling, r.String()+": "+why)
		}
		switch {
		case r.unserved && r.nothingKnown():
			c.NothingKnown = append(c.NothingKnown, r.String())
		case r.unserved && len(r.stored) > 0:
			c.Unserved = append(c.Unserved, r.String())
		case r.unseen() && x.misnamed(r).Kind == "":
			c.Unseen = append(c.Unseen, r.String())
		}
		for _, server := range x.waitsFor(r) {
			waits[server.ID] = append(waits[server.ID], r.String())
		}
		for _, m := range r.live() {
			c.Moving = append(c.Moving, x.moving(r, m))
		}
		problems = append(problems, own...)
		row := x.row(r, own)
		if row.State == Unsettled && r.common != "" {
			c.Unsettled = append(c.Unsettled, r.String())
		}
		c.Rows = append(c.Rows, row)
	}
	c.Do = o.advice(c)
	slices.SortStableFunc(c.Rows, func(a, b Row) int { return cmp.Compare(a.State.Rank(), b.State.Rank()) })
	for _, server := range x.servers {
		if p := problemOf(server, waits[server.ID]); p.Kind != "" {
			problems = append(problems, p)
		}
	}
	c.Problems = append(c.Problems, gathered(slices.Concat(problems, x.ofCluster(), o.leftAlone()))...)
	order := []string{Running, Proving, Retrying, Pending, IsWaits, IsPaused}
	begun := func(m Moving) int {
		if m.LeftBy != "" {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(c.Moving, func(a, b Moving) int { // of pending ones those first that were begun
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(begun(a), begun(b)))
	})
	return c
}

// bare reports whether only stock servers serve, and no StorageState tells of concord controllers.
func (c Cluster) bare() bool {
	return c.Counts.Stored == 0 && len(c.Servers) > 0 && servers.AllStock(c.Servers)
}

// advice is what to do where no StorageState tells of concord controllers; empty elsewhere, or where that is not known.
func (o Observed) advice(c Cluster) string {
	if !c.bare() || len(o.Unread) > 0 {
		return ""
	}
	if slices.ContainsFunc(o.CRDs, ofStates) {
		return "see that concord controllers run, and what their log says: their CustomResourceDefinitions are here, and they have written nothing"
	}
	return "install concord controllers (docs/stock.md); if they run already, somebody has deleted their CustomResourceDefinitions: apply their manifests again, or start them again with --install-crds"
}

// problems returns the problems of one resource, without those of servers that it waits for.
func (x *index) problems(r *resource) []Problem {
	if p := x.deleting(r); p.Kind != "" {
		return []Problem{p}
	}
	var problems []Problem
	add := func(p Problem) {
		if p.Kind != "" {
			problems = append(problems, p)
		}
	}
	if r.counts() {
		add(x.disagreement(r))
		add(x.unobserved(r))
		add(x.unwritten(r))
	}
	unagreed := len(problems) > 0 || len(x.waitsFor(r)) > 0
	failing := false
	for _, m := range r.live() {
		moving := x.moving(r, m)
		p, bad := moving.problem(x, r, m), badObjects(r, m)
		if p.Kind == Waiting && unagreed || p.Kind == Stalled && servers.NoneRenews(x.servers) {
			continue // for a problem that was told already
		}
		if !retriesFor(r, m, bad) {
			add(p)
		}
		for _, p := range bad {
			add(p)
			failing = true
		}
		if len(problems) == 0 && r.lastFailure() == nil {
			add(repeated(r, m, moving))
		}
	}
	if m := r.lastFailure(); m != nil && !failing {
		for _, p := range failures(r, m) {
			add(p)
		}
	}
	add(x.misnamed(r))
	add(held(r))
	add(unpruned(r))
	return problems
}

// misnamed is the problem that no server serves a definition, because another one has its names. It is not looked for
// where nobody has looked at any definition.
func (x *index) misnamed(r *resource) Problem {
	if !r.unseen() || len(x.States) == 0 {
		return Problem{}
	}
	conflict := apihelpers.FindCRDCondition(r.crd, apiextensionsv1.NamesAccepted)
	if conflict == nil || conflict.Status != apiextensionsv1.ConditionFalse {
		return Problem{}
	}
	return Problem{
		Kind: Waiting, Resources: []string{r.String()},
		Text: fmt.Sprintf("%s: no server serves it: the names of its definition are taken: %s", r, conflict.Message),
		Do:   "give the definition other names, or delete it or the one that has its names",
	}
}

// unobserved explains, in a stock cluster, why it is not known what servers write: no server reports there, and the
// StorageState says what was observed.
func (x *index) unobserved(r *resource) Problem {
	if x.stockAnswered || r.version != nil || r.state == nil || r.common != "" || r.state.Status.Message == "" && !r.moved || r.gone() || r.settling() != "" {
		return Problem{}
	}
	if p := notServed(r); p.Kind != "" {
		return p
	}
	why := r.state.Status.Message
	if r.moved || observed.Settling(why) {
		return x.forgotten(r)
	}
	do := "see that every kube-apiserver answers at its own address; of one that is gone for good delete the identity Lease"
	if r.crd == nil && observed.Uneven(why) {
		do = "end the upgrade, if one is under way; else start all kube-apiservers with the same --runtime-config"
	}
	return Problem{
		Kind: Disagreement, Resources: []string{r.String()}, alike: why,
		Text: fmt.Sprintf("%s: it is not known what servers write: %s", r, why),
		Do:   do,
	}
}

// forgotten is that the controllers of a stock cluster have not looked at a resource again that was to be agreed on by now.
func (x *index) forgotten(r *resource) Problem {
	if x.idle().Kind != "" {
		return Problem{} // they look at none
	}
	since := duration.HumanDuration(r.unlooked)
	return Problem{
		Kind: Unwritten, Resources: []string{r.String()}, alike: "not looked at",
		Text: fmt.Sprintf("%s: concord controllers have not looked at it for %s, so that it is not known what servers write", r, since),
		Do:   "see the log of concord controllers, in the namespace that they are installed in: what they read may be refused, or they have more definitions to look at than they can",
	}
}

// notServed is the problem that a definition does not serve its storage version: then no kube-apiserver shows what it
// stores, however healthy it is.
func notServed(r *resource) Problem {
	if r.crd == nil || !slices.ContainsFunc(r.crd.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage && !v.Served }) {
		return Problem{}
	}
	return Problem{
		Kind: Waiting, Resources: []string{r.String()}, alike: "stores a version that is not served",
		Text: fmt.Sprintf("%s: nothing is migrated or pruned: its definition stores %s, which it does not serve", r, migrationv1alpha1.Stores(r.crd)),
		Do:   "serve it (served: true), or store another version",
	}
}

// settling is the reason why a resource of a stock cluster is not agreed on yet, if it passes by
// itself; empty otherwise.
func (r *resource) settling() string {
	switch {
	case r.version != nil || r.state == nil || r.common != "" || r.unlooked > evolve.DiscoveryPeriod:
		return ""
	case r.moved:
		return fmt.Sprintf("its definition stores %s now, which its StorageState of %s does not know yet: concord controllers look at it within seconds, if they run",
			r.target(), r.state.Status.LastHeartbeatTime.UTC().Format("15:04:05 UTC"))
	case !observed.Settling(r.state.Status.Message):
		return ""
	}
	looked := r.state.Status.LastHeartbeatTime.Time
	if at, ok := observed.SettlesAt(r.state.Status.Message, looked); ok && at.Before(looked.Add(r.unlooked)) {
		return fmt.Sprintf("requests that were under way had until %s, which has passed: concord controllers look at it again within seconds; if this stays, see whether they run",
			at.UTC().Format("15:04:05 UTC"))
	}
	return r.state.Status.Message
}

// ofCluster are the problems that all resources have.
func (x *index) ofCluster() []Problem {
	return slices.DeleteFunc([]Problem{x.unattended(), x.unready(), x.askedStock()}, func(p Problem) bool { return p.Kind == "" })
}

// unattended is the problem that nothing goes on for any resource: no server can write, there can be no StorageStates, or
// nobody keeps them.
func (x *index) unattended() Problem {
	if p := x.unrenewed(); p.Kind != "" {
		return p
	}
	if p := x.undefined(); p.Kind != "" {
		return p
	}
	return x.idle()
}

// idle is the problem that no controllers keep the StorageStates and begin migrations.
func (o Observed) idle() Problem {
	var last time.Time
	for i := range o.States {
		if beat := o.States[i].Status.LastHeartbeatTime.Time; beat.After(last) {
			last = beat
		}
	}
	if since := o.Now.Sub(last); last.IsZero() || since < idleAfter {
		return Problem{}
	}
	return Problem{
		Kind: Idle,
		Text: fmt.Sprintf("nobody has looked after the StorageStates for %s, so that no migration begins: the controllers do not run, or what they read or write is refused", duration.HumanDuration(o.Now.Sub(last))),
		Do:   "with servers of Concord see the logs of those that serve, and which admission policies and webhooks are for storagestates.migration.k8s.io; in a stock cluster those of concord controllers, in the namespace that they are installed in",
	}
}

// undefined is the problem that servers report, and the definition of StorageStates is missing: they could not make it.
func (x *index) undefined() Problem {
	if len(x.StorageVersions) == 0 || len(x.States) > 0 || len(x.Unread) > 0 || slices.ContainsFunc(x.CRDs, ofStates) || !slices.ContainsFunc(x.servers, servers.Server.Controls) {
		return Problem{}
	}
	reported := x.Now
	for i := range x.StorageVersions {
		if at := x.StorageVersions[i].CreationTimestamp.Time; at.Before(reported) {
			reported = at
		}
	}
	if x.Now.Sub(reported) < definedWithin {
		return Problem{}
	}
	return Problem{
		Kind: Idle,
		Text: fmt.Sprintf("there is no CustomResourceDefinition %s, so that nothing is migrated: servers make it at their start, and within a minute where it was deleted", migrationv1alpha1.StorageStates),
		Do:   "see the servers' logs, and which admission policies and webhooks refuse CustomResourceDefinitions of migration.k8s.io and concord.dev",
	}
}

// definedWithin is longer than servers take to make their own definitions.
const definedWithin = 2 * time.Minute

// ofStates reports whether a definition is that of StorageStates.
func ofStates(crd apiextensionsv1.CustomResourceDefinition) bool {
	return crd.Name == migrationv1alpha1.StorageStates.String()
}

// idleAfter is longer than controllers that run leave every StorageState alone.
const idleAfter = 3 * evolve.HeartbeatPeriod

// held is the problem that a cut-over that could be made is on hold.
func held(r *resource) Problem {
	if r.crd == nil || !migrationv1alpha1.Held(r.crd.Annotations) || len(r.stale()) == 0 {
		return Problem{}
	}
	return Problem{
		Kind: Held, Resources: []string{r.String()},
		Text: fmt.Sprintf("%s: its cut-over is on hold (annotation %s): status.storedVersions is not pruned", r, migrationv1alpha1.HoldAnnotation),
		Do:   "let it go on", Run: "kubectl annotate crd " + r.crd.Name + " " + migrationv1alpha1.HoldAnnotation + "-",
	}
}

// unpruned is that the API server refuses the pruning, as a guard does, or that the definition's own
// annotation keeps storedVersions: controllers of a stock cluster follow it.
func unpruned(r *resource) Problem {
	if r.crd == nil {
		return Problem{}
	}
	if p := refused(r); p.Kind != "" || r.version != nil {
		return p
	}
	_, _, why := observed.Prunes(r.crd.Annotations)
	_, wrong := observed.ParsePruneAfter(r.crd.Annotations[observed.PruneAnnotation])
	if why == "" || wrong == nil && len(r.stale()) == 0 {
		return Problem{}
	}
	p := Problem{Kind: Held, Resources: []string{r.String()}, Text: fmt.Sprintf("%s: status.storedVersions is not pruned: %s", r, why)}
	p.Do, p.Run = "take it away, so that --prune-after of concord controllers says when", "kubectl annotate crd "+r.crd.Name+" "+observed.PruneAnnotation+"-"
	if wrong != nil {
		p.Do, p.Run = "say when", "kubectl annotate --overwrite crd "+r.crd.Name+" "+observed.PruneAnnotation+"=10m"
	}
	return p
}

// refused is that the API server refuses the pruning, or to have versions put back that objects may be stored in.
func refused(r *resource) Problem {
	if r.state == nil || r.state.Annotations[migrationv1alpha1.PruneRefusedAnnotation] == "" {
		return Problem{}
	}
	why := r.state.Annotations[migrationv1alpha1.PruneRefusedAnnotation]
	p := Problem{
		Kind: Held, Resources: []string{r.String()}, alike: strings.ReplaceAll(why, r.crd.Name, ""),
		Text: fmt.Sprintf("%s: status.storedVersions is not pruned: the API server refuses it: %s", r, why),
		Do:   "run the controllers as the user of their manifests, or give theirs the right; guards have a list of users",
	}
	if strings.HasPrefix(why, migrationv1alpha1.SinceProof) {
		p.Text = fmt.Sprintf("%s: status.storedVersions is not pruned: %s", r, why)
		p.Do = "mend these objects, or what refuses patches of them; concord controllers look again by themselves"
	}
	lacks := r.lacks()
	if len(lacks) == 0 && len(r.stale()) == 0 {
		return Problem{}
	}
	if len(lacks) > 0 {
		p.Kind, p.Text = Unwritten, fmt.Sprintf("%s: status.storedVersions lacks %s, in which objects may be stored: the API server does not let the controllers put %s back: %s", r, strings.Join(lacks, " and "), prose.Plural(len(lacks), "it", "them"), why)
	}
	return p
}

// lacks are the versions in the definition that objects may be stored in, and that its status.storedVersions does not
// list, so that they could be taken out of it.
func (r *resource) lacks() (all []string) {
	state := migrationv1alpha1.ViewState(r.state)
	for _, v := range r.crd.Spec.Versions {
		stores := func(e agree.Encoding) bool { return e.Plain() == migrationv1alpha1.EncodingOf(r.crd, v.Name) }
		if !slices.Contains(r.crd.Status.StoredVersions, v.Name) && slices.ContainsFunc(slices.Concat(state.Stored, state.Listed), stores) {
			all = append(all, v.Name)
		}
	}
	return all
}

// unknown reports whether objects may be stored in versions that are not known.
func (r *resource) unknown() bool { return slices.Contains(r.stored, evolve.Unknown) }

// nothingKnown reports whether no version is known in which objects were ever stored.
func (r *resource) nothingKnown() bool {
	return len(r.stored) == 1 && r.stored[0] == evolve.Unknown
}
