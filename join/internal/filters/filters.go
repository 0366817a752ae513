// Package filters has the HTTP filters that join puts into the handler chain of a server.
package filters

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/concord-dev/concord/join/roles"
)

// FromLoopback says whether this server itself sent the request.
func FromLoopback(r *http.Request) bool {
	u, ok := apirequest.UserFrom(r.Context())
	return ok && roles.Loopback(u)
}

// Answer writes an error as the library's own handlers do.
func Answer(serializer runtime.NegotiatedSerializer, w http.ResponseWriter, r *http.Request, err error) {
	gv := schema.GroupVersion{}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, serializer, gv, w, r)
}
