package filters

import (
	"bytes"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/concord-dev/concord/api/storageversion"
)

// maxTurns is how often a request that was turned away is sent to the handlers again.
const maxTurns = 5

// Again sends requests to the handlers again that the handler of a custom resource has turned
// away because its definition's storage version has just changed. apiextensions closes the old
// handler with the filter that a stopping server has, which answers "apiserver is shutting
// down" before anything of the request was read; the new handler is there by then. custom says
// which resources those are.
func Again(next http.Handler, serializer runtime.NegotiatedSerializer, custom func(schema.GroupResource) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || info.Verb == "watch" || !custom(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}) {
			next.ServeHTTP(w, r)
			return
		}
		for range maxTurns {
			t := &turned{ResponseWriter: w}
			next.ServeHTTP(responsewriter.WrapForHTTP1Or2(t), r)
			if t.end(); !t.away {
				return
			}
		}
		Answer(serializer, w, r, storageversion.Unavailable(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, "the storage version of %s is changing: try again", info.Resource))
	})
}

// turned is a response that is held back if it says that the request was turned away.
type turned struct {
	http.ResponseWriter
	// held says that the status 503 is not written yet, away that it will not be written.
	held, away bool
}

var _ responsewriter.UserProvidedDecorator = &turned{}

var shuttingDown = []byte("apiserver is shutting down")

// Unwrap implements responsewriter.UserProvidedDecorator.
func (t *turned) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t *turned) WriteHeader(code int) {
	if t.held = code == http.StatusServiceUnavailable; !t.held {
		t.ResponseWriter.WriteHeader(code)
	}
}

// Write implements http.ResponseWriter.
func (t *turned) Write(body []byte) (int, error) {
	if t.held && bytes.Contains(body, shuttingDown) {
		t.held, t.away = false, true
		for _, name := range []string{"Retry-After", "Content-Type", "X-Content-Type-Options"} {
			t.Header().Del(name)
		}
	}
	if t.away {
		return len(body), nil
	}
	t.end()
	return t.ResponseWriter.Write(body)
}

// end writes the status that was held back.
func (t *turned) end() {
	if t.held {
		t.held = false
		t.ResponseWriter.WriteHeader(http.StatusServiceUnavailable)
	}
}
