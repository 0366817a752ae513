// Package object has what the users of a simulated cluster store: objects of two resources, things,
// which are built in, and widgets, which are custom; the codecs that servers of a release have for
// them; and the steps of a server's store before and after a put.
package object

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

// Object is a user's object: some content, written by a client, in an envelope that says
// the encoding.
type Object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	// Data names the client's write. Nobody else may change it.
	Data string
	// Future is a field that only newer releases know; others drop it when they decode.
	Future string
	// Broken says that no codec can decode the object.
	Broken bool
}

var _ runtime.Object = (*Object)(nil)

// DeepCopyObject implements runtime.Object.
func (o *Object) DeepCopyObject() runtime.Object {
	c := *o
	o.ObjectMeta.DeepCopyInto(&c.ObjectMeta) //nolint:staticcheck // QF1008: it says what is copied
	return &c
}

// marshal returns the stored form.
func (o *Object) marshal() []byte {
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
	field("data", o.Data)
	if o.Future != "" {
		field("future", o.Future)
	}
	if o.Broken {
		field("broken", "yes")
	}
	return append(b, '}')
}

// Unmarshal reads the stored form, which only marshal writes.
func Unmarshal(value []byte) *Object {
	stored := string(value)
	field := func(mark string) string {
		_, rest, _ := strings.Cut(stored, mark)
		text, _, _ := strings.Cut(rest, `"`)
		return text
	}
	o := &Object{Data: field(`"data":"`), Future: field(`"future":"`), Broken: strings.Contains(stored, `"broken"`)}
	o.APIVersion, o.Kind = field(`"apiVersion":"`), field(`"kind":"`)
	return o
}

// Codec decodes every version, as a server of a release does, and encodes one.
type Codec struct {
	Encoding agree.Encoding
	// Knows says whether the release knows the newest field.
	Knows bool
}

var _ runtime.Codec = Codec{}

// Decode implements runtime.Decoder.
func (c Codec) Decode(data []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	o := Unmarshal(data)
	if o.Broken {
		return nil, nil, errors.New("the object is broken")
	}
	if !c.Knows {
		o.Future = ""
	}
	gvk := o.GroupVersionKind()
	o.APIVersion = string(c.Encoding)
	return o, &gvk, nil
}

// Encode implements runtime.Encoder.
func (c Codec) Encode(obj runtime.Object, w io.Writer) error {
	o, ok := obj.(*Object)
	if !ok {
		return fmt.Errorf("%T is no object of a user", obj)
	}
	encoded := *o
	encoded.APIVersion = string(c.Encoding)
	_, err := w.Write(encoded.marshal())
	return err
}

// Identifier implements runtime.Encoder.
func (c Codec) Identifier() runtime.Identifier { return runtime.Identifier(c.Encoding) }
