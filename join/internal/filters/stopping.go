package filters

import (
	"net/http"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"

	"github.com/concord-dev/concord/join/roles"
)

// Stopping takes Retry-After from the refusals of this server's own requests, and its controllers', once it stops.
// client-go would repeat each of them ten times, and the stop waits for some of them: upstream's
// controller of identity Leases held it up for a minute while etcd was out of space.
func Stopping(next http.Handler, stopping <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-stopping:
			if u, ok := apirequest.UserFrom(r.Context()); ok && roles.Own(u) {
				w = responsewriter.WrapForHTTP1Or2(unrepeated{w})
			}
		default:
		}
		next.ServeHTTP(w, r)
	})
}

// unrepeated is a response without Retry-After.
type unrepeated struct{ http.ResponseWriter }

var _ responsewriter.UserProvidedDecorator = unrepeated{}

// Unwrap implements responsewriter.UserProvidedDecorator.
func (u unrepeated) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (u unrepeated) WriteHeader(code int) {
	u.Header().Del("Retry-After")
	u.ResponseWriter.WriteHeader(code)
}
