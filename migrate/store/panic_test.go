package store

import (
	"errors"
	"testing"

	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/workers"
)

// panicking is a codec with a bug.
type panicking struct{ machinery.Codec }

// Decode implements machinery.Codec.
func (panicking) Decode([]byte, *schema.GroupVersionKind, machinery.Object) (machinery.Object, *schema.GroupVersionKind, error) {
	panic("a bug")
}

// TestPanic: a panic fails the rewrite and not the process, and nothing is written.
func TestPanic(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	loadOld(t, c, 50)
	before := stored(t, c, policyPrefix)
	target.Codec = panicking{target.Codec}
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{UnderWay: 4}, nil); !errors.Is(err, workers.ErrPanicked) {
		t.Fatalf("the rewrite ends with %v", err)
	}
	for key, e := range stored(t, c, policyPrefix) {
		if e.ModRevision != before[key].ModRevision {
			t.Errorf("%s was written", key)
		}
	}
}
