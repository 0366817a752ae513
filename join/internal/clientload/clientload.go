// Package clientload measures how a server's clients are served, for migrations to give way to them.
package clientload

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/migrate/pace"
)

const (
	// loadWindow is the time over which Clients looks back.
	loadWindow = time.Second
	// Clients count as being served when this many requests for resources were begun and this many were under way on
	// average, or when more were under way and one of them still is, such as that of a client that waits longer and
	// longer. A request now and then does not count.
	busyRequests          = 5
	busyShare, waitsShare = 0.05, 0.5
	// lateAfter is after how long a request that has not ended counts with the time it has taken.
	lateAfter = 100 * time.Millisecond
	// maxTook bounds the requests of a class that are remembered between two looks.
	maxTook = 4096
)

// Clients measures the time that requests of a server's clients for resources take, and how
// many of them are under way on average. Watches do not count, nor requests by the server's own user
// or by Concord's controllers (package roles): a migration would give way to itself. Kubernetes'
// controllers in the same process count as clients.
type Clients struct {
	clock   clock.PassiveClock
	garbage *collecting

	mu sync.Mutex
	// under are under way as of last.
	under map[*served]bool
	// now is the window since began, before the one before it.
	now, before loadOf
	began, last time.Time
	// looks holds the observations of migrations.
	looks map[*clientLook]bool
}

var _ pace.Clients = (*Clients)(nil)

// New returns Clients that have seen no request.
func New(c clock.PassiveClock) *Clients {
	return &Clients{clock: c, garbage: newCollecting(c), under: map[*served]bool{}, looks: map[*clientLook]bool{}}
}

// served is a request that a client waits for.
type served struct {
	began time.Time
	// class says with which others it is compared; empty for a list, which takes as long as
	// there are objects.
	class string
}

// latencies are the times that requests took, by class.
type latencies map[string][]time.Duration

// add remembers a request, unless there are too many already.
func (l latencies) add(class string, took time.Duration) {
	if class != "" && len(l[class]) < maxTook {
		l[class] = append(l[class], took)
	}
}

// clientLook remembers the times taken by requests that ended since it was last asked.
type clientLook struct {
	took latencies
	// undisturbed says that no migration was under way in the meantime.
	undisturbed bool
}

// loadOf is the load in a window.
type loadOf struct {
	requests int
	spent    time.Duration // by all requests together
	took     latencies     // those that ended without a migration
}

// Wrap is the filter that sees the requests.
func (l *Clients) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.IsResourceRequest && info.Verb != "watch" && !fromServer(r) {
			defer l.begin(classOf(info), inQueues(r.Context()))()
		}
		next.ServeHTTP(w, r)
	})
}

// inQueues is how long a request waited to be admitted, or for its turn.
func inQueues(ctx context.Context) time.Duration {
	trackers, ok := apirequest.LatencyTrackersFrom(ctx)
	if !ok {
		return 0
	}
	return trackers.APFQueueWaitTracker.GetLatency()
}

// classOf distinguishes reads and writes of single objects.
func classOf(info *apirequest.RequestInfo) string {
	switch info.Verb {
	case "get":
		if info.Subresource == "" || info.Subresource == "status" || info.Subresource == "scale" {
			return "read" // and no log or connection
		}
	case "create", "update", "patch", "delete":
		if info.Subresource == "" || info.Subresource == "status" || info.Subresource == "scale" {
			return "write"
		}
	}
	return ""
}

// begin notes a request until end is called.
func (l *Clients) begin(class string, waited time.Duration) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	r := &served{began: l.last.Add(-waited), class: class}
	l.under[r] = true
	l.now.requests++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.advance()
		delete(l.under, r)
		took := l.last.Sub(r.began)
		for look := range l.looks {
			look.took.add(class, took)
		}
		if len(l.looks) == 0 {
			l.now.took.add(class, took)
		}
	}
}

// Watch implements pace.Clients.
func (l *Clients) Watch() (look func() pace.Seen, stop func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	one := &clientLook{took: latencies{}, undisturbed: len(l.looks) == 0}
	if one.undisturbed {
		for _, window := range []loadOf{l.before, l.now} {
			for class, took := range window.took {
				one.took[class] = append(one.took[class], took...)
			}
		}
	}
	l.looks[one] = true
	return func() pace.Seen { return l.seen(one) }, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.looks, one)
	}
}

func (l *Clients) seen(look *clientLook) pace.Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	serving := l.busy()
	seen := pace.Seen{Serving: serving, Collecting: serving && l.garbage.under(), Undisturbed: look.undisturbed, Latencies: map[string]pace.Latency{}}
	look.undisturbed = false
	for r := range l.under {
		if so := l.last.Sub(r.began); so >= lateAfter {
			look.took.add(r.class, so)
		}
	}
	for class, took := range look.took {
		slices.Sort(took)
		seen.Latencies[class] = pace.Latency{Requests: len(took), Slow: took[len(took)*9/10]}
	}
	clear(look.took)
	return seen
}

// advance takes in the time since it was last called.
func (l *Clients) advance() {
	now := l.clock.Now()
	since := now.Sub(l.last)
	l.now.spent += time.Duration(len(l.under)) * since
	l.last = now
	windows := float64(now.Sub(l.began)) / float64(loadWindow)
	switch {
	case windows < 1:
		return
	case since >= loadWindow: // all that was before is long ago, and nothing has begun or ended since
		l.before = loadOf{spent: time.Duration(len(l.under)) * loadWindow}
	default: // a load that is spread over more than a window is brought down to one
		l.before = loadOf{requests: int(float64(l.now.requests) / windows), spent: time.Duration(float64(l.now.spent) / windows), took: l.now.took}
	}
	l.now, l.began = loadOf{took: latencies{}}, now
}

// fromServer reports whether this server itself, or one of Concord's controllers, sent the request.
func fromServer(r *http.Request) bool {
	u, ok := apirequest.UserFrom(r.Context())
	return ok && roles.Own(u)
}

func (w loadOf) busy(under int) bool {
	share := float64(w.spent) / float64(loadWindow)
	return w.requests >= busyRequests && share >= busyShare || under > 0 && share >= waitsShare
}

// busy says whether clients are being served. It is called with mu.
func (l *Clients) busy() bool {
	l.advance()
	return l.now.busy(len(l.under)) || l.before.busy(len(l.under))
}
