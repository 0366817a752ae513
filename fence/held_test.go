package fence

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// counted is a store of widgets in v2 with a cache that is filled from an object in v1, whose
// codec counts what it decodes.
type counted struct {
	*world
	storage.Interface
	codec *countingCodec
	key   string
}

func newCounted(t *testing.T, renames, sameSchema bool) *counted {
	t.Helper()
	w := newWorld(t)
	w.fence.renames = func(gr schema.GroupResource) bool { return renames && gr == widgets }
	w.fence.sameSchema = func(gr schema.GroupResource) bool { return sameSchema && gr == widgets }
	old, _ := w.widgetStore(widgetsV1, widgetsV1, false)
	w.permit(widgets, encV1)
	c := &counted{world: w, codec: &countingCodec{Codec: widgetCodec(widgetsV2, widgetsV2)}, key: "/example.com/widgets/w"}
	if err := old.Create(t.Context(), c.key, widget(widgetsV1, "w", "s"), nil, 0); err != nil {
		t.Fatal(err)
	}
	c.Interface, _ = w.widgetStoreWith(c.codec, widgetsV2, true)
	w.permit(widgets, encV2)
	return c
}

// fill has the cache built.
func (c *counted) fill() {
	c.Helper()
	list := newWidgetList(widgetsV2)
	if err := c.GetList(c.Context(), "/example.com/widgets/", storage.ListOptions{Predicate: storage.Everything, Recursive: true}, list); err != nil || len(list.Items) != 1 {
		c.Fatalf("the cache has %d objects: %v", len(list.Items), err)
	}
}

// cached returns what the cache has.
func (c *counted) cached() *unstructured.Unstructured {
	c.Helper()
	out := emptyWidget(widgetsV2)
	if err := c.Get(c.Context(), c.key, storage.GetOptions{ResourceVersion: "0"}, out); err != nil {
		c.Fatal(err)
	}
	return out
}

// An update of a rewrite that begins with what etcd holds does not decode what the cache has
// decoded, unless something else than the value may decide on the outcome. It begins with the
// same object, which is its own.
func TestRewritingDecodesWhatIsNotCached(t *testing.T) {
	for name, tc := range map[string]struct {
		renames, sameSchema, filled bool
		// decodings are those before an update, and written those after it, at least.
		decodings, written int64
	}{
		"of a cached object":                        {renames: true, sameSchema: true, filled: true},
		"of one whose version defaults differently": {renames: true, filled: true, written: 1},
		"of one that a webhook may convert":         {sameSchema: true, filled: true, decodings: 1, written: 1},
		"without a cache":                           {renames: true, sameSchema: true, decodings: 1, written: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCounted(t, tc.renames, tc.sameSchema)
			if tc.filled {
				c.fill()
			}
			want := emptyWidget(widgetsV2)
			if err := c.Get(t.Context(), c.key, storage.GetOptions{}, want); err != nil {
				t.Fatal(err)
			}
			refused, before := errors.New("refused"), c.codec.decoded.Load()
			update := func(try storage.UpdateFunc) (*unstructured.Unstructured, error) {
				out := emptyWidget(widgetsV2)
				return out, c.GuaranteedUpdate(Rewriting(t.Context()), c.key, out, false, nil, try, nil)
			}
			_, err := update(func(in runtime.Object, meta storage.ResponseMeta) (runtime.Object, *uint64, error) {
				if !reflect.DeepEqual(in, runtime.Object(want)) || in.(*unstructured.Unstructured).GetResourceVersion() == "" {
					t.Errorf("begins with %v, want %v", in, want)
				}
				if err := unstructured.SetNestedField(in.(*unstructured.Unstructured).Object, "changed", "spec", "size"); err != nil {
					t.Error(err)
				}
				return nil, nil, refused
			})
			if !errors.Is(err, refused) {
				t.Fatalf("got %v", err)
			}
			if n := c.codec.decoded.Load() - before; n != tc.decodings {
				t.Errorf("%d values were decoded, want %d", n, tc.decodings)
			}
			if tc.filled && !reflect.DeepEqual(c.cached(), want) {
				t.Errorf("the cache has %v, want %v", c.cached(), want)
			}
			before = c.codec.decoded.Load() + tc.decodings
			out, err := update(unchanged)
			if err != nil {
				t.Fatal(err)
			}
			if tc.filled {
				eventually(t, "the cache to see it", func() bool { return reflect.DeepEqual(c.cached(), out) })
			}
			if n := c.codec.decoded.Load() - before; n < tc.written || tc.written == 0 && n > 0 {
				t.Errorf("what was written was decoded %d times, want %d", n, tc.written)
			}
			if version, size := c.storedAs("w"); version != string(encV2) || size != "s" {
				t.Errorf("stored as %q with size %q", version, size)
			}
		})
	}
}

