package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/status/prose"
	"github.com/concord-dev/concord/stock/observed"
)

// Answer is why a resource is not, or may not be, where an upgrade wants it.
type Answer struct {
	Resource string `json:"resource"`
	// Blocked says that a version other than the target may still be stored.
	Blocked bool `json:"blocked"`
	// Summary says in a sentence what is the case.
	Summary string `json:"summary"`
	// Target is the encoding that objects are to have; empty while servers do not agree.
	Target string `json:"target,omitempty"`
	// Stored has the encodings that objects are, or may be, stored in.
	Stored []Share `json:"stored"`
	// Counted is where the numbers come from, or why there are none.
	Counted string `json:"counted"`
	// Problems keep the resource from its target, the most urgent first.
	Problems []Problem `json:"problems"`
	// Moving are its migrations that have not ended.
	Moving []Moving `json:"moving,omitempty"`
	// Next is the step that comes next where nothing needs to be done.
	Next string `json:"next,omitempty"`
}

// unreadable stands in place of an encoding for values that do not say which one they are in, as
// in a census.
const unreadable = "unknown"

// notKnown is the prefix of Answer.Counted if nothing is known about what is stored.
const notKnown = "not known: there is no StorageState"

// Share is how many objects are in one encoding.
type Share struct {
	Encoding string `json:"encoding"`
	// Objects is nil if nobody has counted.
	Objects *int64 `json:"objects,omitempty"`
}

// Counted is a census of one resource's stored objects by encoding.
type Counted struct {
	Objects map[string]int64
	// Err explains why nobody has counted; then Objects is nil.
	Err string
}

// Why explains why not all objects of a resource are in one version. It returns an error if nothing is known about the
// resource.
func Why(o Observed, gr schema.GroupResource, counted Counted) (Answer, error) {
	x := indexed(o)
	r, known := x.of[gr]
	if !known {
		return Answer{}, fmt.Errorf("nothing is known of %s: it has no StorageVersion, StorageState, CustomResourceDefinition or migration", gr)
	}
	a := Answer{Resource: gr.String(), Problems: []Problem{}, Counted: "by a census of raw etcd"}
	target := r.target()
	x.move(r) // also beside older controllers, whose StorageStates do not say which definition they account for
	a.Target = string(target)
	if counted.Objects == nil {
		a.Counted = "by the stored set; objects were not counted"
		if r.version == nil && r.state == nil {
			a.Counted = notKnown + "; objects were not counted"
		}
		if counted.Err != "" {
			a.Counted += ": " + counted.Err
		}
	}
	a.Stored = r.shares(counted)
	if r.isDeleted() {
		a.Blocked, a.Summary, a.Problems = true, "its CustomResourceDefinition is being deleted", gathered(append(x.ofCluster(), x.problems(r)...))
		return a, nil
	}
	for _, server := range x.waitsFor(r) {
		if p := problemOf(server, nil); p.Kind != "" {
			a.Problems = append(a.Problems, p)
		}
	}
	a.Problems = append(a.Problems, x.ofCluster()...)
	a.Problems = gathered(append(a.Problems, x.problems(r)...))
	for _, m := range r.live() {
		a.Moving = append(a.Moving, x.moving(r, m))
	}
	r.summarize(&a, target, x.silentOf(r), counted.Objects != nil)
	if len(o.States) == 0 && len(o.StorageVersions) == 0 {
		a.Next = "nothing is migrated before concord controllers, or servers of Concord, run here: no StorageState tells of them"
	}
	return a, nil
}

// InOneVersion reports whether all objects of a resource are known to be in the encoding that all servers agree on. That
// is not known if a stock server answered, which serves no StorageVersions.
func InOneVersion(o Observed, gr schema.GroupResource) bool {
	x := indexed(o)
	r, known := x.of[gr]
	if known {
		x.move(r)
	}
	return known && !x.stockAnswered && r.settled()
}

// target returns the encoding that every object should have: the storage version of a custom resource's definition,
// else the encoding that servers agree on.
func (r *resource) target() agree.Encoding {
	if r.crd == nil || StorageOf(r.crd) == "" {
		return r.common
	}
	plain := migrationv1alpha1.Stores(r.crd)
	if r.common.Plain() == plain {
		return r.common
	}
	return plain
}

