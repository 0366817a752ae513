package fence

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
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

func TestJudge(t *testing.T) {
	at := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{ModRevision: rev} }
	for _, tc := range []struct {
		name string
		got  attempt
		want outcome
	}{
		{"committed", attempt{succeeded: true}, committed},
		{"the object changed", attempt{fence: at(7), object: at(9)}, conflicted},
		{"the object is gone", attempt{fence: at(7)}, conflicted},
		{"the StorageVersion changed", attempt{fence: at(8), object: at(3)}, moved},
		{"both changed", attempt{fence: at(8), object: at(9)}, moved},
		{"the StorageVersion is gone", attempt{object: at(3)}, moved},
		{"etcd went back in time", attempt{fence: at(6)}, moved},
	} {
		if got := tc.got.judge(7); got != tc.want {
			t.Errorf("%s: outcome %d, want %d", tc.name, got, tc.want)
		}
	}
}
