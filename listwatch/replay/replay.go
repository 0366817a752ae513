// Package replay lets tests watch a fake API without missing anything.
package replay

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Watch is for the interceptor of a controller-runtime fake client. The fake's own watches
// begin when they are opened, so that changes since the list before are never seen;
// these begin with the objects that exist then. Objects deleted since the list are not told of.
func Watch(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	live, err := c.Watch(ctx, list, opts...)
	if err != nil {
		return nil, err
	}
	existing := list.DeepCopyObject().(client.ObjectList)
	if err := c.List(ctx, existing, opts...); err != nil {
		live.Stop()
		return nil, fmt.Errorf("list what exists when a watch begins: %w", err)
	}
	events := make(chan watch.Event)
	out := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		defer live.Stop()
		forward(existing, live, events, out.StopChan())
	}()
	return out, nil
}

// forward sends the existing objects and then the events that are new to them, until either side ends.
func forward(existing client.ObjectList, live watch.Interface, events chan<- watch.Event, stop <-chan struct{}) {
	send := func(e watch.Event) bool {
		select {
		case events <- e:
			return true
		case <-stop:
			return false
		}
	}
	sent := map[types.NamespacedName]int64{}
	objects, err := meta.ExtractList(existing)
	if err != nil {
		return
	}
	for _, o := range objects {
		name, version, ok := identify(o)
		if !ok || !send(watch.Event{Type: watch.Added, Object: o}) {
			return
		}
		sent[name] = version
	}
	for {
		select {
		case <-stop:
			return
		case e, more := <-live.ResultChan():
			if !more {
				return
			}
			name, version, ok := identify(e.Object)
			switch {
			case ok && e.Type == watch.Deleted:
				delete(sent, name) // it may be created anew
			case ok && version <= sent[name]:
				continue // from between the watch and the list
			}
			if !send(e) {
				return
			}
		}
	}
}

// identify returns the name and version of an object. Fakes count versions object by
// object.
func identify(object any) (types.NamespacedName, int64, bool) {
	o, ok := object.(client.Object)
	if !ok {
		return types.NamespacedName{}, 0, false
	}
	version, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	return client.ObjectKeyFromObject(o), version, err == nil
}
