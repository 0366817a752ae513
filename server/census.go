package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
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
)

// CensusPath, with the name of a resource behind it ("widgets.example.com"), answers a GET
// with that resource's ResourceCensus. Only who may get that path may ask: system:masters,
// until others are allowed to. Every value is read, so that it takes a while.
const CensusPath = "/concord/census/"

// ResourceCensus counts the stored objects of one resource, from raw etcd.
type ResourceCensus struct {
	Resource string `json:"resource"`
	// Encoding is what all servers agree on, empty if they do not.
	Encoding string `json:"encoding"`
	// Rows are sorted by encoding. Their resource is this one.
	Rows []rewrite.Row `json:"rows"`
	// ReadSeconds is how long it took to read all of them.
	ReadSeconds float64 `json:"readSeconds"`
	// ObjectsPerSecond is how fast the server's last rewrite of at least a thousand objects
	// wrote, of whatever resource; 0 if it did none since it started.
	ObjectsPerSecond float64 `json:"objectsPerSecond"`
	// MaxObjectsPerSecond is what the server allows a migration that says nothing itself; 0
	// is no bound.
	MaxObjectsPerSecond int `json:"maxObjectsPerSecond"`
}

// longRunning also lets a census take its time.
func longRunning(check apirequest.LongRunningRequestCheck) apirequest.LongRunningRequestCheck {
	return func(r *http.Request, info *apirequest.RequestInfo) bool {
		return check(r, info) || !info.IsResourceRequest && strings.HasPrefix(info.Path, CensusPath)
	}
}

// serveCensus serves CensusPath. One census is taken at a time.
func (p *protocol) serveCensus(server *genericapiserver.GenericAPIServer) {
	if p.fence == nil {
		return
	}
	taking := make(chan struct{}, 1)
	server.Handler.NonGoRestfulMux.HandlePrefix(CensusPath, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
		census, err := p.census(r.Context(), schema.ParseGroupResource(strings.TrimPrefix(r.URL.Path, CensusPath)))
		if err != nil {
			answer(server.Serializer, w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(census) // the client is gone
	}))
}

// census counts what is stored of a resource.
func (p *protocol) census(ctx context.Context, gr schema.GroupResource) (*ResourceCensus, error) {
	prefix, transformer, err := p.stored(gr)
	if err != nil {
		return nil, err
	}
	census := &ResourceCensus{
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
	began := time.Now()
	rows := map[string]*rewrite.Row{}
	err = rewrite.Walk(ctx, rewrite.NewEtcd(p.etcd.client), prefix, func(e rewrite.Entry) error {
		encoding := encodingOf(ctx, e, transformer, func(value []byte) agree.Seal { return p.keyring.keys().sealOf(gr, value) })
		if rows[encoding] == nil {
			rows[encoding] = &rewrite.Row{Resource: census.Resource, Encoding: encoding}
		}
		rows[encoding].Objects++
		rows[encoding].Bytes += int64(len(e.Value))
		return nil
	})
	census.ReadSeconds = time.Since(began).Seconds()
	for _, row := range rows {
		census.Rows = append(census.Rows, *row)
	}
	slices.SortFunc(census.Rows, func(a, b rewrite.Row) int { return strings.Compare(a.Encoding, b.Encoding) })
	return census, err
}

// encodingOf is what a stored value says that it is encoded in, and encrypted with.
func encodingOf(ctx context.Context, e rewrite.Entry, transformer value.Transformer, seal func([]byte) agree.Seal) string {
	if encoding, _, ok := rewrite.Envelope(e.Value); ok {
		return string(encoding)
	}
	if plain, _, err := transformer.TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key)); err == nil {
		if encoding, _, ok := rewrite.Envelope(plain); ok {
			return string(encoding.Sealed(seal(e.Value)))
		}
	}
	return rewrite.EncodingUnknown
}

// censuses is what the answer that a server has no census of a resource says is not found.
var censuses = schema.GroupResource{Group: "concord.dev", Resource: "census"}

// IsNotStored tells the error with which CensusPath says that the server has no store of the
// resource from all others, also from a 404 of a server that takes no censuses.
func IsNotStored(err error, gr schema.GroupResource) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Group == censuses.Group && d.Kind == censuses.Resource && d.Name == gr.String()
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
			return ResourcePrefix(p.options.Etcd.StorageConfig.Prefix, gr, true), transformer, nil
		}
	}
	store, ok := p.fence.Newest(gr)
	if !ok {
		return "", nil, apierrors.NewNotFound(censuses, gr.String())
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
