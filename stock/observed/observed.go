// Package observed judges kube-apiservers that do not report their storage versions (KEP-2343):
// the version that each of them writes, by its own discovery, whether all agree,
// whether a proof by behaviour holds, and when a definition's storedVersions may be pruned. It is
// pure: observations in, values out, no clock, I/O or goroutine.
package observed

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// Process is one kube-apiserver process: its identity Lease, which keeps its name over a
// restart, and the Lease's holderIdentity, which does not.
type Process struct {
	Lease  agree.ServerID
	Holder string
}

// Replica is a kube-apiserver process, as its identity Lease describes it.
type Replica struct {
	Process
	// Address is where the process is reached, "host:port"; empty if that is not known. Nowhere explains why it cannot
	// be reached on its own; may be empty.
	Address, Nowhere string
	// Renewed is when the Lease was last renewed, Lasts how long it lasts then.
	Renewed time.Time
	Lasts   time.Duration
}

// Alive returns the replicas whose Lease has not run out, by name. A Lease without times has not run out.
func Alive(replicas []Replica, now time.Time) []Replica {
	alive := slices.DeleteFunc(slices.Clone(replicas), func(r Replica) bool {
		return !r.Renewed.IsZero() && r.Lasts > 0 && r.Renewed.Add(r.Lasts).Before(now)
	})
	slices.SortFunc(alive, func(a, b Replica) int { return cmp.Compare(a.Lease, b.Lease) })
	return alive
}

// Apart removes the address from replicas that share it, such as that of a load balancer in front of all: any one of
// them may answer there, and the answer does not say which.
//
// A crash leaves a Lease behind, so that the process at the address may be the only live one. This cannot be
// distinguished from a replica that is paused, or whose clock differs: somebody has to delete the Lease.
func Apart(replicas []Replica) []Replica {
	apart := slices.Clone(replicas)
	for i, r := range replicas {
		other := slices.IndexFunc(replicas, func(o Replica) bool { return o.Lease != r.Lease && o.Address == r.Address })
		if r.Address != "" && other >= 0 {
			apart[i].Address = ""
			apart[i].Nowhere = fmt.Sprintf("shares its address %s with %s, and nobody knows which of them answers there: delete the Lease of one that is gone, "+
				"or, if both are there, start with --best-effort (an operator: Options.BestEffort)", r.Address, replicas[other].Lease)
		}
	}
	return apart
}

// Shown is the entry of one resource in the discovery of a replica.
type Shown struct {
	Hash, Kind string
	// Served are the group/versions in which it is served.
	Served []string
}

// Answer is the discovery that a replica returned, or the reason why it did not.
type Answer struct {
	// Failed is why there is no answer; the rest is empty then.
	Failed string
	// Release is the replica's minor release, such as "1.37".
	Release string
	// Shown has every resource that the replica stores.
	Shown map[schema.GroupResource]Shown
	// Unanswered are group/versions for which it did not answer, and why, while it did for others.
	Unanswered map[schema.GroupVersion]string
}

// unanswered explains why the answer does not cover a resource; "" if it does. For a custom resource only the versions
// of its definition matter: other versions of the group belong to other resources, or another program serves them.
func (a Answer) unanswered(gr schema.GroupResource, definition Definition) string {
	for _, gv := range slices.SortedFunc(maps.Keys(a.Unanswered), func(x, y schema.GroupVersion) int { return cmp.Compare(x.String(), y.String()) }) {
		if gv.Group == gr.Group && (len(definition.Versions) == 0 || slices.Contains(definition.Versions, gv)) {
			return a.Unanswered[gv]
		}
	}
	return ""
}

// Revision names a state of a CustomResourceDefinition's spec, "uid/generation"; empty: none that is
// known. Between two that are equal the spec did not change.
type Revision string

// RevisionOf returns the Revision of a definition.
func RevisionOf(uid string, generation int64) Revision {
	return Revision(fmt.Sprintf("%s/%d", uid, generation))
}

// replaces reports whether the revision belongs to another definition than an earlier one of the same name.
func (r Revision) replaces(before Revision) bool {
	uid, _, known := strings.Cut(string(r), "/")
	was, _, told := strings.Cut(string(before), "/")
	return known && told && uid != was
}

// Definition holds the fields of a CustomResourceDefinition that are compared with discovery.
type Definition struct {
	Revision Revision
	// Stores is the version that it says to store, Versions are all that it has.
	Stores   agree.Encoding
	Versions []schema.GroupVersion
	// NotServed says that the definition is established but does not serve its storage version: the discovery of every
	// kube-apiserver shows the other versions only, and not which one is stored.
	NotServed bool
	// Stored are the versions in status.storedVersions.
	Stored []agree.Encoding
	// Said are the versions that it said to store since the last round.
	Said []agree.Encoding
}

// Round is one time of asking all replicas.
type Round struct {
	// Began is before anybody was asked, Asked after all had answered or were given up.
	Began, Asked time.Time
	// Before and After are the replicas whose Leases had not run out, read before and after
	// the asking.
	Before, After []Replica
	Answers       map[Process]Answer
	// Only are the resources that were asked about; none: all.
	Only []schema.GroupResource
	// Defined are the custom resources.
	Defined map[schema.GroupResource]Definition
	// Versions are the group/versions that a kind is known in, by which hashes are read.
	Versions func(kind string) []schema.GroupVersion
}

