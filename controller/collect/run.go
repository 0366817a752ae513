package collect

import (
	"context"
	"sync"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stepTimeout bounds one Step of Run, in real time: an answer that never comes must not
// end the observation.
const stepTimeout = 30 * time.Second

// Run steps at every interval until ctx ends. leader is asked before each step.
func (c *Collector) Run(ctx context.Context, leader func() bool) {
	var wg sync.WaitGroup
	wg.Go(func() { c.watch(ctx) })
	defer wg.Wait()
	timer := c.cfg.Clock.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		if err := c.Step(step, leader()); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Info("Collecting will be repeated", "reason", err.Error())
		}
		cancel()
		timer.Reset(c.cfg.Interval)
	}
}

// watch notices changes of StorageVersions, so that Step need not read them all.
func (c *Collector) watch(ctx context.Context) {
	cache.NewReflectorWithOptions(source{c.cfg.Client}, &v1alpha1.StorageVersion{}, sink{c}, cache.ReflectorOptions{
		Name:            "collect",
		TypeDescription: "StorageVersions",
		Logger:          &c.cfg.Logger,
		Clock:           c.cfg.Clock,
	}).RunWithContext(ctx)
}

// source lists and watches StorageVersions through controller-runtime's client.
type source struct{ client client.WithWatch }

var _ cache.ListerWatcherWithContext = source{}

func options(o metav1.ListOptions) *client.ListOptions {
	return &client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o}
}

// ListWithContext is part of cache.ListerWatcherWithContext.
func (s source) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	list := &v1alpha1.StorageVersionList{}
	if err := s.client.List(ctx, list, options(o)); err != nil {
		return nil, err
	}
	return list, nil
}

// WatchWithContext is part of cache.ListerWatcherWithContext.
func (s source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return s.client.Watch(ctx, &v1alpha1.StorageVersionList{}, options(o))
}

// List is part of cache.ListerWatcher.
func (s source) List(o metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), o)
}

// Watch is part of cache.ListerWatcher.
func (s source) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), o)
}

// IsWatchListSemanticsUnSupported has the reflector list and then watch.
func (s source) IsWatchListSemanticsUnSupported() bool { return true }

// sink notes that something changed.
type sink struct{ c *Collector }

var _ cache.ReflectorStore = sink{}

// Add is part of cache.ReflectorStore.
func (s sink) Add(any) error { s.c.touched.Store(true); return nil }

// Update is part of cache.ReflectorStore.
func (s sink) Update(any) error { s.c.touched.Store(true); return nil }

// Delete is part of cache.ReflectorStore.
func (s sink) Delete(any) error { s.c.touched.Store(true); return nil }

// Replace is part of cache.ReflectorStore.
func (s sink) Replace([]any, string) error {
	s.c.touched.Store(true)
	s.c.watched.Store(true)
	return nil
}

// Resync is part of cache.ReflectorStore.
func (s sink) Resync() error { return nil }
