package sim

import (
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// object is a user's object: some content, written by a client, in an envelope that says
// the encoding.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// data names the client's write. Nobody else may change it.
	data string
	// future is a field that only newer releases know; others drop it when they decode.
	future string
	// broken says that no codec can decode the object.
	broken bool
}

var _ runtime.Object = (*object)(nil)

// DeepCopyObject implements runtime.Object.
func (o *object) DeepCopyObject() runtime.Object {
	c := *o
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta) //nolint:staticcheck // QF1008: it says what is copied
	return &c
}

// marshal returns the stored form.
func (o *object) marshal() []byte {
	b := make([]byte, 0, 128)
	field := func(name, value string) {
		before := byte(',')
		if len(b) == 0 {
			before = '{'
		}
		b = append(b, before, '"')
		b = append(b, name...)
		b = append(b, `":"`...)
		b = append(b, value...)
		b = append(b, '"')
	}
	field("apiVersion", o.APIVersion)
	field("kind", o.Kind)
	field("data", o.data)
	if o.future != "" {
		field("future", o.future)
	}
	if o.broken {
		field("broken", "yes")
	}
	return append(b, '}')
}

// unmarshal reads the stored form, which nobody but marshal writes.
func unmarshal(value []byte) *object {
	stored := string(value)
	field := func(mark string) string {
		_, rest, _ := strings.Cut(stored, mark)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	o := &object{data: field(`"data":"`), future: field(`"future":"`), broken: strings.Contains(stored, `"broken"`)}
	o.APIVersion, o.Kind = field(`"apiVersion":"`), field(`"kind":"`)
	return o
}

// codec decodes every version, as a server of a release does, and encodes one.
type codec struct {
	encoding agree.Encoding
	// knows says whether the release knows the newest field.
	knows bool
}

var _ runtime.Codec = codec{}

// Decode implements runtime.Decoder.
func (c codec) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o := unmarshal(data)
	if o.broken {
		return nil, nil, errors.New("the object is broken")
	}
	if !c.knows {
		o.future = ""
	}
	gvk := o.GroupVersionKind()
	o.APIVersion = string(c.encoding)
	return o, &gvk, nil
}

// Encode implements runtime.Encoder.
func (c codec) Encode(obj runtime.Object, w io.Writer) error {
	o, ok := obj.(*object)
	if !ok {
		return fmt.Errorf("%T is no object of a user", obj)
	}
	encoded := *o
	encoded.APIVersion = string(c.encoding)
	_, err := w.Write(encoded.marshal())
	return err
}

// Identifier implements runtime.Encoder.
func (c codec) Identifier() runtime.Identifier { return runtime.Identifier(c.encoding) }