// shares are the encodings that objects are stored in: as counted, or else as the stored set has them.
func (r *resource) shares(counted Counted) []Share {
	shares := []Share{}
	for encoding, n := range counted.Objects {
		shares = append(shares, Share{encoding, &n})
	}
	if counted.Objects == nil {
		for _, e := range r.stored {
			shares = append(shares, Share{Encoding: string(e)})
		}
	}
	slices.SortFunc(shares, func(a, b Share) int { return cmp.Compare(a.Encoding, b.Encoding) })
	return shares
}

// silentOf are the servers, alive or not, that may write the resource and do not report how.
func (x *index) silentOf(r *resource) (ids []string) {
	for _, server := range x.waitsFor(r) {
		if server.Silence != "" {
			ids = append(ids, server.ID)
		}
	}
	return ids
}

// summarize says what is the case, and what happens next by itself. silent are the servers that do not report what
// they write, and counted says that there was a census.
func (r *resource) summarize(a *Answer, target agree.Encoding, silent []string, counted bool) {
	var total, unread int64
	var others []string
	for _, share := range a.Stored {
		if share.Objects != nil {
			total += *share.Objects
		}
		if share.Encoding == unreadable {
			unread += *share.Objects
			continue
		}
		if share.Encoding == string(target) || target == "" {
			continue
		}
		others = append(others, share.Encoding)
	}
	others, old := r.foremost(others, a.Stored)
	damaged := slices.ContainsFunc(a.Problems, func(p Problem) bool { return p.Kind == BadObjects })
	if r.unserved {
		r.summarizeUnserved(a, counted, total)
		a.Next = r.next(a)
		return
	}
	unseen := !counted && r.version == nil && r.state == nil
	a.Blocked = target == "" || len(others) > 0 || unread > 0 || len(r.stale()) > 0 || damaged && !counted || len(silent) > 0 || unseen
	name := string(target)
	switch {
	case r.unreached():
		a.Blocked, a.Summary = true, "its API server stores it, and serves it as no resource of its own: migrations do not reach its objects, each of which stays in the version in which it was last written"
	case target == "" && r.settling() != "":
		a.Summary = "nothing is migrated yet"
	case target == "" && r.unreported():
		a.Summary = "no server reports that it stores it, so that nothing can be migrated"
	case target == "":
		a.Summary = "servers do not agree on how it is stored, so that nothing can be migrated"
	case counted && old > 0:
		a.Summary = fmt.Sprintf("%s: %d of %s %s still in %s%s", r.blocks(others), old, prose.Objects(total), prose.Is(int(old)), strings.Join(others, " and "), r.unprotected(others))
	case unread > 0:
		a.Summary = fmt.Sprintf("%d of %s cannot be read in any version", unread, prose.Objects(total))
	case !counted && r.unknown():
		a.Summary = r.blocks(nil) + ": it is not known in which versions objects are stored"
	case !counted && len(others) > 0:
		a.Summary = fmt.Sprintf("%s: objects may still be stored in %s", r.blocks(others), strings.Join(others, " and "))
	case len(r.stale()) > 0:
		a.Summary = fmt.Sprintf("%s: its definition lists %s in status.storedVersions", r.blocks(r.stale()), strings.Join(r.stale(), " and "))
		switch {
		case unseen:
			a.Summary += ", and nobody has looked at it yet"
		case counted && total == 0:
			a.Summary += ", though nothing is stored"
		case counted:
			a.Summary += fmt.Sprintf(", though all of %s are in %s", prose.Objects(total), name)
		}
	case unseen:
		a.Summary = r.blocks(nil) + ": nobody has looked yet at what is stored of it"
		if len(r.crd.Status.StoredVersions) > 0 { // which has the stored version alone
			a.Summary += fmt.Sprintf("; by its status.storedVersions that may be %s", name)
		}
	case damaged && !counted:
		a.Summary = fmt.Sprintf("every object is in %s but those that cannot be migrated", name)
	case len(silent) > 0 && counted && total == 0:
		a.Summary = fmt.Sprintf("%s: nothing is stored, and %s may write it without a report", r.blocks(nil), prose.Some(silent))
	case len(silent) > 0 && counted:
		a.Summary = fmt.Sprintf("%s: all of %s are in %s, and %s may write others without a report", r.blocks(nil), prose.Objects(total), name, prose.Some(silent))
	case len(silent) > 0:
		a.Summary = fmt.Sprintf("%s: every object is in %s, and %s may write others without a report", r.blocks(nil), name, prose.Some(silent))
	case counted && total == 0:
		a.Summary = "nothing blocks: nothing is stored"
	case counted:
		a.Summary = fmt.Sprintf("nothing blocks: all of %s are in %s", prose.Objects(total), name)
	default:
		a.Summary = "nothing blocks: every object is in " + name
	}
	a.Next = r.next(a)
}

