package listwatch

import (
	"slices"
	"testing"

	"k8s.io/client-go/tools/cache"
)

// TestHandler: the caller that tells of an event does not notice that the handler panics, and the
// handler gets the next ones all the same.
func TestHandler(t *testing.T) {
	var got []any
	h := Handler("test", cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, initial bool) { got = append(got, obj, initial); panic("add") },
		UpdateFunc: func(old, obj any) { got = append(got, old, obj); panic("update") },
		DeleteFunc: func(obj any) { got = append(got, obj); panic("delete") },
	})
	h.OnAdd("a", true)
	h.OnUpdate("a", "b")
	h.OnDelete("b")
	if want := []any{"a", true, "a", "b", "b"}; !slices.Equal(got, want) {
		t.Errorf("handled are %v, want %v", got, want)
	}
}
