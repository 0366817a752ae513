package server

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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

// longRunning also lets a census take its time.
func longRunning(check apirequest.LongRunningRequestCheck) apirequest.LongRunningRequestCheck {
	return func(r *http.Request, info *apirequest.RequestInfo) bool {
		return check(r, info) || !info.IsResourceRequest && strings.HasPrefix(info.Path, stored.CensusPath)
	}
}

// serveCensus serves stored.CensusPath. One census is taken at a time.
func (p *protocol) serveCensus(server *genericapiserver.GenericAPIServer) {
	if p.fence == nil {
		return
	}
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
		census, err := p.census(r.Context(), schema.ParseGroupResource(strings.TrimPrefix(r.URL.Path, stored.CensusPath)))
		if err != nil {
			answer(server.Serializer, w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(census) // the client is gone
	}))
}

// census counts what is stored of a resource.
func (p *protocol) census(ctx context.Context, gr schema.GroupResource) (*stored.ResourceCensus, error) {
	prefix, transformer, err := p.stored(gr)
	if err != nil {
		return nil, err
	}
	census := &stored.ResourceCensus{
		Resource: gr.String(), Rows: []rewrite.Row{},
		ObjectsPerSecond: p.speed.last(), MaxObjectsPerSecond: p.options.MigrationMaxObjectsPerSecond,
	}
	switch sv, err := p.kube.InternalV1alpha1().StorageVersions().Get(ctx, storageversion.Name(gr), metav1.GetOptions{}); {
	case err == nil:
		common, _ := storageversion.Agreement(sv)
		census.Encoding = string(common)
	case !storageversion.IsGone(err):
		return nil, err
	}
	err = census.Count(ctx, rewrite.NewEtcd(p.etcd.client), prefix, transformer, func(value []byte) agree.Seal { return p.keyring.Keys().SealOf(gr, value) })
	return census, err
}

// stored says where a resource's objects are in etcd, and how they are encrypted.
func (p *protocol) stored(gr schema.GroupResource) (prefix string, transformer value.Transformer, err error) {
	transformer = identity.NewEncryptCheckTransformer()
	if obj, exists, err := p.crds.GetIndexer().GetByKey(gr.String()); err == nil && exists && p.custom != nil {
		if _, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
			options, err := p.custom.storage.GetRESTOptions(gr, nil)
			if err != nil {
				return "", nil, err
			}
			if t := options.StorageConfig.Transformer; t != nil {
				transformer = t
			}
			return stored.ResourcePrefix(p.options.Etcd.StorageConfig.Prefix, gr, true), transformer, nil
		}
	}
	store, ok := p.fence.Newest(gr)
	if !ok {
		return "", nil, stored.NotStored(gr)
	}
	if store.Transformer != nil {
		transformer = store.Transformer
	}
	return store.Prefix, transformer, nil
}

// speed remembers how fast a server's rewrites write.
type speed struct {
	mu   sync.Mutex
	rate float64
}

// enough is how many objects have to be written for a rate to mean something.
const enough = 1000

// note takes in a rewrite that wrote so many objects.
func (s *speed) note(written int64, took time.Duration) {
	if written < enough || took <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rate = float64(written) / took.Seconds()
}

// last is the newest rate in objects per second, 0 without one.
func (s *speed) last() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rate
}