// summarizeUnserved describes a resource that no server serves. Its objects, or possible objects, block a release that
// cannot read them.
func (r *resource) summarizeUnserved(a *Answer, counted bool, total int64) {
	a.Blocked = len(a.Stored) > 0
	switch {
	case !a.Blocked:
		a.Summary = "nothing blocks: no server serves it now, and nothing is stored"
	case counted:
		a.Summary = fmt.Sprintf("no server serves it now: %s %s stored and %s as %s", prose.Objects(total), prose.Is(int(total)), prose.Plural(int(total), "stays", "stay"), prose.Plural(int(total), "it is", "they are"))
	case r.nothingKnown():
		a.Summary = "no server serves it now, and nothing is known to be stored of it"
	default:
		a.Summary = "no server serves it now: what is stored of it stays as it is"
	}
}

// unprotected warns where the API server would let versions go that objects are in: their
// values came to be behind the back of the pruning of status.storedVersions.
func (r *resource) unprotected(encodings []string) string {
	if r.crd == nil {
		return ""
	}
	stale := r.stale()
	for _, e := range encodings {
		if plain := agree.Encoding(e).Plain(); plain == migrationv1alpha1.Stores(r.crd) || slices.Contains(stale, string(plain)) {
			return ""
		}
	}
	return "; the API server would allow it, since status.storedVersions does not say so"
}

// stale are the versions in the definition's status.storedVersions beside its storage version.
func (r *resource) stale() (all []string) {
	if r.crd == nil {
		return nil
	}
	for _, v := range r.crd.Status.StoredVersions {
		if v != StorageOf(r.crd) {
			all = append(all, string(migrationv1alpha1.EncodingOf(r.crd, v)))
		}
	}
	return all
}

// blocks names the step that cannot be taken because objects are, or may be, in other encodings, or the versions of
// these that the definition lacks.
func (r *resource) blocks(encodings []string) string {
	var versions, lacked, keys []string
	for _, e := range encodings {
		encoding := agree.Encoding(e)
		list, name := &versions, encoding.Version()
		switch plain := encoding.Plain(); {
		case plain == r.target().Plain():
			list, name = &keys, cmp.Or(encoding.Seal().Key(), evolve.Identity)
		case r.crd != nil && !r.has(string(plain)):
			list = &lacked
		}
		if !slices.Contains(*list, name) {
			*list = append(*list, name)
		}
	}
	switch {
	case len(versions) == 0 && len(lacked) > 0:
		return "its CustomResourceDefinition lacks " + strings.Join(lacked, " and ")
	case len(lacked) > 0:
		return strings.Join(versions, " and ") + " cannot be taken out of its CustomResourceDefinition, which lacks " + strings.Join(lacked, " and ")
	case len(versions) == 0 && len(keys) > 0:
		return strings.Join(keys, " and ") + " cannot be taken out of the servers' --encryption-provider-config"
	case r.crd != nil && len(versions) > 0:
		return strings.Join(versions, " and ") + " cannot be taken out of its CustomResourceDefinition"
	case r.crd != nil:
		return "no version can be taken out of its CustomResourceDefinition"
	case len(versions) > 0:
		return "a release that does not read " + strings.Join(versions, " and ") + " cannot be started"
	}
	return "no release can be called safe to start"
}

// foremost are those of the encodings beside the target that blocks names, and how many objects are in them: those in
// another version, and only where there are none those under another key.
func (r *resource) foremost(others []string, stored []Share) (named []string, n int64) {
	named = slices.DeleteFunc(slices.Clone(others), func(e string) bool { return agree.Encoding(e).Plain() == r.target().Plain() })
	if len(named) == 0 {
		named = others
	}
	for _, share := range stored {
		if share.Objects != nil && slices.Contains(named, share.Encoding) {
			n += *share.Objects
		}
	}
	return named, n
}

