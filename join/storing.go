package join

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	apiextensionsapi "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	apiregistrationapi "k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/admit"
	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/workers"
)

// storing gives everything that the server stores a fenced store.
type storing struct {
	// fence is nil in a server that reports nothing.
	fence *fence.Fence
	// cached and uncached make stores; nil without a fence.
	cached, uncached generic.StorageDecorator
	config           Config
	etcd             *clientv3.Client
	sizes            map[schema.GroupResource]int
	// configs were given to Storage. Start checks that they still have our RESTOptionsGetter.
	configs []*genericapiserver.Config
	// enabled say which versions are switched on, one for each server of the chain.
	enabled []resourceEnabled
}

// resourceEnabled is the part of a server's APIResourceConfigSource that is used.
type resourceEnabled interface {
	ResourceEnabled(resource schema.GroupVersionResource) bool
}

// newStoring has m permit the writes, and host in an aggregated server; it is nil in others.
func newStoring(config Config, etcd *clientv3.Client, m *member.Member, host *hosting.Host) (*storing, error) {
	s := &storing{config: config, etcd: etcd}
	var err error
	if s.sizes, err = genericoptions.ParseWatchCacheSizes(config.WatchCacheSizes); err != nil {
		return nil, fmt.Errorf("--watch-cache-sizes: %w", err)
	}
	if config.Silent {
		return s, nil
	}
	var permits fence.Permits = m
	uncached := sets.New(schema.GroupResource{Resource: "events"}, storageversion.Resource,
		migrationv1alpha1.StorageStates, migrationv1alpha1.StorageVersionMigrations)
	if host != nil {
		permits = host
		uncached.Insert(registry.Leases)
	}
	s.fence, err = fence.New(fence.Config{
		Client:  etcd,
		Permits: permits,
		// Events as upstream. StorageVersions are read consistently and often: from etcd that
		// takes a millisecond, while a watch cache first has to learn that it is up to date,
		// which it asks every 100 ms. Of StorageStates and migrations there is one for each
		// resource or more, written several times when it comes: in a watch cache, with its
		// history, they were most of the memory that a server with many CRDs took beyond a stock
		// one. Hardly anybody but controllers watches them.
		Uncached:           uncached.Union(config.Uncached),
		CompactionInterval: config.Etcd.CompactionInterval,
	})
	if err != nil {
		return nil, err
	}
	s.cached, s.uncached = s.fence.Decorator(config.EnableWatchCache), s.fence.Decorator(false)
	return s, nil
}

// Storage has all that a server with this configuration stores go through the fence. It is
// called for each server of the delegation chain, after its RESTOptionsGetter was set.
func (j *Join) Storage(c *genericapiserver.Config) {
	c.RESTOptionsGetter = j.storing.wrap(c.RESTOptionsGetter)
	j.storing.configs = append(j.storing.configs, c)
	c.AdmissionControl = admit.Around(c.AdmissionControl, j.config.RBAC)
	if c.MergedResourceConfig != nil {
		j.storing.enabled = append(j.storing.enabled, c.MergedResourceConfig)
	}
}

// CustomResources is Storage for the custom resources of a server with this configuration.
func (j *Join) CustomResources(extra *apiextensionsapiserver.ExtraConfig) {
	extra.CRDRESTOptionsGetter = j.storing.wrap(extra.CRDRESTOptionsGetter)
	// One: Established needs no wait, since no server takes a write before it has reported.
	extra.MasterCount = 1
	j.crds.stored(extra.CRDRESTOptionsGetter, extra.ServiceResolver, extra.AuthResolverWrapper)
}

func (s *storing) wrap(getter generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	if getter == nil {
		return nil
	}
	return fenced{RESTOptionsGetter: getter, storing: s}
}

// intact returns an error if a configuration has got another RESTOptionsGetter since Storage: its stores may write
// without a fence, and not be reported.
func (s *storing) intact() error {
	for _, c := range s.configs {
		if f, ok := c.RESTOptionsGetter.(fenced); c.RESTOptionsGetter != nil && (!ok || f.storing != s) {
			return fmt.Errorf("join: RESTOptionsGetter was set to a %T after Join or Storage, so that writes may have no fence: set or wrap it before", c.RESTOptionsGetter)
		}
	}
	return nil
}

// fenced is a RESTOptionsGetter whose stores are fenced.
type fenced struct {
	generic.RESTOptionsGetter
	storing *storing
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (f fenced) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := f.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil {
		return options, err
	}
	return f.storing.complete(resource, options)
}

