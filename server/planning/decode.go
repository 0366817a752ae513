package planning

import (
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Schemes know all built-in kinds of Kubernetes.
var Schemes = []*runtime.Scheme{legacyscheme.Scheme, apiextensionsapiserver.Scheme, aggregatorscheme.Scheme}

// DecodeAs decodes a value of a built-in kind that is not encrypted, and converts it to a version
// of its group, whatever version it is stored in.
func DecodeAs(value []byte, version schema.GroupVersion) (*unstructured.Unstructured, error) {
	internal, scheme, err := decode(value)
	if err != nil {
		return nil, err
	}
	// Between versions there is no way but through the internal one.
	converted, err := scheme.ConvertToVersion(internal, version)
	if err != nil {
		return nil, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(converted)
	return &unstructured.Unstructured{Object: object}, err
}

// decode returns an object of a built-in kind in the internal version, and the scheme that has it.
func decode(value []byte) (internal runtime.Object, scheme *runtime.Scheme, err error) {
	for _, in := range []struct {
		scheme *runtime.Scheme
		codecs serializer.CodecFactory
	}{
		{legacyscheme.Scheme, legacyscheme.Codecs},
		{apiextensionsapiserver.Scheme, apiextensionsapiserver.Codecs},
		{aggregatorscheme.Scheme, aggregatorscheme.Codecs},
	} {
		if internal, _, err = in.codecs.UniversalDecoder().Decode(value, nil, nil); !runtime.IsNotRegisteredError(err) {
			return internal, in.scheme, err
		}
	}
	return nil, nil, err
}
