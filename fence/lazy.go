package fence

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/api/storageversion"
)

// lazyCache is a store that builds its watch cache at the first read that a cache can answer, or at the first update
// of an object, because updates start from the cached object. A custom resource has a store, and so a cache, for each
// served version. Each of them decodes every write of the resource, and most are never used.
//
// Until then lazyCache behaves as a store with an empty cache: requests that need no cache go to etcd.
type lazyCache struct {
	storage.Interface // without the cache
	gr                schema.GroupResource
	build             func() (storage.Interface, func(), error)

	mu      sync.Mutex
	cached  storage.Interface // nil until it is built
	destroy func()
	stopped bool
}

// cache returns the store with its cache, which is built if it was not.
func (l *lazyCache) cache() (storage.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cached != nil {
		return l.cached, nil
	}
	if l.stopped {
		return nil, storageversion.Unavailable(l.gr, "the storage of %s has been replaced", l.gr)
	}
	var err error
	l.cached, l.destroy, err = l.build()
	return l.cached, err
}

// built returns the store with its cache, or without if there is none yet.
func (l *lazyCache) built() storage.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cached == nil {
		return l.Interface
	}
	return l.cached
}

// stop ends the cache, if there is one; none is built afterwards.
func (l *lazyCache) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	if l.destroy != nil {
		l.destroy()
		l.destroy = nil
	}
}

// cachePoll is how often a first read asks for its cache.
const cachePoll = 5 * time.Millisecond

// cacheWait is how long it waits for that. Tests wait longer.
var cacheWait = time.Second

// read calls the store with its cache. A cache that has not been filled yet answers 429;
// it usually is within milliseconds, and then the call is made again.
func (l *lazyCache) read(ctx context.Context, call func(storage.Interface) error) error {
	s, err := l.cache()
	if err != nil {
		return err
	}
	if err = call(s); !apierrors.IsTooManyRequests(err) {
		return err
	}
	ready := func(context.Context) (bool, error) { return s.ReadinessCheck() == nil, nil }
	if wait.PollUntilContextTimeout(ctx, cachePoll, cacheWait, true, ready) != nil {
		return err
	}
	return call(s)
}

// Watch implements storage.Interface.
func (l *lazyCache) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	var w watch.Interface
	err := l.read(ctx, func(s storage.Interface) (err error) {
		w, err = s.Watch(ctx, key, opts)
		return err
	})
	return w, err
}

// GetList implements storage.Interface.
func (l *lazyCache) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	return l.read(ctx, func(s storage.Interface) error { return s.GetList(ctx, key, opts, list) })
}

// Get implements storage.Interface. The newest state of one object is always read from etcd.
func (l *lazyCache) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	if opts.ResourceVersion == "" {
		return l.built().Get(ctx, key, opts, out)
	}
	s, err := l.cache()
	if err != nil {
		return err
	}
	return s.Get(ctx, key, opts, out)
}

// ReadinessCheck implements storage.Interface.
func (l *lazyCache) ReadinessCheck() error {
	s, err := l.cache()
	if err != nil {
		return err
	}
	return s.ReadinessCheck()
}

// GuaranteedUpdate implements storage.Interface. It does not wait for the cache to be filled.
func (l *lazyCache) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	s, err := l.cache()
	if err != nil {
		s = l.Interface
	}
	return s.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cachedExistingObject)
}

// Delete implements storage.Interface.
func (l *lazyCache) Delete(ctx context.Context, key string, out runtime.Object, preconditions *storage.Preconditions, validateDeletion storage.ValidateObjectFunc, cachedExistingObject runtime.Object, opts storage.DeleteOptions) error {
	return l.built().Delete(ctx, key, out, preconditions, validateDeletion, cachedExistingObject, opts)
}

// CompactRevision implements storage.Interface.
func (l *lazyCache) CompactRevision() int64 { return l.built().CompactRevision() }
