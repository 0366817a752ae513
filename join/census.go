package join

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/rewrite"
	"github.com/concord-dev/concord/stored"
)

// censusRuns also lets a census take its time.
func censusRuns(check apirequest.LongRunningRequestCheck) apirequest.LongRunningRequestCheck {
	return func(r *http.Request, info *apirequest.RequestInfo) bool {
		return check(r, info) || !info.IsResourceRequest && strings.HasPrefix(info.Path, stored.CensusPath)
	}
}

// serveCensus serves stored.CensusPath. One census is taken at a time.
func (j *Join) serveCensus(server *genericapiserver.GenericAPIServer) {
	taking := make(chan struct{}, 1)
	server.Handler.NonGoRestfulMux.HandlePrefix(stored.CensusPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			answer(server.Serializer, w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "census"}, r.Method))
			return
		}
		select {
		case taking <- struct{}{}:
			defer func() { <-taking }()
		case <-r.Context().Done():
			return
		}
		census, err := j.census(r.Context(), schema.ParseGroupResource(strings.TrimPrefix(r.URL.Path, stored.CensusPath)))
		if err != nil {
			answer(server.Serializer, w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(census) // the client is gone
	}))
}

// census counts what is stored of a resource.
func (j *Join) census(ctx context.Context, gr schema.GroupResource) (*stored.ResourceCensus, error) {
	prefix, transformer, err := j.stored(gr)
	if err != nil {
		return nil, err
	}
	census := &stored.ResourceCensus{
		Resource: gr.String(), Rows: []rewrite.Row{},
		ObjectsPerSecond: j.migrating.speed.last(), MaxObjectsPerSecond: j.config.MigrationMaxObjectsPerSecond,
	}
	switch sv, err := j.clients.kube.InternalV1alpha1().StorageVersions().Get(ctx, storageversion.Name(gr), metav1.GetOptions{}); {
	case err == nil:
		common, _ := storageversion.Agreement(sv)
		census.Encoding = string(common)
	case !storageversion.IsGone(err):
		return nil, err
	}
	err = census.Count(ctx, rewrite.NewEtcd(j.etcd.client), prefix, transformer, func(value []byte) agree.Seal { return j.config.Keyring.Keys().SealOf(gr, value) })
	return census, err
}

// stored says where a resource's objects are in etcd, and how they are encrypted.
func (j *Join) stored(gr schema.GroupResource) (prefix string, transformer value.Transformer, err error) {
	transformer = identity.NewEncryptCheckTransformer()
	if j.crds.get(gr) != nil {
		options, err := j.crds.convert.RESTOptions(gr)
		if err != nil {
			return "", nil, err
		}
		if t := options.StorageConfig.Transformer; t != nil {
			transformer = t
		}
		return stored.ResourcePrefix(j.config.Etcd.Prefix, gr, true), transformer, nil
	}
	store, ok := j.storing.fence.Newest(gr)
	if !ok {
		return "", nil, stored.NotStored(gr)
	}
	if store.Transformer != nil {
		transformer = store.Transformer
	}
	return store.Prefix, transformer, nil
}