// Verdict is the conclusion about a resource from one round of questions to all replicas.
type Verdict struct {
	// Reports hold the encoding that each replica was seen to write, by name.
	Reports []agree.Report
	// Encoding is the encoding that all replicas write; empty if that is not known.
	Encoding agree.Encoding
	// Why is why it is not, with every replica that stands in the way; empty otherwise.
	Why string
	// Shown says whether any replica shows the resource, and Whole whether all answered.
	Shown, Whole bool
}

// notServedByAll says of a kube-apiserver that it lacks a built-in resource that others have.
const notServedByAll = "is of another release or --runtime-config, and does not serve it"

// different begins the reason where kube-apiservers store different versions.
const different = "kube-apiservers store different versions: "

// Uneven says whether the reason why a built-in resource is not agreed on is that not all kube-apiservers serve
// it, or store it in one version: they are of different releases, as during an upgrade, or have different --runtime-config.
func Uneven(why string) bool {
	return strings.Contains(why, notServedByAll) || strings.HasPrefix(why, different)
}

// Judge says whether all replicas write a resource in one version: every one whose Lease has
// not run out answered, was the same process before and after, and named it.
func (r Round) Judge(gr schema.GroupResource) Verdict {
	v := Verdict{Whole: true}
	definition, custom := r.Defined[gr]
	var reasons []string
	var without []agree.ServerID // those that do not serve it
	stands := func(id agree.ServerID, why string, args ...any) {
		reasons = append(reasons, fmt.Sprintf("%s %s", id, fmt.Sprintf(why, args...)))
	}
	for _, replica := range r.After {
		answer, why := r.answer(replica, gr)
		if why != "" {
			v.Whole = false
			stands(replica.Lease, "%s", why)
			continue
		}
		shown, ok := answer.Shown[gr]
		if !ok {
			without = append(without, replica.Lease)
			continue
		}
		v.Shown = true
		report := agree.Report{Server: replica.Lease, Encoding: agree.Unknown, Served: shown.Served}
		if e, ok := Invert(shown.Hash, shown.Kind, append(r.Versions(shown.Kind), definition.Versions...)); ok {
			report.Encoding = e
		} else {
			stands(replica.Lease, "stores it in a version whose hash %q is of none that is known", shown.Hash)
		}
		report.Decodable = append(slices.Clone(shown.Served), string(report.Encoding))
		v.Reports = append(v.Reports, report)
	}
	for _, id := range without { // they do not write it, and can neither migrate nor prove
		switch {
		case custom && !definition.NotServed:
			stands(id, "does not serve it")
		case v.Shown && !custom && !foreign(gr, v.Reports):
			stands(id, "%s, as others do", notServedByAll)
		}
	}
	v.decide(definition, custom, reasons)
	return v
}

// answer returns the answer of a replica, or the reason why it does not count for one of these resources.
func (r Round) answer(replica Replica, about ...schema.GroupResource) (Answer, string) {
	same := func(o Replica) bool { return o.Process == replica.Process }
	switch answer, asked := r.Answers[replica.Process]; {
	case !slices.ContainsFunc(r.Before, same):
		return Answer{}, "has started, or was restarted, since it was asked"
	case !asked:
		return Answer{}, "was not asked"
	default:
		why := answer.Failed
		for _, gr := range about {
			why = cmp.Or(why, answer.unanswered(gr, r.Defined[gr]))
		}
		return answer, why
	}
}

// inVain reports whether a replica with a Lease was asked and did not answer about one of these resources.
func (r Round) inVain(replica Replica, about ...schema.GroupResource) bool {
	_, asked := r.Answers[replica.Process]
	_, why := r.answer(replica, about...)
	return asked && why != "" && replica.Lease != Unleased
}

func (v *Verdict) decide(definition Definition, custom bool, reasons []string) {
	encodings := agree.Encodings(v.Reports)
	if definition.NotServed {
		reasons = append([]string{fmt.Sprintf("the definition stores %s, which it does not serve: serve it (served: true), or store another version", definition.Stores)}, reasons...)
	}
	switch {
	case len(reasons) > 0:
	case len(encodings) == 0:
		reasons = append(reasons, "no kube-apiserver shows the resource")
	case len(encodings) > 1:
		reasons = append(reasons, describe(v.Reports))
	case custom && encodings[0] != definition.Stores:
		reasons = append(reasons, fmt.Sprintf("all store %s still, and the CustomResourceDefinition says %s", encodings[0], definition.Stores))
	default:
		v.Encoding = encodings[0]
	}
	v.Why = strings.Join(reasons, "; ")
}

// describe says which replica stores which version.
func describe(reports []agree.Report) string {
	var parts []string
	for _, e := range agree.Encodings(reports) {
		var who []string
		for _, r := range reports {
			if r.Encoding == e {
				who = append(who, string(r.Server))
			}
		}
		parts = append(parts, fmt.Sprintf("%s: %s", e, strings.Join(who, ", ")))
	}
	return different + strings.Join(parts, "; ")
}

// Release names the minor releases of all replicas that answered, such as "1.37", and "1.36+1.37"
// in the middle of an upgrade.
func (r Round) Release() string {
	releases := map[string]bool{}
	for _, a := range r.Answers {
		if a.Release != "" {
			releases[a.Release] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(releases)), "+")
}
