package listwatch

import (
	"context"

	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/workers"
)

// Handler returns a handler whose panics are caught: informers let them end the process. The
// event is lost then, as if it had not been understood.
func Handler(worker string, h cache.ResourceEventHandler) cache.ResourceEventHandler {
	return handler{worker, h}
}

type handler struct {
	worker string
	next   cache.ResourceEventHandler
}

func (h handler) do(f func()) {
	_ = workers.Do(context.Background(), h.worker, func() error { f(); return nil })
}

// OnAdd implements cache.ResourceEventHandler.
func (h handler) OnAdd(obj any, initial bool) { h.do(func() { h.next.OnAdd(obj, initial) }) }

// OnUpdate implements cache.ResourceEventHandler.
func (h handler) OnUpdate(old, obj any) { h.do(func() { h.next.OnUpdate(old, obj) }) }

// OnDelete implements cache.ResourceEventHandler.
func (h handler) OnDelete(obj any) { h.do(func() { h.next.OnDelete(obj) }) }

// Informer watches the selected objects of a kind, and indexes them. It calls handle for each object that is created
// (was is nil), changed or deleted; see Handler.
func Informer[T any, P interface {
	*T
	client.Object
}](c client.WithWatch, worker string, list client.ObjectList, indexers cache.Indexers, handle func(was, is P, gone bool), options ...client.ListOption) (cache.Indexer, cache.Controller) {
	if indexers == nil {
		indexers = cache.Indexers{} // what client-go makes without them is no Indexer
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: Of(c, list, options...),
		ObjectType:    P(new(T)),
		Indexers:      indexers,
		Handler: Handler(worker, cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { handle(nil, obj.(P), false) },
			UpdateFunc: func(old, obj any) { handle(old.(P), obj.(P), false) },
			DeleteFunc: func(obj any) {
				if last, ok := Deleted[P](obj); ok {
					handle(nil, last, true)
				}
			},
		}),
	})
	return store.(cache.Indexer), controller
}

// Indexed returns the objects that an index of an Informer has for a value. They are not to be changed.
func Indexed[P any](of cache.Indexer, index, value string) ([]P, error) {
	objs, err := of.ByIndex(index, value)
	found := make([]P, len(objs))
	for i, obj := range objs {
		found[i] = obj.(P)
	}
	return found, err
}
