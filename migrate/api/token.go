package api

import (
	"encoding/base64"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// token is a continue token as the API server library writes it, in kube-apiserver and in
// aggregated servers. Its format is public and cannot change: EncodeContinue in
// k8s.io/apiserver/pkg/storage.
type token struct {
	Version string `json:"v"`
	// Revision is that of the list; newest stands for the objects that are there when it goes on.
	Revision int64 `json:"rv"`
	// Start is the first key that may come, without the part before the namespace.
	Start string `json:"start"`
}

const (
	tokenVersion       = "meta.k8s.io/v1"
	newest       int64 = -1
)

// readToken reads a server's token; ok if it is of the known format. The empty one, which
// is the beginning, is of every format.
func readToken(text string) (t token, ok bool) {
	if text == "" {
		return token{Version: tokenVersion, Revision: newest}, true
	}
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || json.Unmarshal(data, &t) != nil {
		return token{}, false
	}
	return t, t.Version == tokenVersion && t.Revision != 0 && t.Start != "" && t.Start[0] != '/'
}

// at is the token for a key. A server refuses one whose path is not clean: the key that takes
// its place stands before and behind the same objects.
func (t token) at(key string) string {
	begin := 0
	for n := 0; n <= len(key); n++ {
		if n < len(key) && key[n] != '/' {
			continue
		}
		switch segment := key[begin:n]; {
		case segment != "" && segment != "." && segment != "..":
			begin = n + 1
			continue
		case n == len(key):
			key += "\x00"
		default:
			key = key[:n] + "0" // the next byte; no object has such a segment
		}
		break
	}
	t.Start = key
	data, _ := json.Marshal(t) // a string and a number always have a form
	return base64.RawURLEncoding.EncodeToString(data)
}

// keyOf is where an object stands in the list.
func keyOf(m *metav1.PartialObjectMetadata) string {
	if m.Namespace == "" {
		return m.Name
	}
	return m.Namespace + "/" + m.Name
}
