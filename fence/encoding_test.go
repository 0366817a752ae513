package fence

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

func TestEncodingOf(t *testing.T) {
	info, _ := runtime.SerializerInfoForMediaType(builtinCodecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	internal := schema.GroupVersion{Group: "apps", Version: runtime.APIVersionInternal}
	for _, tc := range []struct {
		name  string
		codec runtime.Encoder
		want  agree.Encoding
	}{
		{"a storage factory's, core group", builtinCodec(corev1.SchemeGroupVersion), "v1"},
		{"a storage factory's", builtinCodec(v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"one group version", builtinCodecs.EncoderForVersion(info.Serializer, v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"a custom resource's", widgetCodec(widgetsV1, widgetsV2), encV2},
		{"no versioning", info.Serializer, ""},
		{"no encoding", runtime.NoopEncoder{}, ""},
		{"internal", builtinCodecs.EncoderForVersion(info.Serializer, internal), ""},
		{"internal versioner", builtinCodecs.EncoderForVersion(info.Serializer, runtime.InternalGroupVersioner), ""},
		{"a list of one version", builtinCodecs.LegacyCodec(v1alpha1.SchemeGroupVersion), "internal.apiserver.k8s.io/v1alpha1"},
		{"a list of versions", builtinCodecs.LegacyCodec(v1alpha1.SchemeGroupVersion, schema.GroupVersion{Group: v1alpha1.GroupName, Version: "v1"}), ""},
		{"an empty list", builtinCodecs.EncoderForVersion(info.Serializer, schema.GroupVersions{}), ""},
		{"disabled versioner", builtinCodecs.EncoderForVersion(info.Serializer, runtime.DisabledGroupVersioner), ""},
	} {
		got, err := EncodingOf(tc.codec)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("%s: %q, %v, want %q", tc.name, got, err, tc.want)
		}
	}
}

func TestCounts(t *testing.T) {
	at := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{ModRevision: rev} }
	object := func(rev int64) kubernetes.PutResponse { return kubernetes.PutResponse{KV: at(rev)} }
	for _, tc := range []struct {
		name string
		got  attempt
		want bool
	}{
		{"committed", attempt{PutResponse: kubernetes.PutResponse{Succeeded: true}}, true},
		{"the object changed", attempt{fence: at(7), PutResponse: object(9)}, true},
		{"the object is gone", attempt{fence: at(7)}, true},
		{"the StorageVersion changed", attempt{fence: at(8), PutResponse: object(3)}, false},
		{"both changed", attempt{fence: at(8), PutResponse: object(9)}, false},
		{"the StorageVersion is gone", attempt{PutResponse: object(3)}, false},
		{"etcd went back in time", attempt{fence: at(6)}, false},
	} {
		if got := tc.got.counts(7); got != tc.want {
			t.Errorf("%s: %t, want %t", tc.name, got, tc.want)
		}
	}
}
