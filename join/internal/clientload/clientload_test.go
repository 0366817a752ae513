package clientload

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/migrate/pace"
)

func TestClientLoad(t *testing.T) {
	for _, test := range []struct {
		name string
		// takes is the duration of each request, after the time between the end of one and the
		// begin of the next.
		takes, after time.Duration
		n            int
		want         bool
	}{
		{"nothing", 0, 0, 0, false},
		{"one request now and then", 50 * time.Millisecond, 900 * time.Millisecond, 5, false},
		{"one after the other", 5 * time.Millisecond, 0, 300, true},
		{"with pauses", 5 * time.Millisecond, 45 * time.Millisecond, 40, true},
		{"many that take nothing", 100 * time.Microsecond, 10 * time.Millisecond, 200, false},
	} {
		clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
		l := New(clock)
		look, stop := l.Watch()
		for range test.n {
			clock.Step(test.after)
			end := l.begin("write", 0)
			clock.Step(test.takes)
			end()
		}
		seen := look()
		if seen.Serving != test.want {
			t.Errorf("%s: served %v", test.name, seen.Serving)
		}
		if got := seen.Latencies["write"]; got.Requests != test.n || got.Slow != test.takes {
			t.Errorf("%s: seen are %+v", test.name, got)
		}
		stop()
		clock.Step(2 * loadWindow)
		if seen := look(); seen.Serving || len(seen.Latencies) > 0 {
			t.Errorf("%s: %+v two seconds after the end", test.name, seen)
		}
	}
}

// TestNoClients: requests of the server's own user and of Concord's controllers do not count as
// requests of clients.
func TestNoClients(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := New(clock)
	h := l.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { clock.Step(time.Second) }))
	look, stop := l.Watch()
	defer stop()
	send := func(u user.Info, verb string) {
		ctx := apirequest.WithRequestInfo(apirequest.WithUser(t.Context(), u), &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
	}
	for _, role := range roles.All {
		send(&user.DefaultInfo{Name: role.User()}, "update")
	}
	send(&user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}, "update")
	send(&user.DefaultInfo{Name: "admin"}, "watch")
	if seen := look(); seen.Serving || len(seen.Latencies) > 0 {
		t.Errorf("without clients: %+v", seen)
	}
	send(&user.DefaultInfo{Name: "admin"}, "update")
	if got := look().Latencies["write"].Requests; got != 1 {
		t.Errorf("%d requests of clients", got)
	}
}

// TestClientsBefore: a migration that begins gets the latencies of the time directly before it,
// unless another migration was under way then.
func TestClientsBefore(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := New(clock)
	for range 100 {
		end := l.begin("write", 0)
		clock.Step(20 * time.Millisecond)
		end()
	}
	look, stop := l.Watch()
	if seen := look(); !seen.Undisturbed || seen.Latencies["write"].Requests < 50 || seen.Latencies["write"].Slow != 20*time.Millisecond {
		t.Errorf("before: %+v", seen)
	}
	if seen := look(); seen.Undisturbed || len(seen.Latencies) > 0 {
		t.Errorf("then: %+v", seen)
	}
	other, stopOther := l.Watch()
	if seen := other(); seen.Undisturbed || len(seen.Latencies) > 0 {
		t.Errorf("beside another: %+v", seen)
	}
	stopOther()
	end := l.begin("write", 0)
	clock.Step(3 * time.Second)
	end()
	stop()
	last, stop := l.Watch()
	defer stop()
	if seen := last(); len(seen.Latencies) > 0 {
		t.Errorf("what was during another's is taken for what was before: %+v", seen)
	}
}

// TestSlowClientsCount: a request that is still waiting counts with the time that it has waited so
// far.
func TestSlowClientsCount(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := New(clock)
	look, stop := l.Watch()
	defer stop()
	end, list := l.begin("read", 0), l.begin("", 0)
	clock.Step(900 * time.Millisecond)
	if seen := look(); !seen.Serving || len(seen.Latencies) != 1 || seen.Latencies["read"] != (pace.Latency{Requests: 1, Slow: 900 * time.Millisecond}) {
		t.Errorf("a client that waits is seen as %+v", seen)
	}
	end()
	list()
	if seen := look(); seen.Serving || len(seen.Latencies) != 1 {
		t.Errorf("when it has ended: %+v", seen)
	}
}

// TestClassOf: requests are put into classes of similar duration, so that latencies can be
// compared.
func TestClassOf(t *testing.T) {
	for want, infos := range map[string][]apirequest.RequestInfo{
		"read":  {{Verb: "get"}, {Verb: "get", Subresource: "status"}},
		"write": {{Verb: "create"}, {Verb: "update", Subresource: "scale"}, {Verb: "patch", Subresource: "status"}, {Verb: "delete"}},
		"":      {{Verb: "list"}, {Verb: "deletecollection"}, {Verb: "get", Subresource: "log"}, {Verb: "create", Subresource: "exec"}},
	} {
		for _, info := range infos {
			if got := classOf(&info); got != want {
				t.Errorf("%s %s: %q, want %q", info.Verb, info.Subresource, got, want)
			}
		}
	}
}

// TestQueues: the time that a request waited to be admitted counts.
func TestQueues(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := New(clock)
	h := l.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { clock.Step(time.Millisecond) }))
	look, stop := l.Watch()
	defer stop()
	ctx := apirequest.WithLatencyTrackers(apirequest.WithRequestInfo(apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "someone"}),
		&apirequest.RequestInfo{IsResourceRequest: true, Verb: "update"}))
	apirequest.TrackAPFQueueWaitLatency(ctx, time.Second)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPut, "/", nil))
	if got, want := look().Latencies["write"].Slow, time.Second+time.Millisecond; got != want {
		t.Errorf("a request that waited for a second took %v, want %v", got, want)
	}
}
