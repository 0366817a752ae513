package fence

import (
	"encoding/json"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// EncodingOf returns the group/version to which a codec encodes. It is read off the
// codec's identifier, the only thing that is right for built-in and custom resources:
// the storage config's EncodeVersioner does not fit the codec of the latter.
func EncodingOf(codec runtime.Encoder) (agree.Encoding, error) {
	var id struct {
		EncodeGV string `json:"encodeGV"`
	}
	if err := json.Unmarshal([]byte(codec.Identifier()), &id); err != nil {
		return "", fmt.Errorf("codec %q does not tell what it encodes to: %w", codec.Identifier(), err)
	}
	target := id.EncodeGV
	// A versioner for several groups, as storage factories make it, is a JSON object.
	var multi struct {
		Target string `json:"target"`
	}
	if json.Unmarshal([]byte(target), &multi) == nil {
		target = multi.Target
	}
	// A LegacyCodec says "[group/version]": a list. With one entry there is nothing else that
	// it could encode to; with more it may be any of them.
	if one, ok := strings.CutPrefix(target, "["); ok {
		target = strings.TrimSuffix(one, "]")
	}
	if strings.ContainsAny(target, "[]{},") {
		return "", fmt.Errorf("its codec may encode to any of several versions, %s: have the RESTOptionsGetter set Codec and EncodeVersioner of each resource to one version, as examples/aggregated/wardle/storage.go does", target)
	}
	gv, err := schema.ParseGroupVersion(target)
	if err != nil {
		return "", fmt.Errorf("codec %q does not tell what it encodes to: %w", codec.Identifier(), err)
	}
	switch gv.Version {
	case "", "internal", "disabled", runtime.APIVersionInternal:
		return "", fmt.Errorf("codec %q encodes to no version that can be stored", codec.Identifier())
	}
	return agree.Encoding(gv.String()), nil
}
