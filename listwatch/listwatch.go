// Package listwatch lets client-go's reflectors and informers watch objects through
// controller-runtime's client, which is all that members and controllers know of an API.
package listwatch

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize is how many objects Paged has in memory as they were read.
const pageSize = 10

// Of lists and watches the objects of the kind of list that the options choose.
func Of(c client.WithWatch, list client.ObjectList, options ...client.ListOption) cache.ListerWatcher {
	return source{client: c, list: list, options: options}
}

// Telling is like Of, and reports how each list and each start of a watch ended.
func Telling(c client.WithWatch, told func(error), list client.ObjectList, options ...client.ListOption) cache.ListerWatcher {
	return source{client: c, list: list, options: options, told: told}
}

// Paged is like Of for large objects, most of which lean drops: it lists a page at a time, and calls lean before it
// reads the next page. An informer would call its own transform only when it has the whole list. Watched objects come
// one by one.
func Paged(c client.WithWatch, lean cache.TransformFunc, list client.ObjectList, options ...client.ListOption) cache.ListerWatcher {
	return source{client: c, list: list, options: options, lean: lean}
}

var _ cache.ListerWatcherWithContext = source{} // so that its requests end with its context

type source struct {
	client  client.WithWatch
	list    client.ObjectList
	options []client.ListOption
	told    func(error)         // nil: nobody is
	lean    cache.TransformFunc // nil: all is listed at once
}

func (s source) tell(err error) {
	if s.told != nil {
		s.told(err)
	}
}

func (s source) with(o metav1.ListOptions) []client.ListOption {
	return append([]client.ListOption{&client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o}}, s.options...)
}

// List implements cache.ListerWatcher.
func (s source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch implements cache.ListerWatcher.
func (s source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// ListWithContext implements cache.ListerWatcherWithContext.
func (s source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if s.lean != nil {
		return s.pages(ctx)
	}
	list := s.list.DeepCopyObject().(client.ObjectList)
	err := s.client.List(ctx, list, s.with(o)...)
	s.tell(err)
	return list, err
}

// pages lists what there is now: at resourceVersion "0", for which a reflector asks, kube-apiserver answers with
// everything at once.
func (s source) pages(ctx context.Context) (runtime.Object, error) {
	var all []runtime.Object
	for o := (metav1.ListOptions{Limit: pageSize}); ; {
		page := s.list.DeepCopyObject().(client.ObjectList)
		if err := s.client.List(ctx, page, s.with(o)...); err != nil {
			return nil, err
		}
		err := meta.EachListItem(page, func(obj runtime.Object) error {
			_, err := s.lean(obj)
			all = append(all, obj)
			return err
		})
		if err != nil {
			return nil, err
		}
		if o.Continue = page.GetContinue(); o.Continue == "" {
			page.SetRemainingItemCount(nil)
			return page, meta.SetList(page, all)
		}
	}
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (s source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	events, err := s.client.Watch(ctx, s.list.DeepCopyObject().(client.ObjectList), s.with(o)...)
	s.tell(err)
	return events, err
}

// IsWatchListSemanticsUnSupported asks for a plain list before the watch.
func (s source) IsWatchListSemanticsUnSupported() bool { return true }

// Deleted returns the last state known of an object that an informer says is deleted,
// also if the informer missed the deletion itself.
func Deleted[T any](obj any) (T, bool) {
	if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = tombstone.Obj
	}
	last, ok := obj.(T)
	return last, ok
}
