package store

import (
	"bytes"
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/concord-dev/concord/agree"
)

// Rename returns a stored JSON object with another apiVersion and every other byte as it
// is: the result that decoding a custom resource, setting its apiVersion and encoding it again
// has where versions do not differ in more (conversion strategy None), at a tenth of the
// cost and without a number being rounded. It is not ok, and the slow way has to be gone
// or to say what is wrong, unless the value is valid JSON that names apiVersion,
// kind and metadata once, in metadata neither of the fields that are not to be stored, and no
// number that a decoder may find too large.
func Rename(value []byte, encoding agree.Encoding) (renamed []byte, ok bool) {
	from, to, ok := apiVersionToken(value)
	if !ok || !json.Valid(value) || !utf8.Valid(value) {
		return nil, false
	}
	token, err := json.Marshal(string(encoding))
	if err != nil {
		return nil, false
	}
	return slices.Concat(value[:from], token, value[to:]), true
}

// apiVersionToken finds the string that is the value of the top level's apiVersion.
func apiVersionToken(value []byte) (from, to int, ok bool) {
	s := scanner{rest: value, plain: true}
	versions, kinds, metadata := 0, 0, 0
	ok = s.fields(func(name string) bool {
		switch name {
		case "apiVersion":
			versions++
			s.space()
			from = len(value) - len(s.rest)
			token, ok := s.quoted()
			to = from + len(token)
			return ok
		case "kind":
			kinds++
		case "metadata":
			metadata++
			return s.fields(func(name string) bool {
				return name != "resourceVersion" && name != "selfLink" && s.skip()
			})
		}
		return s.skip()
	})
	return from, to, ok && versions == 1 && kinds == 1 && metadata == 1 && len(bytes.TrimSpace(s.rest)) == 0
}

// fields consumes an object. visit is called behind the colon of each field, and has to
// consume the field's value.
func (s *scanner) fields(visit func(name string) bool) bool {
	if !s.take('{') {
		return false
	}
	if s.take('}') {
		return true
	}
	for {
		name, ok := s.text()
		if !ok || !s.take(':') || !visit(name) {
			return false
		}
		if !s.take(',') {
			return s.take('}')
		}
	}
}
