package wardle

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/sample-apiserver/pkg/apis/wardle"
	sampleapiserver "k8s.io/sample-apiserver/pkg/apiserver"
)

var flunders = wardle.Resource("flunders")

// storedIn makes flunders be stored in one version.
type storedIn struct {
	generic.RESTOptionsGetter
	version schema.GroupVersion
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (s storedIn) GetRESTOptions(resource schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	options, err := s.RESTOptionsGetter.GetRESTOptions(resource, example)
	if err != nil || resource != flunders {
		return options, err
	}
	storage := *options.StorageConfig
	storage.Codec, storage.EncodeVersioner = sampleapiserver.Codecs.LegacyCodec(s.version), s.version
	options.StorageConfig = &storage
	return options, nil
}
