package join

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/join/internal/engines"
	"github.com/concord-dev/concord/join/internal/filters"
	"github.com/concord-dev/concord/migrate/claim"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
)

// counting takes censuses of what this server stores.
type counting struct {
	storing *storing
	crds    *definitions
	clients *clients
	engines *engines.Engines
}

// serve serves census.Path. One census is taken at a time.
func (c *counting) serve(server *genericapiserver.GenericAPIServer) {
	taking := make(chan struct{}, 1)
	server.Handler.NonGoRestfulMux.HandlePrefix(census.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			filters.Answer(server.Serializer, w, r, apierrors.NewMethodNotSupported(schema.GroupResource{Resource: "census"}, r.Method))
			return
		}
		select {
		case taking <- struct{}{}:
			defer func() { <-taking }()
		case <-r.Context().Done():
			return
		}
		verify, _ := strconv.ParseBool(r.URL.Query().Get(census.VerifyParameter)) // false as a default
		counted, err := c.census(r.Context(), schema.ParseGroupResource(strings.TrimPrefix(r.URL.Path, census.Path)), verify)
		if err != nil {
			filters.Answer(server.Serializer, w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(counted) // the client is gone
	}))
}

// census counts the stored values of a resource, and decodes them with verify.
func (c *counting) census(ctx context.Context, gr schema.GroupResource, verify bool) (*census.Resource, error) {
	prefix, transformer, err := c.stored(gr)
	if census.IsNotStored(err, gr) && c.storing.config.Kinds[gr] != "" {
		prefix, transformer = c.left(gr)
		err = nil
	}
	if err != nil {
		return nil, err
	}
	opened := stored.Opened{Transformer: transformer, Seal: func(value []byte) agree.Seal { return c.storing.config.Keyring.Keys().SealOf(gr, value) }}
	if verify {
		opened.Verify = c.decodes(gr)
	}
	counted := &census.Resource{
		Resource: gr.String(), Rows: []census.Row{},
		ObjectsPerSecond: c.engines.Speed(), MaxObjectsPerSecond: c.storing.config.MigrationMaxObjectsPerSecond,
	}
	switch sv, err := c.clients.kube.InternalV1alpha1().StorageVersions().Get(ctx, storageversion.Name(gr), metav1.GetOptions{}); {
	case err == nil:
		common, _ := storageversion.Agreement(sv)
		counted.Encoding = string(common)
	case !storageversion.IsGone(err):
		return nil, err
	}
	err = stored.Take(ctx, counted, migratestore.NewEtcd(c.storing.etcd), prefix, opened)
	return counted, err
}

// decodes says why a value of a resource does not decode: as its store would find, of a custom resource no more than
// whether it is JSON or CBOR. Values of versions that this server does not know, or of resources that it does not store, decode as
// they do in stored.
func (c *counting) decodes(gr schema.GroupResource) migratestore.Verify {
	if c.crds.get(gr) != nil {
		return func(value []byte) error { return convert.Decode(value, &unstructured.Unstructured{}) }
	}
	known := stored.Decodes(c.storing.config.Schemes...)
	store, ok := c.storing.fence.Newest(gr)
	if !ok {
		return known
	}
	return func(value []byte) error {
		_, _, err := store.Codec.Decode(value, nil, store.New())
		if runtime.IsNotRegisteredError(err) {
			return known(value)
		}
		return err
	}
}

// left says where a built-in resource that this server does not store has its objects in etcd, if
// another release has stored any, and how they are encrypted.
func (c *counting) left(gr schema.GroupResource) (prefix string, transformer value.Transformer) {
	if transformer = c.storing.config.Keyring.TransformerForResource(gr); transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	return stored.ResourcePrefix(c.storing.config.Etcd.Prefix, gr, false), transformer
}

// countLeft is trigger.Config.Census: it reads every value of a resource, and says in which
// encodings those are that are not in the target's or not encrypted with its key.
func (c *counting) countLeft(ctx context.Context, gr schema.GroupResource, target evolve.Target) ([]agree.Encoding, error) {
	prefix, _, err := c.stored(gr)
	if census.IsNotStored(err, gr) {
		return nil, c.notStored(ctx, gr)
	}
	if err != nil {
		return nil, err
	}
	wanted := &migratestore.Target{GroupResource: gr, Encoding: target.Encoding.Plain(), Prefix: prefix}
	if wanted.Transformer, err = c.storing.config.Keyring.Pin(gr, target.Encoding.Seal()); err != nil {
		return nil, err
	}
	pacer, stop := c.engines.Pacer(claim.Job{})
	defer stop()
	left, err := migratestore.CountLeft(ctx, migratestore.NewEtcd(c.storing.etcd), wanted, migratestore.Options{Pacer: pacer})
	if err == nil && left.Values > 0 {
		klog.FromContext(ctx).Info("A census has found values that should not be there", "resource", gr.String(), "values", left.Values, "first", left.First.Key, "which", left.First.Detail)
	}
	return left.Found, err
}

// notStored explains why a resource that this server does not know to be stored cannot be counted: another server stores
// it, or it is a custom resource whose CustomResourceDefinition the informer has not shown yet.
func (c *counting) notStored(ctx context.Context, gr schema.GroupResource) error {
	if !c.crds.stores {
		return trigger.ErrNotStored
	}
	switch err := c.clients.objects.Get(ctx, client.ObjectKey{Name: gr.String()}, &apiextensionsv1.CustomResourceDefinition{}); {
	case storageversion.IsGone(err):
		return trigger.ErrNotStored
	case err != nil:
		return err
	}
	return fmt.Errorf("this server has not seen the CustomResourceDefinition %s yet", gr)
}

// stored says where a resource's objects are in etcd, and how they are encrypted.
func (c *counting) stored(gr schema.GroupResource) (prefix string, transformer value.Transformer, err error) {
	transformer = identity.NewEncryptCheckTransformer()
	if c.crds.get(gr) != nil {
		options, err := c.crds.convert.RESTOptions(gr)
		if err != nil {
			return "", nil, err
		}
		if t := options.StorageConfig.Transformer; t != nil {
			transformer = t
		}
		return stored.ResourcePrefix(c.storing.config.Etcd.Prefix, gr, true), transformer, nil
	}
	store, ok := c.storing.fence.Newest(gr)
	if !ok {
		return "", nil, census.NotStored(gr)
	}
	if store.Transformer != nil {
		transformer = store.Transformer
	}
	return store.Prefix, transformer, nil
}
