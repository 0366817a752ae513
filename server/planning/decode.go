package planning

import (
	"bytes"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Decode says why an API server of this binary could not decode a value that is not encrypted:
// it decodes values of built-in kinds into the types that the server works with, and of all
// others, custom resources among them, no more than their JSON.
func Decode(value []byte) error {
	_, err := decode(value)
	if runtime.IsNotRegisteredError(err) {
		err = nil
		if bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")) {
			_, _, err = unstructured.UnstructuredJSONScheme.Decode(value, nil, nil)
		}
	}
	return err
}

// DecodeAs decodes a value of a built-in kind that is not encrypted, and converts it to a version
// of its group.
func DecodeAs(value []byte, version schema.GroupVersion) (*unstructured.Unstructured, error) {
	decoded, err := decode(value, version)
	if err != nil {
		return nil, err
	}
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(decoded)
	return &unstructured.Unstructured{Object: object}, err
}

// decode returns an object of a built-in kind in one of the versions, the internal one without any.
func decode(value []byte, versions ...schema.GroupVersion) (decoded runtime.Object, err error) {
	for _, codecs := range []serializer.CodecFactory{legacyscheme.Codecs, apiextensionsapiserver.Codecs, aggregatorscheme.Codecs} {
		if decoded, _, err = codecs.UniversalDecoder(versions...).Decode(value, nil, nil); !runtime.IsNotRegisteredError(err) {
			return decoded, err
		}
	}
	return nil, err
}
