package status

import (
	"cmp"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// nearestNamed is how many names are suggested for a wrong one.
const nearestNamed = 3

// Nearest returns the resources whose names are spelled most like the name, at most three,
// the nearest first.
func Nearest(name string, resources []schema.GroupResource) []schema.GroupResource {
	name = strings.ToLower(name)
	distance := func(gr schema.GroupResource) int {
		return min(levenshtein.ComputeDistance(name, gr.Resource), levenshtein.ComputeDistance(name, gr.String()))
	}
	near := slices.Clone(resources)
	slices.SortStableFunc(near, func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(distance(a), distance(b)), strings.Compare(a.String(), b.String()))
	})
	return near[:min(len(near), nearestNamed)]
}
