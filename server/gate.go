package server

import (
	"fmt"
	"net/http"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/server/builtin"
)

// gate is the HTTP filter that answers 503 to writes of built-in resources that this
// server has not reported (KEP-2339, "Updating StorageVersion").
type gate struct {
	member     *member.Member
	serializer runtime.NegotiatedSerializer
	// storedAs maps a resource to the one whose store it shares.
	storedAs map[schema.GroupResource]schema.GroupResource
}

func newGate(m *member.Member, persisted []builtin.Persisted, serializer runtime.NegotiatedSerializer) *gate {
	g := &gate{member: m, serializer: serializer, storedAs: map[schema.GroupResource]schema.GroupResource{}}
	for _, p := range persisted {
		for _, alias := range p.Aliases {
			g.storedAs[alias] = p.GroupResource
		}
	}
	return g
}

func (g *gate) wrap(next http.Handler) http.Handler {
	return g.member.Gate(next, g.describe, g.reject)
}

// describe reads what the gate decides on from a request's context.
func (g *gate) describe(r *http.Request) (member.Request, bool) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok {
		return member.Request{}, false
	}
	resource := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
	if stored, ok := g.storedAs[resource]; ok {
		resource = stored
	}
	return member.Request{Resource: resource, Verb: info.Verb, IsResource: info.IsResourceRequest, Loopback: fromLoopback(r)}, true
}

func (g *gate) reject(w http.ResponseWriter, r *http.Request, err error) {
	answer(g.serializer, w, r, err)
}

// fromLoopback says whether this server itself sent the request.
func fromLoopback(r *http.Request) bool {
	u, ok := apirequest.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

func answer(serializer runtime.NegotiatedSerializer, w http.ResponseWriter, r *http.Request, err error) {
	gv := schema.GroupVersion{}
	if info, ok := apirequest.RequestInfoFrom(r.Context()); ok {
		gv = schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
	}
	responsewriters.ErrorNegotiated(err, serializer, gv, w, r)
}

// drain counts the writes under way, and refuses new ones once the server is leaving, so
// that it can drop its reports when the last write has landed (DESIGN 3.4).
type drain struct {
	mu      sync.Mutex
	writes  int
	leaving bool
	idle    chan struct{}
}

func newDrain() *drain { return &drain{idle: make(chan struct{})} }

var readVerbs = map[string]bool{"get": true, "list": true, "watch": true}

func (d *drain) wrap(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || readVerbs[info.Verb] || fromLoopback(r) {
			next.ServeHTTP(w, r)
			return
		}
		if !d.enter() {
			err := apierrors.NewServiceUnavailable(fmt.Sprintf("this server is stopping: send writes of %s to another one", info.Resource))
			err.ErrStatus.Details = &metav1.StatusDetails{Group: info.APIGroup, Kind: info.Resource, RetryAfterSeconds: 1}
			answer(serializer, w, r, err)
			return
		}
		defer d.leave()
		next.ServeHTTP(w, r)
	})
}

func (d *drain) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving {
		return false
	}
	d.writes++
	return true
}

func (d *drain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes--
	if d.leaving && d.writes == 0 {
		close(d.idle)
	}
}

// begin refuses writes from now on. The channel is closed when none is under way.
func (d *drain) begin() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.leaving {
		d.leaving = true
		if d.writes == 0 {
			close(d.idle)
		}
	}
	return d.idle
}
