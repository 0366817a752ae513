package convert

import (
	"bytes"
	"encoding/json"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Decode decodes a stored custom resource, and keeps its numbers as they are written in JSON: -0,
// 1.0 and 1e3 are other texts than 0, 1 and 1000, and a migration changes no content. Those
// of the metadata are the API server's own.
func Decode(stored []byte, into *unstructured.Unstructured) error {
	if migratestore.IsCBOR(stored) {
		return direct.Unmarshal(stored, &into.Object)
	}
	if _, _, err := unstructured.UnstructuredJSONScheme.Decode(stored, nil, into); err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(stored))
	decoder.UseNumber()
	var literal map[string]any
	if err := decoder.Decode(&literal); err != nil {
		return err
	}
	for field := range into.Object {
		if value, ok := literal[field]; ok && field != "metadata" {
			into.Object[field] = value
		}
	}
	return nil
}

// keepNumbers returns a converted value with the numbers that it has left alone written as
// they were.
func keepNumbers(was, is any) any {
	switch is := is.(type) {
	case map[string]any:
		if was, ok := was.(map[string]any); ok {
			for field := range is {
				is[field] = keepNumbers(was[field], is[field])
			}
		}
	case []any:
		if was, ok := was.([]any); ok {
			for i := range is[:min(len(is), len(was))] {
				is[i] = keepNumbers(was[i], is[i])
			}
		}
	case int64, float64:
		if literal, ok := was.(json.Number); ok && equal(literal, is) {
			return literal
		}
	}
	return is
}

// equal says whether a number that is written in some way decodes to another one.
func equal(literal json.Number, decoded any) bool {
	switch decoded := decoded.(type) {
	case int64:
		if n, err := literal.Int64(); err == nil {
			return n == decoded
		}
		f, err := literal.Float64()
		return err == nil && f == float64(decoded) && float64(int64(f)) == f
	case float64:
		f, err := literal.Float64()
		return err == nil && f == decoded
	}
	return false
}
