package migrate

import (
	"context"
	"sync"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// minRetry and maxRetry bound the time between two attempts that end in errors.
const (
	minRetry = 200 * time.Millisecond
	maxRetry = 15 * time.Second
)

// Run does migrations until ctx ends. What is under way then is continued by whoever
// finds that this server's Lease is gone.
func (c *Controller) Run(ctx context.Context) {
	queue := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		workqueue.TypedRateLimitingQueueConfig[string]{Clock: c.cfg.Clock})
	migrations := c.source(&migrationv1alpha1.StorageVersionMigrationList{}, &migrationv1alpha1.StorageVersionMigration{}, onEach(func(obj any, gone bool) {
		if m, ok := obj.(*migrationv1alpha1.StorageVersionMigration); ok {
			c.ObserveMigration(m, gone)
			queue.Add(m.Name)
		}
	}))
	versions := c.source(&apiserverinternalv1alpha1.StorageVersionList{}, &apiserverinternalv1alpha1.StorageVersion{}, onEach(func(obj any, gone bool) {
		if sv, ok := obj.(*apiserverinternalv1alpha1.StorageVersion); ok {
			c.ObserveStorageVersion(sv, gone)
		}
	}))
	var wg sync.WaitGroup
	wg.Go(func() { migrations.RunWithContext(ctx) })
	wg.Go(func() { versions.RunWithContext(ctx) })
	wg.Go(func() {
		<-ctx.Done()
		queue.ShutDown()
	})
	for range c.cfg.Workers {
		wg.Go(func() { c.work(ctx, queue) })
	}
	wg.Wait()
}

func (c *Controller) work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	for {
		name, stop := queue.Get()
		if stop {
			return
		}
		after, err := c.Step(ctx, name)
		switch {
		case err != nil:
			level := 0
			if apierrors.IsConflict(err) || ctx.Err() != nil {
				level = 2
			}
			c.cfg.Logger.V(level).Info("Looking at a migration again", "migration", name, "reason", err.Error())
			queue.AddRateLimited(name)
		case after > 0:
			queue.Forget(name)
			queue.AddAfter(name, after)
		default:
			queue.Forget(name)
		}
		queue.Done(name)
	}
}

// ObserveStorageVersion interrupts rewrites that a changed or deleted StorageVersion may
// not permit any more, so that they end before they run into the fence. Seeing an old
// one does no harm: the rewrite reads it again, and goes on.
func (c *Controller) ObserveStorageVersion(sv *apiserverinternalv1alpha1.StorageVersion, gone bool) {
	gr, err := storageversion.GroupResource(sv.Name)
	if err != nil {
		return
	}
	c.interrupt(errMoved, func(w *work) bool { return w.gr == gr && (gone || judge(sv, w.target) != nil) })
}

// ObserveMigration interrupts the rewrite of a migration that is gone or has been ended.
func (c *Controller) ObserveMigration(m *migrationv1alpha1.StorageVersionMigration, gone bool) {
	if !gone && !migrationv1alpha1.Final(m) {
		return
	}
	c.interrupt(errTaken, func(w *work) bool { return w.uid == m.UID })
	c.forget(m.UID)
}

func (c *Controller) interrupt(cause error, which func(*work) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w, cancel := range c.running {
		if which(w) {
			cancel(cause)
		}
	}
}

func (c *Controller) register(w *work, cancel context.CancelCauseFunc) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running[w] = cancel
}

func (c *Controller) unregister(w *work) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, w)
}

func onEach(handle func(obj any, gone bool)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { handle(obj, false) },
		UpdateFunc: func(_, obj any) { handle(obj, false) },
		DeleteFunc: func(obj any) {
			if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = tombstone.Obj
			}
			handle(obj, true)
		},
	}
}

func (c *Controller) source(list client.ObjectList, object client.Object, handler cache.ResourceEventHandler) cache.Controller {
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source{client: c.cfg.Client, list: list},
		ObjectType:    object,
		Handler:       handler,
	})
	return controller
}

// source lists and watches objects through controller-runtime's client.
type source struct {
	client client.WithWatch
	list   client.ObjectList
}

func with(o metav1.ListOptions) client.ListOption {
	return &client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o}
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
	list := s.list.DeepCopyObject().(client.ObjectList)
	return list, s.client.List(ctx, list, with(o))
}

// WatchWithContext implements cache.ListerWatcherWithContext.
func (s source) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return s.client.Watch(ctx, s.list.DeepCopyObject().(client.ObjectList), with(o))
}

// IsWatchListSemanticsUnSupported asks for a plain list before the watch.
func (s source) IsWatchListSemanticsUnSupported() bool { return true }
