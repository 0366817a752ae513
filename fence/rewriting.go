package fence

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/etcd3"
)

type rewritingKey struct{}

// Rewriting marks what is done with ctx as a rewrite of objects that are to be stored as they
// are, in the current encoding. The updates of others begin with the cached object, which
// is usually the newest; but it does not tell how it is stored, so that an update
// that changes nothing is found to be one only after it was made, and then made again on
// what etcd holds. Updates under ctx begin with that. Lists of custom resources under ctx are
// for metadata only; they read etcd, too, and build no watch cache.
//
// Nothing that a client sends sets the mark.
func Rewriting(ctx context.Context) context.Context {
	return context.WithValue(ctx, rewritingKey{}, true)
}

func rewriting(ctx context.Context) bool { return ctx.Value(rewritingKey{}) != nil }

// plainDecoder decodes what is listed under a context of Rewriting, for its metadata only,
// without converting it: metadata are the same in every version of a custom resource, and
// a webhook would be called for each object.
type plainDecoder struct{ etcd3.Decoder }

// DecodeListItem implements etcd3.Decoder.
func (d plainDecoder) DecodeListItem(ctx context.Context, data []byte, rev uint64, newItem func() runtime.Object) (runtime.Object, error) {
	if !rewriting(ctx) {
		return d.Decoder.DecodeListItem(ctx, data, rev, newItem)
	}
	obj := &unstructured.Unstructured{}
	if _, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, obj); err != nil {
		return nil, err
	}
	return obj, versioner.UpdateObject(obj, rev)
}
