package connect

import (
	"net/http"
	"sync"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
)

const (
	// retryFor is how long a write is made again that is answered with 503.
	retryFor = 2 * time.Second
	// another is how long after a refusal the next one is of another write: client-go waits a second.
	another = 5 * time.Second
)

// TellRefusals has a command's writes that the server refuses with 503 made again for a moment, as
// while the server starts, and then end in what it says: client-go would drop that, and say that
// its time is up.
func TellRefusals(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &refusals{next: next} })
}

// refusals takes Retry-After, by which client-go makes a request again, from late refusals.
type refusals struct {
	next http.RoundTripper

	mu    sync.Mutex
	since time.Time // of the first refusal after a write that was none; zero without one
	last  time.Time
}

var _ utilnet.RoundTripperWrapper = &refusals{}

// RoundTrip implements http.RoundTripper.
func (t *refusals) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err != nil || r.Method == http.MethodGet {
		return answer, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	switch {
	case answer.StatusCode != http.StatusServiceUnavailable:
		t.since = time.Time{}
		return answer, nil
	case t.since.IsZero() || now.Sub(t.last) > another:
		t.since = now
	case now.Sub(t.since) >= retryFor:
		answer.Header.Del("Retry-After")
	}
	t.last = now
	return answer, nil
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (t *refusals) WrappedRoundTripper() http.RoundTripper { return t.next }
