package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"sigs.k8s.io/yaml"

	"github.com/concord-dev/concord/agree"
)

var (
	protobufPrefix  = []byte("k8s\x00")
	encryptedPrefix = []byte("k8s:enc:")
	// cborPrefix is CBOR's own mark of itself, with which kube-apiserver stores custom resources if its feature gate
	// CBORServingAndStorage is on, and which it reads if it is off.
	cborPrefix = []byte{0xd9, 0xd9, 0xf7}
)

// Envelope reads the group/version and the kind that a stored value says it has,
// without decoding the rest: of protobuf only runtime.Unknown's TypeMeta, of JSON and YAML only
// as much as it takes to find the top-level apiVersion and kind. CBOR, which is rare, it decodes whole. For another value that is
// damaged behind the envelope it returns the group/version and kind of the envelope. It is not
// ok if either is missing or the value is neither protobuf nor an object in JSON, CBOR or YAML.
func Envelope(value []byte) (encoding agree.Encoding, kind string, ok bool) {
	var apiVersion string
	if rest, found := bytes.CutPrefix(value, protobufPrefix); found {
		apiVersion, kind, ok = protobufEnvelope(rest)
	} else if IsCBOR(value) {
		var object map[string]any
		ok = direct.Unmarshal(value, &object) == nil
		apiVersion, _ = object["apiVersion"].(string)
		kind, _ = object["kind"].(string)
	} else if apiVersion, kind, ok = jsonEnvelope(value); !ok {
		apiVersion, kind, ok = yamlEnvelope(value)
	}
	if !ok || apiVersion == "" || kind == "" {
		return "", "", false
	}
	if gv, err := schema.ParseGroupVersion(apiVersion); err != nil || gv.Version == "" || gv.String() != apiVersion {
		return "", "", false
	}
	return agree.Encoding(apiVersion), kind, true
}

// IsCBOR says whether a value is stored in CBOR.
func IsCBOR(value []byte) bool { return bytes.HasPrefix(value, cborPrefix) }

// Encryption names the provider and the key of an encrypted value, as the API server's providers mark it:
// "<provider>:<version>:<key or plugin name>", for example "aescbc:v1:key1". A KMS v2 plugin has many keys, so that
// the fingerprint of the value's key follows the plugin's name. An encrypted value that does not name its key has
// Unnamed. ok is false for a value that is not encrypted.
func Encryption(value []byte) (name string, ok bool) {
	rest, found := bytes.CutPrefix(value, encryptedPrefix)
	if !found {
		return "", false
	}
	end := 0
	for range 3 {
		i := bytes.IndexByte(rest[end:], ':')
		if i < 1 {
			return Unnamed, true
		}
		end += i + 1
	}
	name = string(rest[:end-1])
	printable := func(r rune) bool { return r > ' ' && r < 0x7f }
	if strings.IndexFunc(name, func(r rune) bool { return !printable(r) }) >= 0 {
		return Unnamed, true
	}
	if fingerprint, ok := kmsFingerprint(rest[end:]); ok && strings.HasPrefix(name, kmsProvider) {
		name += ":" + fingerprint
	}
	return name, true
}

const (
	// Unnamed is the name from Encryption for a value that does not name its key.
	Unnamed = "?"
	// kmsProvider is how Encryption begins for values of plugins of KMS v2.
	kmsProvider = "kms:v2:"
	// kmsKeyID is the field of the KMS's EncryptedObject with the key's ID.
	kmsKeyID = 2
	// kmsFingerprintBytes is how many bytes of the SHA-256 of the ID the fingerprint has.
	kmsFingerprintBytes = 8
)

// KMSKey returns the plugin of KMS v2 that has encrypted a value, "kms:v2:<plugin>", and the
// fingerprint of the key that it needs: the first 16 hexadecimal digits of the SHA-256 of
// the key's ID. It takes the name that Encryption returned.
func KMSKey(name string) (plugin, fingerprint string, ok bool) {
	rest, kms := strings.CutPrefix(name, kmsProvider)
	plugin, fingerprint, ok = strings.Cut(rest, ":")
	if !kms || !ok {
		return "", "", false
	}
	return kmsProvider + plugin, fingerprint, true
}

func kmsFingerprint(encryptedObject []byte) (string, bool) {
	id, ok := protobufField(encryptedObject, kmsKeyID)
	if !ok {
		return "", false
	}
	sum := sha256.Sum256(id)
	return hex.EncodeToString(sum[:kmsFingerprintBytes]), true
}

// protobufEnvelope reads field 1 (TypeMeta) of a runtime.Unknown, and of that fields 1
// and 2 (apiVersion, kind).
func protobufEnvelope(unknown []byte) (apiVersion, kind string, ok bool) {
	meta, ok := protobufField(unknown, 1)
	if !ok {
		return "", "", false
	}
	a, okA := protobufField(meta, 1)
	k, okK := protobufField(meta, 2)
	return string(a), string(k), okA && okK
}

