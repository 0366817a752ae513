package filters

import (
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/concord-dev/concord/api/storageversion"
)

// Drain counts the writes under way, and refuses new ones once the server is leaving, so
// that it can drop its reports when the last write has landed.
type Drain struct {
	mu      sync.Mutex
	writes  int
	leaving bool
	idle    chan struct{}
}

// NewDrain returns a Drain that lets writes through.
func NewDrain() *Drain { return &Drain{idle: make(chan struct{})} }

var readVerbs = map[string]bool{"get": true, "list": true, "watch": true}

// Wrap returns the filter. Requests for which longRunning returns true, such as a POST to pods/exec, write nothing and
// have no end; they pass.
func (d *Drain) Wrap(next http.Handler, serializer runtime.NegotiatedSerializer, longRunning apirequest.LongRunningRequestCheck) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := apirequest.RequestInfoFrom(r.Context())
		if !ok || !info.IsResourceRequest || readVerbs[info.Verb] || longRunning(r, info) || FromLoopback(r) {
			next.ServeHTTP(w, r)
			return
		}
		if !d.enter() {
			gr := schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}
			Answer(serializer, w, r, storageversion.Unavailable(gr, "this server is stopping: send writes of %s to another one", info.Resource))
			return
		}
		defer d.leave()
		next.ServeHTTP(w, r)
	})
}

func (d *Drain) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.leaving {
		return false
	}
	d.writes++
	return true
}

func (d *Drain) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.writes--
	if d.leaving && d.writes == 0 {
		close(d.idle)
	}
}

// Begin refuses writes from now on. The channel is closed when none is under way.
func (d *Drain) Begin() <-chan struct{} {
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
