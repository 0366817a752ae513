package server

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
	// busyShare is how many requests for resources are under way on average when clients
	// count as being served. One request of 10 ms a second does not; a client that waits
	// longer and longer does.
	busyShare = 0.05
)

// clientLoad measures how many of its clients' requests for resources a server has under
// way on average. Watches and what the server asks of itself do not count.
type clientLoad struct {
	clock clock.PassiveClock

	mu sync.Mutex
	// under is how many are under way, spent the time that requests have spent since began,
	// as of last, and before that of the whole window before.
	under         int
	spent, before time.Duration
	began, last   time.Time
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
}

// advance takes in the time since it was last called.
func (l *clientLoad) advance() {
	now := l.clock.Now()
	l.spent += time.Duration(l.under) * now.Sub(l.last)
	if l.last = now; now.Sub(l.began) < loadWindow {
		return
	}
	// What is spread over more than a window is brought down to one.
	l.before = time.Duration(float64(l.spent) * float64(loadWindow) / float64(now.Sub(l.began)))
	l.spent, l.began = 0, now
}

// busy says whether clients are being served.
func (l *clientLoad) busy() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.advance()
	return float64(max(l.before, l.spent)) >= busyShare*float64(loadWindow)
}
