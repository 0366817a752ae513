package planning

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

func TestDecode(t *testing.T) {
	secret := &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"key": []byte("value")},
	}
	encoded, err := runtime.Encode(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), secret)
	must(t, err)
	damaged := strings.Replace(string(encoded), "default", "\xff\xff\xff\xff\xff\xff\xff", 1)
	for name, test := range map[string]struct {
		value string
		// why is a part of the reason; "" if the value decodes.
		why string
	}{
		"protobuf":                               {value: string(encoded)},
		"protobuf, cut":                          {value: string(encoded[:len(encoded)-20]), why: "unexpected EOF"},
		"protobuf, a string that is no UTF-8":    {value: damaged},
		"JSON of a built-in kind":                {value: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}`},
		"a field of another type":                {value: `{"apiVersion":"v1","kind":"Secret","data":7}`, why: "cannot unmarshal number"},
		"a definition":                           {value: `{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","spec":7}`, why: "cannot unmarshal number"},
		"an APIService":                          {value: `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService","spec":{"group":7}}`, why: "cannot unmarshal number"},
		"a custom resource":                      {value: `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"size":-0}}`},
		"a custom resource, cut":                 {value: `{"apiVersion":"example.com/v1","kind":"Widget","spec":{"si`, why: "unexpected end of JSON"},
		"a version that this binary knows not":   {value: `{"apiVersion":"v9","kind":"Secret","data":7}`},
		"a version without kind":                 {value: `{"apiVersion":"v1"}`, why: "Object 'Kind' is missing"},
		"what is neither":                        {value: "\xff\xfe", why: "Object 'Kind' is missing"},
		"a value of Kubernetes outside of APIs":  {value: `{"apiVersion":"v1","kind":"RangeAllocation","range":"","data":""}`},
		"a RangeAllocation with a damaged field": {value: `{"apiVersion":"v1","kind":"RangeAllocation","range":[]}`, why: "cannot unmarshal array"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Decode([]byte(test.value))
			if (err != nil) != (test.why != "") || err != nil && !strings.Contains(err.Error(), test.why) {
				t.Errorf("got %v, want %q", err, test.why)
			}
		})
	}
}
