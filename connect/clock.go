package connect

import (
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Clock is the API server's clock, as its answers show it: a Lease that was renewed by that clock must not be judged
// by the local one.
type Clock struct {
	mu    sync.Mutex
	ahead time.Duration
}

// Now is the server's time; ours before it has answered.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.ahead)
}

// SetBy has the answers to this config's requests set the clock.
func (c *Clock) SetBy(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, c} })
}

// dated sets the clock by answers.
type dated struct {
	next  http.RoundTripper
	clock *Clock
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := d.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if date, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		d.clock.mu.Lock()
		// The header has whole seconds: a smaller difference is none.
		if d.clock.ahead = time.Until(date); d.clock.ahead.Abs() < 2*time.Second {
			d.clock.ahead = 0
		}
		d.clock.mu.Unlock()
	}
	return answer, nil
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (d dated) WrappedRoundTripper() http.RoundTripper { return d.next }
