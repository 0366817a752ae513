package compat

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Stranded says whether no release migrates objects of a built-in resource from an encoding to one that is read, also not by way of
// another one: each step needs a release that decodes both. It is false for an encoding that no release is known to have.
func Stranded(lifecycles []Lifecycle, gr schema.GroupResource, encoding string, read func(encoding string) bool) bool {
	var reached, others []Lifecycle
	for _, l := range lifecycles {
		switch {
		case l.Resource != gr.Resource || l.Group != gr.Group && !l.NotPersisted:
		case l.GroupVersion().String() == encoding:
			reached = append(reached, l)
		default:
			others = append(others, l)
		}
	}
	for i := 0; i < len(reached); i++ {
		if read(reached[i].GroupVersion().String()) {
			return false
		}
		others = slices.DeleteFunc(others, func(l Lifecycle) bool {
			meets := meet(reached[i], l)
			if meets {
				reached = append(reached, l)
			}
			return meets
		})
	}
	return len(reached) > 0
}

// meet reports whether a release decodes both versions: if any does, the one that introduces the later one.
func meet(a, b Lifecycle) bool {
	if a.Introduced == nil || b.Introduced != nil && b.Introduced.GreaterThan(a.Introduced) {
		a, b = b, a
	}
	return a.Introduced == nil || b.decodedBy(a.Introduced)
}

// Removal is the advice about stranded encodings; reader says who does not read them, such as "1.38 reads".
func Removal(encodings []string, reader string) string {
	return fmt.Sprintf("no release migrates objects in %s to a version that %s: delete them, through a server that serves them or in etcd (docs/faults.md)",
		strings.Join(encodings, " and "), reader)
}