// complete has a resource stored as the protocol needs it: encoded by a codec that names one
// version, encrypted by the keyring, and fenced.
func (s *storing) complete(resource schema.GroupResource, options generic.RESTOptions) (generic.RESTOptions, error) {
	storage := *options.StorageConfig
	options.StorageConfig = &storage
	if !slices.Equal(storage.Transport.ServerList, s.config.Etcd.Transport.ServerList) {
		return options, fmt.Errorf("--etcd-servers-overrides is not supported: %s in another etcd than its StorageVersion cannot be fenced; remove the flag", resource)
	}
	if codec, encoding, err := codecOf(resource.Group); err != nil {
		return options, err
	} else if codec != nil {
		storage.Codec, storage.EncodeVersioner = codec, encoding
	}
	if s.config.Keyring != nil {
		storage.Transformer = s.config.Keyring.TransformerForResource(resource)
	}
	if s.fence == nil {
		return options, nil
	}
	options.Decorator = s.cached
	if size, ok := s.sizes[resource]; ok && size <= 0 {
		options.Decorator = s.uncached
	}
	return options, nil
}

// codecOf returns the codec, and its version, for groups whose servers come with a codec that may encode to any of
// several versions; nil for all other groups. The version is the one that Kubernetes stores: CustomResourceDefinitions
// are stored in v1beta1, since those with many versions would be too large for etcd in v1
// (https://issue.k8s.io/82292).
func codecOf(group string) (runtime.Codec, schema.GroupVersion, error) {
	codecs, encoding := apiextensionsapiserver.Codecs, apiextensionsv1beta1.SchemeGroupVersion
	switch group {
	case apiextensionsapi.GroupName:
	case apiregistrationapi.GroupName:
		codecs, encoding = aggregatorscheme.Codecs, apiregistrationv1.SchemeGroupVersion
	default:
		return nil, encoding, nil
	}
	codec, err := jsonCodec(codecs, encoding)
	return codec, encoding, err
}

// jsonCodec returns a codec that encodes to JSON in one version, and names the version in its identifier, from which
// the fence learns what a store writes.
func jsonCodec(codecs serializer.CodecFactory, encoding schema.GroupVersion) (runtime.Codec, error) {
	json, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		return nil, fmt.Errorf("%s has no JSON serializer", encoding)
	}
	return codecs.CodecForVersions(json.Serializer, codecs.UniversalDeserializer(), encoding, runtime.InternalGroupVersioner), nil
}

// storageOf returns the options of a resource that is stored by the server's own configuration
// and not by that of a generic server.
func (s *storing) storageOf(resource schema.GroupResource, codec runtime.Codec) (generic.RESTOptions, error) {
	config := s.config.Etcd
	config.Codec, config.EncodeVersioner = codec, nil // the configured ones are for the server's own resources
	return s.complete(resource, generic.RESTOptions{
		StorageConfig:           config.ForResource(resource),
		Decorator:               generic.UndecoratedStorage,
		DeleteCollectionWorkers: 1,
		EnableGarbageCollection: false, // they have no dependents to wait for
		ResourcePrefix:          resource.Resource,
	})
}

// switchedOn says whether --runtime-config and the release leave a version on.
func (s *storing) switchedOn(gvr schema.GroupVersionResource) bool {
	return len(s.enabled) == 0 || slices.ContainsFunc(s.enabled, func(e resourceEnabled) bool { return e.ResourceEnabled(gvr) })
}

// checkKeys has every changed encryption configuration checked before it is loaded: all that
// is stored must open with it, and all servers must be able to read what is written with it. id is this server's at present.
func (s *storing) checkKeys(id func() agree.ServerID) {
	s.config.Keyring.SetCheck(func(ctx context.Context, next, present *keyring.Keys) error {
		known, layout := s.layout()
		reader := migratestore.NewEtcd(s.etcd)
		if err := next.CheckOthers(ctx, reader, layout, known, id(), 0); err != nil {
			return err
		}
		return next.CheckReload(ctx, reader, layout, known, present)
	})
}

// followKeys is the post-start hook that follows the encryption configuration.
func (s *storing) followKeys(hook genericapiserver.PostStartHookContext) error {
	go workers.Loop(hook, "encryption", func(ctx context.Context) { s.config.Keyring.Run(ctx, s.config.KeyringInterval) })
	return nil
}

// layout lists the built-in resources that are stored, and says where.
func (s *storing) layout() ([]schema.GroupResource, stored.Layout) {
	layout := stored.Layout{Prefix: s.config.Etcd.Prefix, Special: map[schema.GroupResource]string{}}
	if s.fence == nil {
		return nil, layout
	}
	var known []schema.GroupResource
	root := path.Join("/", s.config.Etcd.Prefix)
	for _, store := range s.fence.Builtins() {
		known = append(known, store.GroupResource)
		layout.Special[store.GroupResource] = strings.TrimPrefix(store.Prefix, root)
	}
	return known, layout
}
