package fence

import (
	"context"
	"errors"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// filling is the store that a watch cache is filled from. A stored value that does not decode
// keeps the cache from being filled; with AllowUnsafeMalformedObjectDeletion the failed list
// says which values these are, and filling keeps that.
type filling struct {
	storage.Interface
	// damage is the StoreReadError of the last list, nil if it had none.
	damage atomic.Pointer[apierrors.StatusError]
}

// GetList implements storage.Interface.
func (f *filling) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	err := f.Interface.GetList(ctx, key, opts, list)
	var damage *apierrors.StatusError
	if !apierrors.IsStoreReadError(err) || !errors.As(err, &damage) {
		damage = nil
	}
	f.damage.Store(damage)
	return err
}

// explained is a store with a watch cache. Requests that the cache cannot answer because of a
// damaged value get the error that names the value, in place of the cache's 429, which asks
// clients to come again.
type explained struct {
	storage.Interface
	filling *filling
}

// explain is the error in place of err.
func (s *explained) explain(err error) error {
	damage := s.filling.damage.Load()
	switch {
	case damage == nil:
		return err
	case s.ReadinessCheck() == nil:
		s.filling.damage.Store(nil) // the cache was filled since
		return err
	case apierrors.IsTooManyRequests(err):
		return damage
	}
	return err
}

// Watch implements storage.Interface.
func (s *explained) Watch(ctx context.Context, key string, opts storage.ListOptions) (watch.Interface, error) {
	w, err := s.Interface.Watch(ctx, key, opts)
	return w, s.explain(err)
}

// GetList implements storage.Interface.
func (s *explained) GetList(ctx context.Context, key string, opts storage.ListOptions, list runtime.Object) error {
	return s.explain(s.Interface.GetList(ctx, key, opts, list))
}

// Stats implements storage.Interface. The store that fills the cache knows the sizes of its objects.
func (s *explained) Stats(ctx context.Context) (storage.Stats, error) { return s.filling.Stats(ctx) }
