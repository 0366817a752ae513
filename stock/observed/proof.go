package observed

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
)

// Outcome is the effect that an empty patch, sent to one replica, had on an object.
type Outcome int

const (
	// Same: the resourceVersion did not change. So the stored bytes are those that this replica writes.
	Same Outcome = iota
	// Moved: the replica wrote something else than was stored.
	Moved
	// Gone: it was deleted.
	Gone
	// Refused: the replica does not take the patch, or others wrote the object every time before it.
	Refused
)

// Probe is one empty patch.
type Probe struct {
	Replica agree.ServerID
	Outcome
	// Detail is why it was refused.
	Detail string
}

// Twice is the result of asking a replica twice in a row after an object has changed, to find out why.
type Twice struct {
	Replica agree.ServerID
	First   Outcome
	// Unsteady says that the second patch changed the very bytes that the replica had written itself: no other client
	// wrote the object in between, and no answer was lost.
	Unsteady bool
}

// Examined is an object with the outcomes of the patches that it was examined by.
type Examined struct {
	types.NamespacedName
	// Probes are in the order in which the replicas were asked; after a probe that changed the object, or was refused,
	// no other replica is asked.
	Probes []Probe
	// Again are the outcomes of all replicas afterwards.
	Again []Twice
}

// String is the object's name, behind its namespace if it has one.
func (e Examined) String() string { return strings.TrimPrefix(e.NamespacedName.String(), "/") }

// Cause is why an object moved.
type Cause string

const (
	// Leftover: it was stored in another way, and is not any more.
	Leftover Cause = "it was still stored in another way"
	// Disagreement: replicas write it differently.
	Disagreement Cause = "kube-apiservers write it differently"
	// Admission: it changes with every write.
	Admission Cause = "admission changes it at every write"
)

// failed returns the probe that moved the object, or was refused.
func (e Examined) failed() (Probe, bool) {
	i := slices.IndexFunc(e.Probes, func(p Probe) bool { return p.Outcome == Moved || p.Outcome == Refused })
	if i < 0 {
		return Probe{}, false
	}
	return e.Probes[i], true
}

// Cause says why an object moved, judged by the outcomes of all replicas afterwards.
func (e Examined) Cause() Cause {
	cause := Leftover
	for _, t := range e.Again {
		switch {
		case t.Unsteady:
			return Admission
		case t.First == Moved:
			cause = Disagreement
		}
	}
	return cause
}

// Proof is the verdict of a pass of empty patches through every replica. The zero Proof is that
// of none. Its size does not grow with the number of objects.
type Proof struct {
	// Checked are the objects that were examined.
	Checked int
	// Failed counts the objects that changed or were refused, Moved those that changed, and Unsteady those of them
	// that admission changes at every write. Named has the first by name. Invariant: len(Named) = min(Failed,
	// maxTold), and Named is sorted.
	Failed   int
	Moved    int
	Unsteady int
	Named    []Examined
}

// maxTold bounds how many objects a Proof names.
const maxTold = 5

// Add takes in an object that was examined.
func (p *Proof) Add(e Examined) {
	p.Checked++
	if _, failed := e.failed(); !failed {
		return
	}
	if p.Failed++; slices.ContainsFunc(e.Probes, func(p Probe) bool { return p.Outcome == Moved }) {
		p.Moved++
		if e.Cause() == Admission {
			p.Unsteady++
		}
	}
	at, _ := slices.BinarySearchFunc(p.Named, e, func(a, b Examined) int { return strings.Compare(a.String(), b.String()) })
	p.Named = slices.Insert(p.Named, at, e)
	p.Named = p.Named[:min(len(p.Named), maxTold)]
}

// Holds says whether nothing moved.
func (p Proof) Holds() bool { return p.Failed == 0 }

// String describes the proof to people.
func (p Proof) String() string {
	if p.Holds() {
		return fmt.Sprintf("no empty patch of %d objects changed what is stored", p.Checked)
	}
	var told []string
	for _, e := range p.Named {
		probe, _ := e.failed()
		why := fmt.Sprintf("%s wrote it anew: %s", probe.Replica, e.Cause())
		if probe.Outcome == Refused {
			why = fmt.Sprintf("%s refuses it: %s", probe.Replica, probe.Detail)
		}
		told = append(told, fmt.Sprintf("%s (%s)", e, why))
	}
	if more := p.Failed - len(p.Named); more > 0 {
		told = append(told, fmt.Sprintf("and %d more", more))
	}
	did := fmt.Sprintf("empty patches changed %d of %d objects", p.Moved, p.Checked)
	switch refused := p.Failed - p.Moved; {
	case p.Moved == 0:
		did = fmt.Sprintf("empty patches of %d of %d objects were refused", refused, p.Checked)
	case refused > 0:
		did += fmt.Sprintf(", and of %d were refused", refused)
	}
	return did + ": " + strings.Join(told, "; ")
}
