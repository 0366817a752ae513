package load

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
)

// WriteAnnotation is how a test's client marks its writes: "<server>/<serial>", with the server to which the request
// is sent. Each write has a new value, so that a put with the same value as the put before it is a rewrite and not a
// client's write.
const WriteAnnotation = "e2e.concord.dev/write"

// Hash returns a hash of an object's content: of all fields but apiVersion and kind, which differ between encodings,
// and resourceVersion, which is not stored. An object has the same hash as the API returns it and as it is stored.
func Hash(fields map[string]any) string {
	fields = maps.Clone(fields)
	delete(fields, "apiVersion")
	delete(fields, "kind")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		metadata = maps.Clone(metadata)
		delete(metadata, "resourceVersion")
		fields["metadata"] = metadata
	}
	raw, err := json.Marshal(fields) // in the order of the keys
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}
