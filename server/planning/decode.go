package planning

import (
	"bytes"
	"fmt"

	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Decode says why an API server of this binary could not decode a value that is not encrypted:
// it decodes values of built-in kinds into the types that the server works with, and of all
// others, custom resources among them, no more than their JSON. A panic of a decoder is such
// a reason.
func Decode(value []byte) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("its decoder panicked: %v", cause)
		}
	}()
	for _, codecs := range []serializer.CodecFactory{legacyscheme.Codecs, apiextensionsapiserver.Codecs, aggregatorscheme.Codecs} {
		if _, _, err := codecs.UniversalDecoder().Decode(value, nil, nil); !runtime.IsNotRegisteredError(err) {
			return err
		}
	}
	if bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")) {
		_, _, err = unstructured.UnstructuredJSONScheme.Decode(value, nil, nil)
	}
	return err
}
