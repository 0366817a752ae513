package join

import (
	"net/http"
	"sync"
	"time"

	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
)

const (
	// loadWindow is the time over which clientLoad looks back.
	loadWindow = time.Second
	// Clients count as being served when so many requests for resources were begun, and so
	// many were under way on average; or when more were under way and one still is, as with
	// a client that waits longer and longer. A request now and then does not count.
	busyRequests          = 5
	busyShare, waitsShare = 0.05, 0.5
)

// clientLoad measures how many of its clients' requests for resources a server has under
// way on average. Watches and what the server asks of itself do not count.
type clientLoad struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// under is how many are under way as of last.
	under int
	// now is the window since began, before the one before it.
	now, before loadOf
	began, last time.Time
}

// loadOf is what happened in a window.
type loadOf struct {
	requests int
	spent    time.Duration // by all requests together
}

func (l *clientLoad) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if info, ok := apirequest.RequestInfoFrom(r.Context()); ok && info.IsResourceRequest && info.Verb != "watch" && !fromLoopback(r) {
			l.add(1)
			defer l.add(-1)
		}
		next.ServeHTTP(w, r)
	})
}

func (l *clientLoad) add(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	l.under += n
	l.now.requests += max(n, 0)
}

// advance takes in the time since it was last called.
func (l *clientLoad) advance() {
	now := l.clock.Now()
	since := now.Sub(l.last)
	l.now.spent += time.Duration(l.under) * since
	l.last = now
	windows := float64(now.Sub(l.began)) / float64(loadWindow)
	switch {
	case windows < 1:
		return
	case since >= loadWindow: // what was before is long ago, and nothing has begun or ended since
		l.before = loadOf{spent: time.Duration(l.under) * loadWindow}
	default: // what is spread over more than a window is brought down to one
		l.before = loadOf{requests: int(float64(l.now.requests) / windows), spent: time.Duration(float64(l.now.spent) / windows)}
	}
	l.now, l.began = loadOf{}, now
}

func (w loadOf) busy(under int) bool {
	share := float64(w.spent) / float64(loadWindow)
	return w.requests >= busyRequests && share >= busyShare || under > 0 && share >= waitsShare
}

// busy says whether clients are being served.
func (l *clientLoad) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	return l.now.busy(l.under) || l.before.busy(l.under)
}
