package fence

import (
	"bytes"
	"context"
	"maps"
	"reflect"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

type heldKey struct{}

// held is what the watch cache has of the object that an update begins with. It is the cache's
// and not to be changed.
type held struct {
	object   *unstructured.Unstructured
	revision int64
	// sameSchema says that it is what it is in whatever version it is stored.
	sameSchema bool
}

// withHeld tells the store below the cache what the cache has of the object. An update in a
// rewrite begins with what etcd holds, which says how it is stored; where that is of the same
// revision the cache has decoded it before.
//
// What a webhook converts is decoded again: it may refuse now what it has converted then.
func (s *forwarder) withHeld(ctx context.Context, key string) context.Context {
	lazy, ok := s.Interface.(*lazyCache)
	if !ok || !s.fence.renames(s.self.GroupResource) {
		return ctx
	}
	object := lazy.peek(ctx, key)
	if object == nil {
		return ctx
	}
	revision, err := strconv.ParseInt(object.GetResourceVersion(), 10, 64)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, heldKey{}, held{object: object, revision: revision, sameSchema: s.fence.sameSchema(s.self.GroupResource)})
}

// peek returns what the cache has of an object, if there is a cache and it has it.
func (l *lazyCache) peek(ctx context.Context, key string) *unstructured.Unstructured {
	cached := l.built()
	if cached == l.Interface || cached.ReadinessCheck() != nil {
		return nil
	}
	object := &unstructured.Unstructured{}
	// Any revision will do.
	if cached.Get(ctx, key, storage.GetOptions{ResourceVersion: "0", IgnoreNotFound: true}, object) != nil || object.Object == nil {
		return nil
	}
	return object
}

// hold has the next one who decodes the value be given a copy of what the watch cache decoded
// it to, if ctx says so and that was at this revision. An update begins with it.
func (c *onceCodec) hold(ctx context.Context, data []byte, revision int64) {
	h, ok := ctx.Value(heldKey{}).(held)
	if !ok || h.revision != revision {
		return
	}
	copied := h.object.DeepCopy()
	copied.SetResourceVersion("") // which no value has in etcd
	if v := c.written.add(c, data); v != nil {
		c.written.keep(v, copied.GroupVersionKind(), copied)
		if h.sameSchema {
			c.written.begin(c, h.object)
		}
	}
}

// unchanged sees to it that a value is not decoded at all, neither for the caller nor for the
// watch cache, if it is of the object that its update began with, which was decoded before:
// most updates of a rewrite change nothing. What decoding does to it, by the schema of the
// version that it is stored in, it has done already: all versions have the same. That version
// has to be the object's, whose name decoding would change.
func (c *onceCodec) unchanged(obj runtime.Object, v *writtenValue) {
	now, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	began := c.written.end(c, now)
	if began == nil || !bytes.HasPrefix(v.data, []byte(`{"apiVersion":"`+now.GetAPIVersion()+`"`)) || !sameContent(now.Object, began.Object) {
		return
	}
	copied := began.DeepCopy()
	copied.SetResourceVersion("")
	c.written.keep(v, copied.GroupVersionKind(), copied, copied.DeepCopy())
}

// sameContent says whether two objects differ in their resourceVersions only.
func sameContent(a, b map[string]any) bool {
	if len(a) != len(b) {
		return false
	}
	for name, of := range a {
		inB, ok := b[name]
		if !ok {
			return false
		}
		if name == "metadata" {
			of, inB = withoutRevision(of), withoutRevision(inB)
		}
		if !reflect.DeepEqual(of, inB) {
			return false
		}
	}
	return true
}

func withoutRevision(metadata any) any {
	m, ok := metadata.(map[string]any)
	if !ok {
		return metadata
	}
	m = maps.Clone(m)
	delete(m, "resourceVersion")
	return m
}

// beginning identifies an update.
type beginning struct {
	codec           *onceCodec
	namespace, name string
}

// begin notes what an update begins with, which is not to be changed.
func (w *written) begin(c *onceCodec, object *unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.begun) >= maxWritten { // most of them were given up
		clear(w.begun)
	}
	w.begun[beginning{c, object.GetNamespace(), object.GetName()}] = object
}

// end returns what an update of the object began with, nil if that is not known.
func (w *written) end(c *onceCodec, object *unstructured.Unstructured) *unstructured.Unstructured {
	id := beginning{c, object.GetNamespace(), object.GetName()}
	w.mu.Lock()
	defer w.mu.Unlock()
	began := w.begun[id]
	delete(w.begun, id)
	return began
}
