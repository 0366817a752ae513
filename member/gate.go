package member

import (
	"context"
	"errors"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/api/storageversion"
)

// Request is the part of an HTTP request that the gate needs to know.
type Request struct {
	// IsResource says whether the request is for a resource; if not the rest is empty.
	IsResource bool
	Resource   schema.GroupResource
	// Verb is the API verb, such as "get" or "create".
	Verb string
	// Loopback says whether the server itself asks: user system:apiserver in system:masters.
	Loopback bool
	// StoresNothing says that the request stores nothing: a dry run, a connection to a pod, or a token request.
	StoresNothing bool
}

// Writes says whether the request may change something, which only requests for a resource do.
func (r Request) Writes() bool {
	return r.IsResource && r.Verb != "get" && r.Verb != "list" && r.Verb != "watch"
}

// unfenced are also the resources that the server itself writes to make its reports.
var unfenced = storageversion.Unfenced()

// Gate passes writes to a built-in resource that this server has not reported to
// reject, with a 503 that carries RetryAfterSeconds. info describes a request; if it returns false the request is
// refused.
func (m *Member) Gate(next http.Handler, info func(*http.Request) (Request, bool), reject func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		request, ok := info(r)
		if !ok {
			reject(w, r, errors.New("no request info: the storage version gate cannot tell what is asked for"))
			return
		}
		if err := m.Admit(request); err != nil {
			reject(w, r, err)
			return
		}
		m.settle(r.Context(), request)
		next.ServeHTTP(w, r)
	})
}

// settleLimit bounds how long a write waits for a resource's report to move.
const settleLimit = time.Second

// settle delays a write to a resource outside of the core group while this server's report changes to another
// encoding. The write could not succeed anyway, and building its handler would take processor time from the reports of
// all servers.
func (m *Member) settle(ctx context.Context, r Request) {
	if !r.Writes() || r.Resource.Group == "" {
		return
	}
	m.await(ctx, settleLimit, func() <-chan struct{} {
		m.mu.RLock()
		defer m.mu.RUnlock()
		if s := m.resources[r.Resource]; s != nil && !m.departed && s.moving() {
			return s.changed
		}
		return nil
	})
}

// await calls again when what it waits for has changed, until that is nil, for at most limit.
func (m *Member) await(ctx context.Context, limit time.Duration, again func() <-chan struct{}) {
	var timer clock.Timer
	for changed := again(); changed != nil && m.cfg.WaitLimit >= 0; changed = again() {
		if timer == nil {
			timer = m.cfg.Clock.NewTimer(limit)
			defer timer.Stop()
		}
		select {
		case <-changed:
		case <-timer.C():
			return
		case <-ctx.Done():
			return
		}
	}
}

// Admit is the gate's decision: nil lets the request pass. While the storage is away it
// also refuses writes of custom resources, before anything of them is tried. A silent
// server takes no write at all before everybody can know of it.
func (m *Member) Admit(r Request) error {
	if !r.Writes() {
		return nil
	}
	if r.Loopback && unfenced.Has(r.Resource) {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.silent() {
		if err := m.silentReady(); err != nil {
			return Unavailable(r.Resource, err)
		}
		return m.away(r)
	}
	if !m.builtinsSet {
		return Unavailable(r.Resource, errNotReported)
	}
	s := m.resources[r.Resource]
	if s == nil {
		return nil // aggregated APIs, reviews
	}
	if err := m.away(r); err != nil {
		return err
	}
	switch {
	case !s.builtin: // custom resources
		return nil
	case s.open(), s.moving():
		return nil
	default:
		return Unavailable(r.Resource, m.lastError(s))
	}
}

// ErrDeletesOnly, wrapped in the error of Config.Storage, says that the storage still accepts deletes, which make
// room, and requests that store nothing.
var ErrDeletesOnly = errors.New("deletes are let through")

// away is the answer to a write while the storage does not take it; nil while it does.
func (m *Member) away(r Request) error {
	passes := r.Verb == "delete" || r.Verb == "deletecollection" || r.StoresNothing
	if err := m.storageError(); err != nil && !(passes && errors.Is(err, ErrDeletesOnly)) {
		return storageversion.Unavailable(r.Resource, "nothing was written, try again: %v", err)
	}
	return nil
}

// storageError is why the storage takes no writes now; nil while it does.
func (m *Member) storageError() error {
	if m.cfg.Storage == nil {
		return nil
	}
	return m.cfg.Storage()
}
