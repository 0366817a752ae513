package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/stored"
)

// damageTolerant is the storage of StorageVersions. A value that cannot be decoded, because etcd's file was damaged or
// because somebody wrote it, would make every list of StorageVersions fail, and with it the reports of all resources.
// Such a value is left out of lists instead. A request for it by name is answered with the key and the way out, and it
// does not count as reported.
type damageTolerant struct {
	storage.Interface
	etcd        *clientv3.Client
	prefix      string // of the values' keys, with a trailing slash
	codec       runtime.Codec
	transformer value.Transformer

	mu      sync.Mutex
	damaged []string // keys, sorted
}

// tolerant wraps the decorator that makes the storage of StorageVersions.
func tolerant(etcd *clientv3.Client, prefix string, inner generic.StorageDecorator) generic.StorageDecorator {
	return func(
		config *storagebackend.ConfigForResource,
		resourcePrefix string,
		keyFunc func(obj runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object,
		getAttrs storage.AttrFunc,
		triggers storage.IndexerFuncs,
		indexers *cache.Indexers,
	) (storage.Interface, factory.DestroyFunc, error) {
		s, destroy, err := inner(config, resourcePrefix, keyFunc, newFunc, newListFunc, getAttrs, triggers, indexers)
		if err != nil {
			return nil, nil, err
		}
		return &damageTolerant{
			Interface: s, etcd: etcd, codec: config.Codec, transformer: config.Transformer,
			prefix: stored.ResourcePrefix(prefix, storageversion.Resource, false),
		}, destroy, nil
	}
}

// damage returns an error that says what is wrong with a value, and the way out.
func damage(key string, err error) error {
	return fmt.Errorf("the StorageVersion in etcd's key %s is damaged (%w): etcdctl del %s, then the servers report it again by themselves", key, err, key)
}

func (d *damageTolerant) decode(ctx context.Context, key string, raw []byte, revision int64) (*v1alpha1.StorageVersion, error) {
	if d.transformer != nil {
		var err error
		if raw, _, err = d.transformer.TransformFromStorage(ctx, raw, value.DefaultContext(key)); err != nil {
			return nil, err
		}
	}
	obj, err := runtime.Decode(d.codec, raw)
	if err != nil {
		return nil, err
	}
	sv, ok := obj.(*v1alpha1.StorageVersion)
	if !ok {
		return nil, fmt.Errorf("it is a %T", obj)
	}
	return sv, storage.APIObjectVersioner{}.UpdateObject(sv, uint64(revision))
}

// Get implements storage.Interface.
func (d *damageTolerant) Get(ctx context.Context, key string, opts storage.GetOptions, out runtime.Object) error {
	err := d.Interface.Get(ctx, key, opts, out)
	return d.explain(ctx, key, err)
}

// GuaranteedUpdate implements storage.Interface.
func (d *damageTolerant) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cached runtime.Object) error {
	err := d.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cached)
	return d.explain(ctx, key, err)
}

// explain adds the key and the way out to an error that comes from a damaged value.
func (d *damageTolerant) explain(ctx context.Context, key string, err error) error {
	var known *storage.StorageError
	var status apierrors.APIStatus
	switch {
	case err == nil, errors.As(err, &status), ctx.Err() != nil,
		errors.As(err, &known) && known.Code != storage.ErrCodeCorruptObj:
		return err
	}
	key = d.prefix + key[strings.LastIndex(key, "/")+1:]
	resp, getErr := d.etcd.Get(ctx, key)
	if getErr != nil || len(resp.Kvs) == 0 {
		return err
	}
	if _, damaged := d.decode(ctx, key, resp.Kvs[0].Value, resp.Kvs[0].ModRevision); damaged != nil {
		return apierrors.NewInternalError(damage(key, damaged))
	}
	return err
}

// GetList implements storage.Interface.
func (d *damageTolerant) GetList(ctx context.Context, key string, opts storage.ListOptions, into runtime.Object) error {
	err := d.Interface.GetList(ctx, key, opts, into)
	list, ok := into.(*v1alpha1.StorageVersionList)
	if err == nil && opts.Predicate.Limit == 0 && opts.Predicate.Continue == "" {
		d.note(nil, nil)
	}
	if err == nil || !ok || !opts.Recursive || ctx.Err() != nil {
		return err
	}
	resp, readErr := d.etcd.Get(ctx, d.prefix, clientv3.WithPrefix())
	if readErr != nil {
		return err
	}
	var damaged []string
	var why error
	list.Items = nil
	for _, kv := range resp.Kvs {
		sv, decodeErr := d.decode(ctx, string(kv.Key), kv.Value, kv.ModRevision)
		if decodeErr != nil {
			damaged, why = append(damaged, string(kv.Key)), damage(string(kv.Key), decodeErr)
			continue
		}
		if matches, matchErr := opts.Predicate.Matches(sv); matchErr != nil || !matches {
			continue
		}
		list.Items = append(list.Items, *sv)
	}
	if len(damaged) == 0 {
		return err // it is something else
	}
	d.note(damaged, why)
	return storage.APIObjectVersioner{}.UpdateList(list, uint64(resp.Header.Revision), "", nil)
}

// note logs which StorageVersions are damaged when that changes.
func (d *damageTolerant) note(damaged []string, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Equal(damaged, d.damaged) {
		return
	}
	if d.damaged = damaged; why == nil {
		klog.Background().Info("All StorageVersions can be read again")
		return
	}
	klog.Background().Error(why, "StorageVersions cannot be read; the resources take no writes", "keys", damaged)
}
