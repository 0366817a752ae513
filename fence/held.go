package fence

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/storage"
)

type heldKey struct{}

// held is what the watch cache has of the object that an update begins with. It is the cache's
// and not to be changed.
type held struct {
	object   *unstructured.Unstructured
	revision int64
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
	return context.WithValue(ctx, heldKey{}, held{object: object, revision: revision})
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
// it to, if ctx says so and that was at this revision.
func (c *onceCodec) hold(ctx context.Context, data []byte, revision int64) {
	h, ok := ctx.Value(heldKey{}).(held)
	if !ok || h.revision != revision {
		return
	}
	copied := h.object.DeepCopy()
	copied.SetResourceVersion("") // which no value has in etcd
	if v := c.written.add(c, data); v != nil {
		c.written.keep(v, copied, copied.GroupVersionKind())
	}
}
