package demo

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestObjectsAreAboutOneKiB(t *testing.T) {
	h := newHistory(t)
	m := mark{Counter: 7, Attempt: "w1-9", Via: "server-2"}
	for _, gr := range shown {
		t.Run(gr.Resource, func(t *testing.T) {
			body, err := newBody(objectKey{gr, "load-000001"}, "v2", m)
			if err != nil {
				t.Fatal(err)
			}
			raw, custom := body.([]byte)
			asJSON := raw
			if !custom {
				raw = h.protobuf(body.(runtime.Object), schema.GroupVersion{Group: gr.Group, Version: "v1"})
				asJSON = h.json(body)
			}
			if len(raw) < 700 || len(raw) > 1300 {
				t.Errorf("%d bytes", len(raw))
			}
			if got, err := storedMark(raw); err != nil || got != m {
				t.Errorf("mark %+v, %v", got, err)
			}
			var read listed
			if err := json.Unmarshal(asJSON, &read); err != nil {
				t.Fatal(err)
			}
			if got := read.stored(); got.mark != m || got.filler != filler("load-000001") {
				t.Errorf("read back: %+v", got)
			}
		})
	}
}

func TestHalfOfWhatIsLoadedAreCustomResources(t *testing.T) {
	counts := map[schema.GroupResource]int{}
	for i := range 100 {
		counts[loadedResource(i)]++
	}
	if counts[gadgets] != 50 || counts[policies] != 5 || counts[bindings] != 45 {
		t.Errorf("%v", counts)
	}
}

func TestWritersWriteAllResources(t *testing.T) {
	var own []*object
	seen := map[schema.GroupResource]int{}
	names := map[objectKey]bool{}
	for n := range 24 {
		o := next(&own, n, "w0")
		seen[o.key.resource]++
		names[o.key] = true
	}
	if len(names) != 6 || len(seen) != 3 {
		t.Errorf("%d objects, writes by resource %v; want 6 objects", len(names), seen)
	}
}
