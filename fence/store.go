package fence

import (
	"context"
	"fmt"
	"path"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// Store describes the storage of one resource in one encoding. A migration decodes and encodes
// the stored objects with it.
type Store struct {
	GroupResource schema.GroupResource
	// Encoding is the group/version that the store writes, for its whole life. The encryption
	// key may change: see Sealer.
	Encoding agree.Encoding
	// ServedVersion is the group/version whose handler a custom resource's store belongs
	// to. It is empty for built-in resources.
	ServedVersion string
	// Prefix is the etcd prefix of the stored objects, with a trailing slash.
	Prefix string
	// Codec decodes any stored version and encodes to Encoding.
	Codec runtime.Codec
	// New makes the empty object that a stored value is decoded into.
	New func() runtime.Object
	// Transformer encrypts and decrypts values; it is never nil.
	Transformer value.Transformer
}

var versioner = storage.APIObjectVersioner{}

// Decorator returns the function that generic API servers call to make the storage of a
// resource. The storage is fenced unless the resource is exempt, and has a watch cache if cached
// is set and the resource allows it. The function does no I/O: custom resources call it under a
// lock.
func (f *Fence) Decorator(cached bool) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource,
		resourcePrefix string,
		keyFunc func(obj runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object,
		getAttrs storage.AttrFunc,
		triggers storage.IndexerFuncs,
		indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		described, err := f.describe(config, resourcePrefix, newFunc)
		if err != nil {
			return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
		}
		raw, stopRaw, err := f.open(described, config, resourcePrefix, newFunc, newListFunc)
		if err != nil {
			return nil, nil, fmt.Errorf("storage of %s: %w", config.GroupResource, err)
		}
		open := newUse(stopRaw)
		top, stopCache := raw, func() {}
		if cached && !f.uncached.Has(config.GroupResource) {
			top, stopCache, err = f.cachedStore(described, raw, open, cacher.Config{
				Versioner:           versioner,
				GroupResource:       config.GroupResource,
				EventsHistoryWindow: config.EventsHistoryWindow,
				ResourcePrefix:      resourcePrefix,
				KeyFunc:             keyFunc,
				NewFunc:             newFunc,
				NewListFunc:         newListFunc,
				GetAttrsFunc:        getAttrs,
				IndexerFuncs:        triggers,
				Indexers:            indexers,
				Codec:               config.Codec,
			})
			if err != nil {
				open.end()
				return nil, nil, fmt.Errorf("watch cache of %s: %w", config.GroupResource, err)
			}
		}
		if config.GroupResource == storageversion.Resource {
			f.versions.locate(described.Prefix, described.Transformer)
		}
		e := f.registry.add(described, raw)
		destroy := sync.OnceFunc(func() {
			f.registry.remove(e)
			stopCache()
			open.end()
		})
		return &forwarder{Interface: top, fence: f, self: e}, destroy, nil
	}
}

// describe reads off the decorator's arguments what kind of store is wanted.
func (f *Fence) describe(config *storagebackend.ConfigForResource, resourcePrefix string, newFunc func() runtime.Object) (Store, error) {
	enc, err := EncodingOf(config.Codec)
	if err != nil {
		return Store{}, err
	}
	s := Store{
		GroupResource: config.GroupResource,
		Encoding:      enc,
		Prefix:        path.Join("/", config.Prefix, resourcePrefix) + "/",
		Codec:         config.Codec,
		New:           newFunc,
		Transformer:   config.Transformer,
	}
	if s.Transformer == nil {
		s.Transformer = identity.NewEncryptCheckTransformer()
	}
	if u, ok := newFunc().(*unstructured.Unstructured); ok {
		s.ServedVersion = u.GetAPIVersion()
	}
	return s, nil
}

// open builds the etcd3 store, without a cache.
func (f *Fence) open(s Store, config *storagebackend.ConfigForResource, resourcePrefix string, newFunc, newListFunc func() runtime.Object) (storage.Interface, func(), error) {
	client, release := f.storeClient(s)
	transformer := s.Transformer
	if sealer, ok := transformer.(Sealer); ok && !f.unfenced.Has(s.GroupResource) {
		transformer = stamping{sealer}
	}
	decoder := etcd3.NewDefaultDecoder(config.Codec, versioner)
	unsafeDeletion := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if unsafeDeletion {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	store, err := etcd3.New(client, f.compactor, config.Codec, newFunc, newListFunc, config.Prefix, resourcePrefix,
		config.GroupResource, transformer, config.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		release()
		return nil, nil, err
	}
	stop := func() {
		store.Close()
		release()
	}
	if unsafeDeletion {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(store, config.GroupResource), stop, nil
	}
	return store, stop, nil
}

// storeClient returns a view of the shared connection for one store. Its watches have
// a gRPC stream of their own: progress requests are answered per stream, and on a shared
// one each of them would have to wait for all resources' watches.
func (f *Fence) storeClient(s Store) (*kubernetes.Client, func()) {
	ctx, cancel := context.WithCancel(f.client.Ctx())
	view := clientv3.NewCtxClient(ctx, clientv3.WithZapLogger(f.client.GetLogger()))
	view.Cluster, view.Auth, view.Maintenance = f.client.Cluster, f.client.Auth, f.client.Maintenance
	view.KV, view.Lease, view.Watcher = f.kv, f.client.Lease, clientv3.NewWatcher(f.client)
	release := func() {
		cancel()
		// The error is that of a stream which is being torn down.
		_ = view.Watcher.Close()
	}
	client := &kubernetes.Client{Client: view}
	client.Kubernetes = client
	if !f.unfenced.Has(s.GroupResource) {
		_, stamped := s.Transformer.(Sealer)
		client.Kubernetes = &fencedClient{
			stamped:   stamped,
			Interface: client,
			kv:        f.kv,
			permits:   f.permits,
			versions:  f.versions,
			gr:        s.GroupResource,
			enc:       s.Encoding,
		}
	}
	return client, release
}

// cachedStore puts a watch cache on top of a store. For a custom resource the cache is built when it is first used,
// unless the one of the previous store can be taken over; for other resources it is built at once.
func (f *Fence) cachedStore(s Store, raw storage.Interface, open *use, config cacher.Config) (storage.Interface, func(), error) {
	if s.ServedVersion == "" {
		c, err := fill(raw, open, config, func() {})
		if err != nil {
			return nil, nil, err
		}
		top, stop := c.serve(raw)
		return top, stop, nil
	}
	r, known := readingOf(s, config)
	lazy := &lazyCache{Interface: raw, gr: s.GroupResource, build: func() (storage.Interface, func(), error) {
		var c *watchCache
		c, err := fill(raw, open, config, func() { f.caches.remove(c) })
		if err != nil {
			return nil, nil, err
		}
		if known {
			f.caches.add(r, c)
		}
		top, stop := c.serve(raw)
		return top, stop, nil
	}}
	if known {
		if c, found := f.caches.find(r); found {
			lazy.cached, lazy.destroy = c.serve(raw)
		}
	}
	return lazy, lazy.stop, nil
}
