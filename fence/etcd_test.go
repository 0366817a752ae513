package fence

import (
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

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
