package dashboard

import (
	"context"
	"embed"
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/workers"
)

//go:embed page
var files embed.FS

// Config has the settings of a Handler. All fields are required but Of.
type Config struct {
	// Cluster is how to reach the cluster that is shown, and as whom.
	Cluster *rest.Config
	// Of names the cluster to people.
	Of string
	// Lifecycles say in which releases each version of each built-in resource exists.
	Lifecycles func() []compat.Lifecycle
}

const (
	// linger is how long a cluster is watched after the last viewer has left, so that a viewer who reloads the page
	// does not wait for its lists.
	linger = time.Minute
	// leastGap and mostGap bound the time between two pictures. Between them making pictures
	// takes no more than a part of the time.
	leastGap, mostGap = 300 * time.Millisecond, 5 * time.Second
	idleShare         = 3
)

// Stream is where the page gets its events, below where the Handler is mounted.
const Stream = "/page/stream"

// Handler serves the page at "/", the page's files below "/page/" and its events at Stream. It watches the cluster
// only while there are viewers.
type Handler struct {
	config  Config
	cluster *cluster
	ctx     context.Context

	mu sync.Mutex
	// viewers have the events' requests under way; stop, if not nil, ends the watching.
	viewers int
	stop    context.CancelFunc
	idle    *time.Timer
	latest  *snapshot
}

// snapshot is the picture and the rows shown at a time. The first is empty, and not to be shown.
type snapshot struct {
	picture []byte
	// partial says that the cluster is still being read, and that there are no rows yet.
	partial bool
	rows    map[string]string
	// order holds the rows' names in display order.
	order []string
	// replaced is closed when there is a newer one.
	replaced chan struct{}
}

// New returns a Handler, which does nothing but answer requests; the work it does for them ends
// with ctx.
func New(ctx context.Context, config Config) (*Handler, error) {
	c, err := newCluster(config.Cluster)
	if err != nil {
		return nil, err
	}
	h := &Handler{config: config, cluster: c, ctx: ctx, latest: &snapshot{replaced: make(chan struct{})}}
	h.idle = time.AfterFunc(linger, func() { workers.Go(ctx, "dashboard", h.doze) })
	return h, nil
}

// policy allows the page to load only its own files, and nobody to embed it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "the page only reads", http.StatusMethodNotAllowed)
		return
	}
	h.Begin()
	switch path := r.URL.Path; {
	case path == Stream:
		h.stream(w, r)
	case path == "/":
		http.ServeFileFS(w, r, files, "page/index.html")
	case strings.HasPrefix(path, "/page/") && !strings.HasSuffix(path, "/"): // no list of a directory
		http.FileServerFS(files).ServeHTTP(w, r)
	default:
		http.NotFound(w, r)
	}
}

// Begin has the cluster watched before anybody looks: the first viewer does not wait for its lists.
func (h *Handler) Begin() { h.look(0) }

// look counts viewers, and has the cluster watched.
func (h *Handler) look(viewers int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.viewers += viewers
	h.idle.Reset(linger)
	if h.stop != nil || h.ctx.Err() != nil {
		return
	}
	var ctx context.Context
	ctx, h.stop = context.WithCancel(h.ctx)
	go workers.Loop(ctx, "dashboard", h.follow)
}

// doze stops watching the cluster if there are no viewers.
func (h *Handler) doze() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.viewers > 0 {
		h.idle.Reset(linger)
		return
	}
	if h.stop != nil {
		h.stop()
		h.stop = nil
		h.show(&snapshot{})
	}
}

// show replaces the snapshot. The caller holds the lock.
func (h *Handler) show(s *snapshot) {
	s.replaced = make(chan struct{})
	close(h.latest.replaced)
	h.latest = s
}

func (h *Handler) snapshot() *snapshot {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.latest
}

// follow watches the cluster and shows what it sees until ctx ends.
func (h *Handler) follow(ctx context.Context) {
	s := h.cluster.watch(ctx)
	for {
		select {
		case <-s.dirty:
		case <-ctx.Done():
			return
		}
		began := time.Now()
		if err := h.see(ctx, s); err != nil {
			klog.FromContext(ctx).Error(err, "The dashboard cannot show what it sees")
		}
		select {
		case <-time.After(min(mostGap, max(leastGap, idleShare*time.Since(began)))):
		case <-ctx.Done():
			return
		}
	}
}

// see shows what the source sees: the servers first, and the rest once that is all.
func (h *Handler) see(ctx context.Context, s *source) error {
	s.mu.Lock()
	unreachable := s.unreachable
	s.mu.Unlock()
	reading := s.reading()
	partial := len(reading) > 0 && unreachable == ""
	if partial && !s.leases.read() {
		return nil
	}
	var p picture
	var rows []status.Row
	if partial {
		p = beingRead(s.observe(), reading)
	} else {
		p, rows = pictureOf(s.observe(), h.config.Lifecycles())
	}
	p.Of, p.Unreachable = h.config.Of, unreachable
	next := &snapshot{partial: partial}
	var err error
	if next.picture, err = json.Marshal(p); err != nil {
		return err
	}
	if next.rows, next.order, err = encoded(rows); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ctx.Err() == nil {
		h.show(next)
	}
	return nil
}