// next is the step that comes next by itself.
func (r *resource) next(a *Answer) string {
	inTheWay := func(p Problem) bool { return p.Kind != NotReady } // what the others do goes on
	switch {
	case slices.ContainsFunc(a.Problems, inTheWay):
		return ""
	case r.settling() != "":
		return r.settling()
	case len(a.Moving) > 0 && !slices.ContainsFunc(a.Moving, func(m Moving) bool { return len(m.Behind) == 0 }):
		return a.Moving[0].turn()
	case len(a.Moving) == 1 && a.Moving[0].LeftBy != "" && a.Moving[0].To == a.Target:
		return "its migration, which " + a.Moving[0].LeftBy + " began, goes on within seconds; look again with kubectl concord why " + r.String()
	case len(a.Moving) > 0 && a.Target != "" && !r.unserved: // it ends, or waits, where nothing can be migrated
		return "a migration is under way"
	case r.unserved && a.Blocked:
		return "it is migrated, where that is needed, when a server serves it again"
	case r.unserved:
		return ""
	case r.unreached():
		return ""
	case a.Target == "" && r.unreported():
		return "it can be migrated when servers serve it: --runtime-config may switch off a built-in one, and kubectl get apiservices says which aggregated API server does not answer"
	case a.Target == "":
		return "servers agree a moment after the last one has reported; look again with kubectl concord status -w"
	case len(r.reports) == 0 && r.version == nil && r.state == nil:
		return "servers report it, or concord controllers look at it; look again with kubectl concord why " + r.String()
	case a.Blocked && r.crd != nil && r.settled() && r.version == nil:
		return "the definition is pruned " + r.pruned()
	case a.Blocked && r.crd != nil && r.settled():
		return "the definition is pruned within seconds; look again with kubectl concord why " + r.String()
	case a.Blocked && r.crd == nil && r.version == nil:
		return "concord controllers migrate it when its storage version can have changed, unless they run with --built-in-resources=false (events end by themselves); at once by kubectl concord migrate " + r.String()
	case a.Blocked && !r.succeeded().IsZero():
		return "its migration has succeeded, and its StorageState says so within seconds; look again with kubectl concord why " + r.String()
	case a.Blocked && r.silenced:
		return "a migration begins when --migration-settle (75 s by default) has passed since a server that did not report has gone"
	case a.Blocked:
		return "a migration begins by itself; at once by kubectl concord migrate " + r.String()
	}
	return ""
}

// pruned is when a definition of a stock cluster is pruned that all objects follow.
func (r *resource) pruned() string {
	const proven = "when every kube-apiserver has answered for "
	switch after, told, _ := observed.Prunes(r.crd.Annotations); {
	case told && after == 0:
		return "at the next look of concord controllers, as its annotation " + observed.PruneAnnotation + " says"
	case told:
		return fmt.Sprintf("%s%s, as its annotation %s says", proven, after, observed.PruneAnnotation)
	}
	return proven + "as long as --prune-after of concord controllers says, 10 minutes by default; its annotation " + observed.PruneAnnotation + " says it for this one"
}

// Text shows the answer.
func (a Answer) Text(s Style) string {
	var text strings.Builder
	text.WriteString(s.paint(bold, s.wrapped("", "", a.Resource+": "+a.Summary+".")))
	if a.Next != "" {
		text.WriteString(s.wrapped("", "", "Next: "+a.Next+"."))
	}
	if len(a.Problems) > 0 {
		text.WriteString("\n" + a.Obstacles(s))
	}
	if len(a.Moving) > 0 {
		text.WriteString("\n")
		for _, m := range a.Moving {
			text.WriteString(m.text(s))
		}
	}
	text.WriteString("\n")
	if len(a.Stored) == 0 && strings.HasPrefix(a.Counted, notKnown) {
		text.WriteString(s.wrapped("", "", "What is stored is "+a.Counted+"."))
		return text.String()
	}
	if len(a.Stored) == 0 {
		text.WriteString("Nothing is stored, " + a.Counted + ".\n")
		return text.String()
	}
	text.WriteString(s.wrapped("", "", "Stored, "+a.Counted+":"))
	for _, share := range a.Stored {
		if share.Encoding == unreadable {
			share.Encoding = "unreadable"
		}
		n := ""
		if share.Objects != nil {
			n = fmt.Sprintf("  %d", *share.Objects)
		}
		mark := ""
		if share.Encoding == a.Target {
			mark = "  (target)"
		}
		text.WriteString("  " + share.Encoding + n + mark + "\n")
	}
	return text.String()
}

// Obstacles shows the problems.
func (a Answer) Obstacles(s Style) string {
	var text strings.Builder
	for _, p := range a.Problems {
		text.WriteString(p.text(s, explainObjects))
	}
	return text.String()
}

// Known are the resources of which something is known.
func Known(o Observed) (known []schema.GroupResource) {
	for _, r := range indexed(o).sorted() {
		known = append(known, r.GroupResource)
	}
	return known
}
