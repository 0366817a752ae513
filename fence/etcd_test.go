package fence

import (
	"errors"
	"net/url"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// startEtcd runs an etcd in dir on free loopback ports and returns its endpoint.
func startEtcd(dir string, unsafeNoFsync bool) (string, func(), error) {
	loopback := []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	config := embed.NewConfig()
	config.Dir = dir
	config.UnsafeNoFsync = unsafeNoFsync
	config.ListenPeerUrls, config.AdvertisePeerUrls = loopback, loopback
	config.ListenClientUrls, config.AdvertiseClientUrls = loopback, loopback
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	server, err := embed.StartEtcd(config)
	if err != nil {
		return "", nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
	case <-time.After(time.Minute):
		server.Close()
		return "", nil, errors.New("etcd was not ready within a minute")
	}
	return "http://" + server.Clients[0].Addr().String(), server.Close, nil
}

var (
	builtinScheme = newBuiltinScheme()
	builtinCodecs = serializer.NewCodecFactory(builtinScheme)
)

// newBuiltinScheme registers the versioned types as the internal ones too.
func newBuiltinScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	for kind, obj := range map[schema.GroupKind]runtime.Object{
		{Kind: "ConfigMap"}: &corev1.ConfigMap{},
		{Group: coordinationv1.GroupName, Kind: "Lease"}:    &coordinationv1.Lease{},
		{Group: v1alpha1.GroupName, Kind: "StorageVersion"}: &v1alpha1.StorageVersion{},
	} {
		scheme.AddKnownTypeWithName(kind.WithVersion(runtime.APIVersionInternal), obj)
	}
	return scheme
}

// builtinCodec stores protobuf, by versioners like a storage factory's.
func builtinCodec(gv schema.GroupVersion) runtime.Codec {
	info, ok := runtime.SerializerInfoForMediaType(builtinCodecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	if !ok {
		panic("no protobuf serializer")
	}
	group := schema.GroupKind{Group: gv.Group}
	internal := schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}
	return runtime.NewCodec(
		builtinCodecs.EncoderForVersion(info.Serializer, runtime.NewMultiGroupVersioner(gv, group, group)),
		builtinCodecs.DecoderToVersion(builtinCodecs.UniversalDeserializer(), runtime.NewCoercingMultiGroupVersioner(internal, group, group)),
	)
}