// protobufField returns the first length-delimited field with the number.
func protobufField(message []byte, number protowire.Number) ([]byte, bool) {
	for len(message) > 0 {
		found, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return nil, false
		}
		message = message[n:]
		if found == number && kind == protowire.BytesType {
			content, n := protowire.ConsumeBytes(message)
			return content, n >= 0
		}
		if n = protowire.ConsumeFieldValue(found, kind, message); n < 0 {
			return nil, false
		}
		message = message[n:]
	}
	return nil, false
}

// jsonEnvelope walks the top level of a JSON object until it has seen both fields. It
// checks no more of the syntax than that takes.
func jsonEnvelope(value []byte) (apiVersion, kind string, ok bool) {
	s := scanner{rest: value}
	if !s.take('{') {
		return "", "", false
	}
	var haveVersion, haveKind bool
	for !haveVersion || !haveKind {
		name, ok := s.text()
		if !ok || !s.take(':') {
			return "", "", false
		}
		switch {
		case name == "apiVersion" && !haveVersion:
			apiVersion, ok = s.text()
			haveVersion = true
		case name == "kind" && !haveKind:
			kind, ok = s.text()
			haveKind = true
		default:
			ok = s.skip()
		}
		if !ok {
			return "", "", false
		}
		if !s.take(',') {
			break
		}
	}
	return apiVersion, kind, haveVersion && haveKind
}

// yamlEnvelope reads the lines of the two fields, which begin at column 0 in an object as it is
// stored (--storage-media-type=application/yaml): whatever the others hold is indented, or
// an item of a list.
func yamlEnvelope(value []byte) (apiVersion, kind string, ok bool) {
	var lines []byte
	for _, name := range []string{"apiVersion:", "kind:"} {
		start := 0
		if !bytes.HasPrefix(value, []byte(name)) {
			if start = bytes.Index(value, []byte("\n"+name)) + 1; start == 0 {
				return "", "", false
			}
		}
		line, _, _ := bytes.Cut(value[start:], []byte("\n"))
		lines = append(append(lines, line...), '\n')
	}
	object, err := yaml.YAMLToJSON(lines)
	if err != nil {
		return "", "", false
	}
	return jsonEnvelope(object)
}

// scanner steps over JSON tokens. Each method consumes what it accepts.
type scanner struct {
	rest []byte
	// plain refuses numbers with an exponent or of many digits, which may be too large for
	// a decoder.
	plain bool
}

// maxDigits bounds a number that is plain. A float64 holds any of 300 digits.
const maxDigits = 100

func (s *scanner) space() { s.rest = bytes.TrimLeft(s.rest, " \t\r\n") }

func (s *scanner) take(c byte) bool {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// quoted consumes a string and returns it with its quotes.
func (s *scanner) quoted() ([]byte, bool) {
	s.space()
	if len(s.rest) == 0 || s.rest[0] != '"' {
		return nil, false
	}
	for i := 1; i < len(s.rest); i++ {
		switch s.rest[i] {
		case '\\':
			i++
		case '"':
			token := s.rest[:i+1]
			s.rest = s.rest[i+1:]
			return token, true
		}
	}
	return nil, false
}

// text consumes a string and returns what it means.
func (s *scanner) text() (string, bool) {
	token, ok := s.quoted()
	if !ok {
		return "", false
	}
	if plain := token[1 : len(token)-1]; isPlain(plain) {
		return string(plain), true
	}
	var text string
	if err := json.Unmarshal(token, &text); err != nil {
		return "", false
	}
	return text, true
}

// isPlain reports whether a string needs no unescaping and no check of its encoding.
func isPlain(text []byte) bool {
	for _, c := range text {
		if c == '\\' || c < ' ' || c >= 0x80 {
			return false
		}
	}
	return true
}

// isPlainNumber also holds for true, false and null.
func isPlainNumber(literal []byte) bool {
	isNumber := literal[0] == '-' || literal[0] >= '0' && literal[0] <= '9'
	return !isNumber || len(literal) <= maxDigits && !bytes.ContainsAny(literal, "eE")
}

// skip consumes one value of any kind.
func (s *scanner) skip() bool {
	depth := 0
	for {
		s.space()
		if len(s.rest) == 0 {
			return false
		}
		switch s.rest[0] {
		case '"':
			if _, ok := s.quoted(); !ok {
				return false
			}
		case '{', '[':
			depth++
			s.rest = s.rest[1:]
		case '}', ']':
			if depth == 0 {
				return false
			}
			depth--
			s.rest = s.rest[1:]
		case ',', ':':
			if depth == 0 {
				return false
			}
			s.rest = s.rest[1:]
		default:
			end := bytes.IndexAny(s.rest, "{}[],: \t\r\n\"")
			if end < 0 || s.plain && !isPlainNumber(s.rest[:end]) {
				return false
			}
			s.rest = s.rest[end:]
		}
		if depth == 0 {
			return true
		}
	}
}
