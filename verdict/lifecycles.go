package verdict

import (
	_ "embed"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/compat"
)

// lifecycles.txt has a line for each version of each built-in resource: group, version,
// resource, kind, and the releases that introduce, deprecate and remove it. A test of
// server/planning, which knows Kubernetes' types, writes it and holds it to them.
//
//go:embed lifecycles.txt
var lifecyclesText string

// Lifecycles returns the lifecycles of server/planning, for programs that link no Kubernetes.
func Lifecycles() []compat.Lifecycle { return lifecycles() }

var lifecycles = sync.OnceValue(func() []compat.Lifecycle {
	all, err := ParseLifecycles(lifecyclesText)
	if err != nil {
		// The table is part of the binary and tested.
		panic(err)
	}
	return all
})

// core stands for the group without a name, and none for a release that there is not.
const core, none = "core", "-"

// The words that may follow a row.
const (
	kept         = "kept"
	gone         = "gone"
	notPersisted = "notpersisted"
)

// ParseLifecycles reads the table's form.
func ParseLifecycles(text string) ([]compat.Lifecycle, error) {
	var all []compat.Lifecycle
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 7 {
			return nil, fmt.Errorf("lifecycle %q: want group, version, resource, kind and three releases", line)
		}
		l := compat.Lifecycle{GroupVersionResource: schema.GroupVersionResource{Group: f[0], Version: f[1], Resource: f[2]}, Kind: f[3]}
		if f[0] == core {
			l.Group = ""
		}
		for i, release := range []**version.Version{&l.Introduced, &l.Deprecated, &l.Removed} {
			if f[4+i] == none {
				continue
			}
			v, err := version.ParseMajorMinor(f[4+i])
			if err != nil {
				return nil, fmt.Errorf("lifecycle %q: %w", line, err)
			}
			*release = v
		}
		for _, word := range f[7:] {
			l.Kept = l.Kept || word == kept
			l.Gone = l.Gone || word == gone
			l.NotPersisted = l.NotPersisted || word == notPersisted
		}
		all = append(all, l)
	}
	return all, nil
}
