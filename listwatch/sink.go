package listwatch

import (
	"fmt"
	"strconv"

	"k8s.io/client-go/tools/cache"
)

// Sink passes on the events of a reflector, and keeps nothing.
type Sink[T any] struct {
	// Event is called for every object that is created, changed or deleted.
	Event func(object *T, deleted bool)
	// Listed is called with complete lists, as of an etcd revision (0 if unknown).
	Listed func(objects []T, revision int64)
}

var _ cache.ReflectorStore = Sink[any]{}

// Add implements cache.ReflectorStore.
func (s Sink[T]) Add(object any) error { s.Event(object.(*T), false); return nil }

// Update implements cache.ReflectorStore.
func (s Sink[T]) Update(object any) error { s.Event(object.(*T), false); return nil }

// Delete implements cache.ReflectorStore.
func (s Sink[T]) Delete(object any) error { s.Event(object.(*T), true); return nil }

// Replace implements cache.ReflectorStore.
func (s Sink[T]) Replace(list []any, resourceVersion string) error {
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil && resourceVersion != "" {
		return fmt.Errorf("list at resourceVersion %q, which is no etcd revision", resourceVersion)
	}
	objects := make([]T, len(list))
	for i, object := range list {
		objects[i] = *object.(*T)
	}
	s.Listed(objects, revision)
	return nil
}

// Resync implements cache.ReflectorStore.
func (s Sink[T]) Resync() error { return nil }
