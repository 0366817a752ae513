package listwatch

import (
	"context"

	"k8s.io/client-go/tools/cache"

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