// A cache that lags behind is not believed.
func TestHeldOfAnotherRevision(t *testing.T) {
	codec, counting := newOnce(widgetsV2, widgetsV2)
	data, err := runtime.Encode(counting.Codec, widget(widgetsV2, "w", "now"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithValue(t.Context(), heldKey{}, held{object: widget(widgetsV2, "w", "before"), revision: 7, sameSchema: true})
	codec.hold(ctx, data, 8)
	codec.hold(t.Context(), data, 7)
	out := emptyWidget(widgetsV2)
	if err := runtime.DecodeInto(codec, data, out); err != nil {
		t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedString(out.Object, "spec", "size"); size != "now" || counting.decoded.Load() != 1 {
		t.Errorf("size %q after %d decodings", size, counting.decoded.Load())
	}
}

// A value whose object its update has not changed is decoded by nobody, and both readers of it
// have objects of their own, as the codec would make them. What differs, or is stored in
// another version, is decoded.
func TestUnchanged(t *testing.T) {
	for name, tc := range map[string]struct {
		stored    schema.GroupVersion
		begun     bool
		change    func(*unstructured.Unstructured)
		decodings int64
	}{
		"the same":                  {stored: widgetsV2, begun: true, decodings: 0},
		"nothing known of it":       {stored: widgetsV2, decodings: 1},
		"stored in another version": {stored: widgetsV1, begun: true, decodings: 1},
		"other content":             {stored: widgetsV2, begun: true, change: func(u *unstructured.Unstructured) { u.Object["spec"] = map[string]any{"size": "t"} }, decodings: 1},
		"other metadata":            {stored: widgetsV2, begun: true, change: func(u *unstructured.Unstructured) { u.SetLabels(map[string]string{"a": "b"}) }, decodings: 1},
		"a field more":              {stored: widgetsV2, begun: true, change: func(u *unstructured.Unstructured) { u.Object["more"] = "x" }, decodings: 1},
		"a field less":              {stored: widgetsV2, begun: true, change: func(u *unstructured.Unstructured) { delete(u.Object, "spec") }, decodings: 1},
		"another field":             {stored: widgetsV2, begun: true, change: func(u *unstructured.Unstructured) { delete(u.Object, "spec"); u.Object["more"] = "x" }, decodings: 1},
	} {
		t.Run(name, func(t *testing.T) {
			codec, counting := newOnce(widgetsV2, tc.stored)
			cached := widget(widgetsV2, "w", "s")
			cached.SetResourceVersion("7")
			kept := cached.DeepCopy()
			if tc.begun {
				codec.written.begin(codec, cached)
			}
			obj := widget(widgetsV2, "w", "s")
			if tc.change != nil {
				tc.change(obj)
			}
			data, err := runtime.Encode(codec, obj)
			if err != nil {
				t.Fatal(err)
			}
			want, kind, err := counting.Codec.Decode(data, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			for reader := range 2 {
				got, gotKind, err := codec.Decode(data, nil, nil)
				if err != nil || !reflect.DeepEqual(got, want) || *gotKind != *kind {
					t.Fatalf("reader %d has %v (%v), want %v (%v): %v", reader, got, gotKind, want, kind, err)
				}
				got.(*unstructured.Unstructured).Object["spec"] = "changed"
				unstructured.RemoveNestedField(got.(*unstructured.Unstructured).Object, "metadata", "name")
			}
			if n := counting.decoded.Load(); n != tc.decodings {
				t.Errorf("decoded %d times, want %d", n, tc.decodings)
			}
			if _, _, err := codec.Decode(data, nil, nil); err != nil || counting.decoded.Load() != tc.decodings+1 {
				t.Errorf("a third reader is given a copy as well: %v", err)
			}
			if !reflect.DeepEqual(cached, kept) || len(codec.written.begun) != 0 {
				t.Errorf("the cache's object is %v now, and %d updates are under way", cached, len(codec.written.begun))
			}
		})
	}
}

// Updates that were given up are forgotten.
func TestBeginningsForgotten(t *testing.T) {
	codec, _ := newOnce(widgetsV2, widgetsV2)
	for i := range 3 * maxWritten {
		codec.written.begin(codec, widget(widgetsV2, fmt.Sprint("w-", i), "s"))
	}
	last := widget(widgetsV2, fmt.Sprint("w-", 3*maxWritten-1), "s")
	if n := len(codec.written.begun); n > maxWritten || codec.written.end(codec, last) == nil {
		t.Errorf("%d updates are under way, the last one among them: %v", n, codec.written.end(codec, last) != nil)
	}
}
