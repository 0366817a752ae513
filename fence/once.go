package fence

import (
	"bytes"
	"hash/maphash"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	// maxWritten is how many values are remembered, of all stores together, and maxWrittenBytes
	// how large one may be.
	maxWritten      = 256
	maxWrittenBytes = 16 << 10
)

// onceCodec decodes what it has just encoded once and not twice: a store decodes what it
// wrote for its caller, and a moment later, when the watch brings it, for the watch cache.
// Decoding a custom resource costs ten times as much as copying it. Nobody is ever given
// an object that somebody else has.
type onceCodec struct {
	runtime.Codec
	written *written
}

// Encode implements runtime.Encoder.
func (c *onceCodec) Encode(obj runtime.Object, w io.Writer) error {
	buffer, ok := w.(*bytes.Buffer)
	if !ok {
		return c.Codec.Encode(obj, w)
	}
	start := buffer.Len()
	if err := c.Codec.Encode(obj, w); err != nil {
		return err
	}
	if v := c.written.add(c, buffer.Bytes()[start:]); v != nil {
		c.unchanged(obj, v)
	}
	return nil
}

// Decode implements runtime.Decoder.
func (c *onceCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	target, ok := into.(*unstructured.Unstructured)
	if defaults != nil || into != nil && !ok {
		return c.Codec.Decode(data, defaults, into)
	}
	found, copied := c.written.take(c, data)
	if copied != nil {
		if target == nil {
			return copied, &found.kind, nil
		}
		target.Object = copied.Object
		return target, &found.kind, nil
	}
	obj, kind, err := c.Codec.Decode(data, defaults, into)
	if u, ok := obj.(*unstructured.Unstructured); ok && err == nil && found != nil && kind != nil {
		c.written.keep(found, *kind, u.DeepCopy())
	}
	return obj, kind, err
}

// written remembers the last values that were encoded.
type written struct {
	seed maphash.Seed

	mu sync.Mutex
	// last holds them in turns from next on, and by codec and content.
	last [maxWritten]*writtenValue
	next int
	by   map[encoded]*writtenValue
	// begun is what updates began with that are under way, or were given up, at most
	// maxWritten.
	begun map[beginning]*unstructured.Unstructured
}

// encoded identifies a value, but for what a hash leaves open.
type encoded struct {
	codec *onceCodec
	sum   uint64
}

// writtenValue is one, with copies of what it is decoded to for those who ask next.
type writtenValue struct {
	encoded
	data   []byte
	copies []*unstructured.Unstructured
	kind   schema.GroupVersionKind
}

func newWritten() *written {
	return &written{seed: maphash.MakeSeed(), by: map[encoded]*writtenValue{}, begun: map[beginning]*unstructured.Unstructured{}}
}

// add returns what is remembered of the value, nil if nothing is, as of one whose hash is
// another's.
func (w *written) add(c *onceCodec, data []byte) *writtenValue {
	if len(data) > maxWrittenBytes {
		return nil
	}
	v := &writtenValue{encoded: encoded{codec: c, sum: maphash.Bytes(w.seed, data)}, data: data}
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, ok := w.by[v.encoded]; ok {
		if !bytes.Equal(known.data, data) {
			return nil
		}
		return known
	}
	if oldest := w.last[w.next]; oldest != nil {
		w.drop(oldest)
	}
	w.last[w.next], w.by[v.encoded] = v, v
	w.next = (w.next + 1) % maxWritten
	return v
}

// take finds a value, and returns the copy that is kept of it, which is the caller's then.
func (w *written) take(c *onceCodec, data []byte) (*writtenValue, *unstructured.Unstructured) {
	if len(data) > maxWrittenBytes {
		return nil, nil
	}
	id := encoded{codec: c, sum: maphash.Bytes(w.seed, data)}
	w.mu.Lock()
	defer w.mu.Unlock()
	v, ok := w.by[id]
	if !ok || !bytes.Equal(v.data, data) {
		return nil, nil
	}
	last := len(v.copies) - 1
	if last < 0 {
		return v, nil
	}
	copied := v.copies[last]
	if v.copies = v.copies[:last]; last == 0 {
		w.drop(v)
	}
	return v, copied
}

// keep keeps copies for the next ones who want to decode the value, one for each.
func (w *written) keep(v *writtenValue, kind schema.GroupVersionKind, copies ...*unstructured.Unstructured) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.by[v.encoded] == v && len(v.copies) == 0 {
		v.copies, v.kind = copies, kind
	}
}

// drop is called with mu. The place in last is left to be taken in turn.
func (w *written) drop(v *writtenValue) {
	if w.by[v.encoded] == v {
		delete(w.by, v.encoded)
	}
}
