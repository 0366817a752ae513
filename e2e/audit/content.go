package audit

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/concord-dev/concord/testbed/load"
)

// content is a stored object without its encoding.
type content struct {
	fields   map[string]any // without apiVersion and kind
	name     string         // "namespace/name"
	uid      types.UID
	write    string
	deleting bool
}

var decoder = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientscheme.AddToScheme(scheme))
	utilruntime.Must(apiextensionsv1.AddToScheme(scheme))
	utilruntime.Must(apiregistrationv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme).UniversalDeserializer()
}()

// readContent decodes a stored value, protobuf or JSON.
func readContent(value []byte) (*content, error) {
	fields := map[string]any{}
	if value[0] == '{' {
		if err := json.Unmarshal(value, &fields); err != nil {
			return nil, err
		}
	} else {
		decoded, _, err := decoder.Decode(value, nil, nil)
		if err != nil {
			return nil, err
		}
		if fields, err = runtime.DefaultUnstructuredConverter.ToUnstructured(decoded); err != nil {
			return nil, err
		}
	}
	u := unstructured.Unstructured{Object: fields}
	c := &content{
		fields:   fields,
		name:     u.GetNamespace() + "/" + u.GetName(),
		uid:      u.GetUID(),
		write:    u.GetAnnotations()[load.WriteAnnotation],
		deleting: u.GetDeletionTimestamp() != nil,
	}
	delete(fields, "apiVersion")
	delete(fields, "kind")
	return c, nil
}

// diff returns the first field in which two contents differ. An object that is being deleted is not compared, since
// the server itself changes it. If managedFields show that a controller has written the status since, status and
// managedFields are ignored.
func (c *content) diff(o *content) string {
	switch {
	case c.deleting || o.deleting:
		return ""
	case c.sameStatusWriters(o):
		return differ("", c.fields, o.fields)
	}
	return differ("", c.withoutStatus(), o.withoutStatus())
}

// sameStatusWriters says whether managedFields name the same writers of the status, at the same
// times. A rewrite never changes them.
func (c *content) sameStatusWriters(o *content) bool {
	return reflect.DeepEqual(c.statusWriters(), o.statusWriters())
}

func (c *content) statusWriters() (entries []metav1.ManagedFieldsEntry) {
	for _, e := range (&unstructured.Unstructured{Object: c.fields}).GetManagedFields() {
		if e.Subresource == "status" {
			entries = append(entries, e)
		}
	}
	return entries
}

func (c *content) withoutStatus() map[string]any {
	u := (&unstructured.Unstructured{Object: c.fields}).DeepCopy()
	u.SetManagedFields(nil)
	delete(u.Object, "status")
	return u.Object
}

func differ(path string, a, b any) string {
	ma, okA := a.(map[string]any)
	mb, okB := b.(map[string]any)
	if !okA || !okB {
		if reflect.DeepEqual(a, b) {
			return ""
		}
		return fmt.Sprintf("%s: %v became %v", path, a, b)
	}
	var keys []string
	for k := range ma {
		keys = append(keys, k)
	}
	for k := range mb {
		if _, both := ma[k]; !both {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		if d := differ(path+"."+k, ma[k], mb[k]); d != "" {
			return d
		}
	}
	return ""
}
