package stored

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Opened is how stored values are opened.
type Opened struct {
	// Transformer decrypts the values, and Seal returns the key with which an encrypted value is encrypted.
	Transformer value.Transformer
	Seal        func(value []byte) agree.Seal
	// Verify says why an opened value does not decode: such a value counts as unknown. Nil reads
	// envelopes only.
	Verify migratestore.Verify
}

// Take counts the values under prefix into the census' rows. With an error the rows are the
// counts so far.
func Take(ctx context.Context, c *census.Resource, reader migratestore.Reader, prefix string, o Opened) error {
	began := time.Now()
	rows := map[string]*migratestore.Row{}
	c.First = map[string][]string{}
	err := migratestore.Walk(ctx, reader, prefix, func(e migratestore.Entry) error {
		encoding := o.encodingOf(ctx, e)
		if rows[encoding] == nil {
			rows[encoding] = &migratestore.Row{Resource: c.Resource, Encoding: encoding}
		}
		rows[encoding].Objects++
		if len(c.First[encoding]) < census.Named {
			c.First[encoding] = append(c.First[encoding], strings.TrimPrefix(e.Key, prefix))
		}
		rows[encoding].Bytes += int64(len(e.Value))
		return nil
	})
	c.ReadSeconds = time.Since(began).Seconds()
	for _, row := range rows {
		c.Rows = append(c.Rows, *row)
	}
	slices.SortFunc(c.Rows, func(a, b migratestore.Row) int { return strings.Compare(a.Encoding, b.Encoding) })
	return err
}

// Decodes says why an API server whose built-in kinds are in schemes could not decode a value that is not encrypted. It
// decodes values of these kinds into the types that the server works with, and of all others, custom resources among
// them, no more than their JSON.
func Decodes(schemes ...*runtime.Scheme) migratestore.Verify {
	var decoders []runtime.Decoder
	for _, scheme := range schemes {
		decoders = append(decoders, serializer.NewCodecFactory(scheme).UniversalDecoder())
	}
	return func(value []byte) error {
		if migratestore.IsCBOR(value) {
			var object map[string]any
			return direct.Unmarshal(value, &object)
		}
		for _, decoder := range decoders {
			if _, _, err := decoder.Decode(value, nil, nil); !runtime.IsNotRegisteredError(err) {
				return err
			}
		}
		if !bytes.HasPrefix(bytes.TrimSpace(value), []byte("{")) {
			return nil
		}
		_, _, err := unstructured.UnstructuredJSONScheme.Decode(value, nil, nil)
		return err
	}
}

// encodingOf is the encoding that a stored value states, with the key that it is encrypted with.
func (o Opened) encodingOf(ctx context.Context, e migratestore.Entry) string {
	plain, seal := e.Value, agree.Seal("")
	encoding, _, readable := migratestore.Envelope(plain)
	if !readable {
		opened, _, err := o.Transformer.TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key))
		if err != nil {
			return migratestore.EncodingUnknown
		}
		plain, seal = opened, o.Seal(e.Value)
		encoding, _, readable = migratestore.Envelope(plain)
	}
	if !readable || o.Verify.Why(plain) != nil {
		return migratestore.EncodingUnknown
	}
	return string(encoding.Sealed(seal))
}
