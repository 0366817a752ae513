package fence

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// storageVersions reads StorageVersions where they are stored. The place is known as
// soon as their own storage is built, which may be after that of other resources.
type storageVersions struct {
	decoder runtime.Decoder
	place   atomic.Pointer[place]
}

type place struct {
	prefix      string
	transformer value.Transformer
}

func (v *storageVersions) locate(prefix string, transformer value.Transformer) {
	v.place.Store(&place{prefix: prefix, transformer: transformer})
}

// key returns the etcd key of the resource's StorageVersion, if the place is known.
func (v *storageVersions) key(gr schema.GroupResource) (string, bool) {
	p := v.place.Load()
	if p == nil {
		return "", false
	}
	return p.prefix + storageversion.Name(gr), true
}

// reports decodes the value stored at key.
func (v *storageVersions) reports(ctx context.Context, key string, stored []byte) ([]agree.Report, error) {
	p := v.place.Load()
	if p == nil {
		return nil, fmt.Errorf("%s: the storage of StorageVersions is not built", key)
	}
	data, _, err := p.transformer.TransformFromStorage(ctx, stored, value.DefaultContext(key))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	obj, _, err := v.decoder.Decode(data, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	sv, ok := obj.(*v1alpha1.StorageVersion)
	if !ok {
		return nil, fmt.Errorf("%s holds %T and no StorageVersion", key, obj)
	}
	return storageversion.Reports(sv), nil
}

// storageVersionDecoder reads JSON and protobuf of internal.apiserver.k8s.io/v1alpha1.
var storageVersionDecoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()
