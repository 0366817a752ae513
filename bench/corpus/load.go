package corpus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	// OpenRate is how many requests of an open loop are due in a second unless a Load says otherwise: half
	// of them writes.
	OpenRate = 200
	// closedClients is how many clients write and read in turns, without a pause, in a closed loop.
	closedClients = 32
	// tryAgain is how long a client waits after a 429 or 503, as client-go does.
	tryAgain = time.Second
)

// Load are clients that patch and read objects through one server: an open loop of requests
// which are due at fixed times, or else a closed one.
type Load struct {
	Client *stage.Client
	Path   func(i int) string
	Open   bool
	// Rate is how many requests are due in a second, 0 for OpenRate.
	Rate int
	// Requests are the requests that Run has made.
	load.Requests
}

// Run makes requests until ctx ends and returns when all are answered.
func (l *Load) Run(ctx context.Context) {
	all := context.WithoutCancel(ctx)
	if l.Open {
		l.Requests = load.Open(ctx, cmp.Or(l.Rate, OpenRate), 0, func(n int) error { return l.one(all, n, n%2 == 0) })
		return
	}
	l.Requests = load.Closed(ctx, closedClients, 0, func(client, n int) error { return l.one(all, n*closedClients+client, n%2 == 0) })
}

// one makes a request, and repeats it while the server answers with 429 or 503, for a minute at most.
func (l *Load) one(ctx context.Context, i int, write bool) error {
	method, contentType, body := http.MethodGet, "", []byte(nil)
	if write {
		method, contentType = http.MethodPatch, "application/merge-patch+json"
		body = Marshal(Fields{"spec": Fields{"sequence": i}})
	}
	for began := time.Now(); ; {
		_, err := l.Client.Do(ctx, method, l.Path(i), contentType, body)
		var status *cluster.StatusError
		switch {
		case err == nil:
			return nil
		case time.Since(began) < time.Minute && errors.As(err, &status) && (status.Code == http.StatusServiceUnavailable || status.Code == http.StatusTooManyRequests):
			_ = load.Pause(ctx, tryAgain)
		default:
			return fmt.Errorf("a client's request: %w", err)
		}
	}
}
