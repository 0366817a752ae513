package workload

import (
	"encoding/json"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/testbed/load"
)

func TestObjectsAreAboutOneKiB(t *testing.T) {
	protobufs := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme)
	m := load.Mark{Counter: 7, Attempt: "w1-9", Via: "server-2"}
	for _, gr := range Shown {
		t.Run(gr.Resource, func(t *testing.T) {
			body, err := NewBody(load.Key{Resource: gr, Name: "load-000001"}, "v2", m)
			if err != nil {
				t.Fatal(err)
			}
			raw, custom := body.([]byte)
			asJSON := raw
			if !custom {
				encoder := scheme.Codecs.EncoderForVersion(protobufs, schema.GroupVersion{Group: gr.Group, Version: "v1"})
				if raw, err = runtime.Encode(encoder, body.(runtime.Object)); err != nil {
					t.Fatal(err)
				}
				if asJSON, err = json.Marshal(body); err != nil {
					t.Fatal(err)
				}
			}
			if len(raw) < 700 || len(raw) > 1300 {
				t.Errorf("%d bytes", len(raw))
			}
			if got, err := StoredMark(raw); err != nil || got != m {
				t.Errorf("mark %+v, %v", got, err)
			}
			var read listed
			if err := json.Unmarshal(asJSON, &read); err != nil {
				t.Fatal(err)
			}
			if got := read.stored(); got.Mark != m || got.Filler != filler("load-000001") {
				t.Errorf("read back: %+v", got)
			}
		})
	}
}

func TestHalfOfWhatIsLoadedAreCustomResources(t *testing.T) {
	counts := map[schema.GroupResource]int{}
	for i := range 100 {
		counts[LoadedResource(i)]++
	}
	if counts[Gadgets] != 50 || counts[Policies] != 5 || counts[Bindings] != 45 {
		t.Errorf("%v", counts)
	}
}

func TestWritersWriteAllResources(t *testing.T) {
	var own []*object
	seen := map[schema.GroupResource]int{}
	names := map[load.Key]bool{}
	for n := range 24 {
		o := next(&own, n, "w0")
		seen[o.key.Resource]++
		names[o.key] = true
	}
	if len(names) != 6 || len(seen) != 3 {
		t.Errorf("%d objects, writes by resource %v; want 6 objects", len(names), seen)
	}
}
