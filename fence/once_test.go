package fence

import (
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// countingCodec counts what is decoded.
type countingCodec struct {
	runtime.Codec
	decoded atomic.Int64
}

func (c *countingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	c.decoded.Add(1)
	return c.Codec.Decode(data, defaults, into)
}

func newOnce(served, stored schema.GroupVersion) (*onceCodec, *countingCodec) {
	counting := &countingCodec{Codec: widgetCodec(served, stored)}
	return &onceCodec{Codec: counting, written: newWritten()}, counting
}

// What was encoded is decoded once for two readers, whichever way they ask, and each of them
// has an object of its own, equal to what the codec makes of the value.
func TestDecodedOnce(t *testing.T) {
	decodings := map[string]func(runtime.Codec, []byte) (runtime.Object, error){
		"for a caller": func(c runtime.Codec, data []byte) (runtime.Object, error) {
			into := emptyWidget(widgetsV1)
			return into, runtime.DecodeInto(c, data, into)
		},
		"for a cache": func(c runtime.Codec, data []byte) (runtime.Object, error) { return runtime.Decode(c, data) },
	}
	for first, one := range decodings {
		for second, two := range decodings {
			t.Run(first+" and "+second, func(t *testing.T) {
				codec, counting := newOnce(widgetsV1, widgetsV2)
				data, err := runtime.Encode(codec, widget(widgetsV1, "w", "s"))
				if err != nil {
					t.Fatal(err)
				}
				want, err := two(counting.Codec, data)
				if err != nil {
					t.Fatal(err)
				}
				a, err := one(codec, data)
				if err != nil {
					t.Fatal(err)
				}
				a.(*unstructured.Unstructured).Object["spec"].(map[string]any)["size"] = "changed"
				b, err := two(codec, append([]byte{}, data...)) // as it comes back from etcd
				if err != nil || !reflect.DeepEqual(b, want) {
					t.Fatalf("decoded %v, want %v: %v", b, want, err)
				}
				if n := counting.decoded.Load(); n != 1 {
					t.Errorf("decoded %d times", n)
				}
				// A third reader gets nothing that the second one has.
				c, err := one(codec, data)
				if err != nil || counting.decoded.Load() != 2 {
					t.Fatalf("decoded %d times: %v", counting.decoded.Load(), err)
				}
				if size, _, _ := unstructured.NestedString(c.(*unstructured.Unstructured).Object, "spec", "size"); size != "s" {
					t.Errorf("the third reader has %v", c)
				}
			})
		}
	}
}

// A value is not taken for another, nor for that of a store with another codec, and what
// is large or long ago is not kept.
func TestDecodedEachTime(t *testing.T) {
	codec, counting := newOnce(widgetsV2, widgetsV2)
	another := &onceCodec{Codec: widgetCodec(widgetsV1, widgetsV2), written: codec.written}
	encode := func(name, size string) []byte {
		data, err := runtime.Encode(codec, widget(widgetsV2, name, size))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	decode := func(c runtime.Codec, data []byte) *unstructured.Unstructured {
		obj, err := runtime.Decode(c, data)
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*unstructured.Unstructured)
	}
	data := encode("w", "s")
	decode(codec, data)
	if got := decode(another, data); got.GetAPIVersion() != string(encV1) {
		t.Errorf("the store of v1 was given %v", got)
	}
	if got := decode(codec, []byte(strings.Replace(string(data), `"s"`, `"t"`, 1))); got.Object["spec"].(map[string]any)["size"] != "t" {
		t.Errorf("another value was decoded to %v", got)
	}
	large := encode("large", strings.Repeat("x", maxWrittenBytes))
	before := counting.decoded.Load()
	decode(codec, large)
	decode(codec, large)
	if n := counting.decoded.Load() - before; n != 2 {
		t.Errorf("a large value was kept: decoded %d times", n)
	}
	for i := range 2 * maxWritten {
		decode(codec, encode(fmt.Sprint("w-", i), "s"))
	}
	if n := len(codec.written.by); n > maxWritten {
		t.Errorf("%d values are kept", n)
	}
	before = counting.decoded.Load()
	if got := decode(codec, data); got.GetName() != "w" || counting.decoded.Load() != before+1 {
		t.Errorf("the oldest value is still kept, or wrong: %v", got)
	}
}
