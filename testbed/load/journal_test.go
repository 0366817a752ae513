package load

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var gadgets = schema.GroupResource{Group: "example.com", Resource: "gadgets"}

func TestJournal(t *testing.T) {
	key := Key{Resource: gadgets, Name: "writer-a"}
	m := func(counter int64, attempt string) Mark {
		return Mark{Counter: counter, Attempt: attempt, Via: "server-1"}
	}
	type entry struct {
		mark    Mark
		outcome Outcome
	}
	history := []entry{{m(1, "x1"), Acknowledged}, {m(2, "x2"), Acknowledged}, {m(3, "x3"), Unavailable}, {m(3, "x4"), Broken}}
	for _, tt := range []struct {
		name    string
		found   map[Key]Stored
		lost    string
		foreign string
	}{
		{"the acknowledged write", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "f"}}, "", ""},
		{"the doubtful write", map[Key]Stored{key: {Mark: m(3, "x4"), Filler: "f"}}, "", ""},
		{"an older write", map[Key]Stored{key: {Mark: m(1, "x1"), Filler: "f"}}, "shows write 1, write 2 was acknowledged", ""},
		{"nothing", nil, "gone, write 2 was acknowledged", ""},
		{"changed content", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "g"}}, "content has changed", ""},
		{"the refused write", map[Key]Stored{key: {Mark: m(3, "x3"), Filler: "f"}}, "", "which server-1 refused"},
		{"another attempt", map[Key]Stored{key: {Mark: m(3, "y"), Filler: "f"}}, "", "which no client made"},
		{"an object of nobody", map[Key]Stored{key: {Mark: m(2, "x2"), Filler: "f"}, {Resource: gadgets, Name: "z"}: {}}, "", "gadgets/z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewJournal()
			for _, e := range history {
				l.Note(key, "f", e.mark, e.outcome)
			}
			if n, _, _ := l.Counts(); n != 2 {
				t.Errorf("%d acknowledged, want 2", n)
			}
			lost, foreign := l.Check(tt.found)
			assertOne(t, "lost", lost, tt.lost)
			assertOne(t, "foreign", foreign, tt.foreign)
		})
	}
}

func assertOne(t *testing.T, what string, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		t.Errorf("%s = %q, want one with %q", what, got, want)
	}
}

func TestJournalForgivesADoubtfulCreation(t *testing.T) {
	l := NewJournal()
	l.Note(Key{Name: "a"}, "f", Mark{Counter: 1, Attempt: "x"}, Broken)
	if lost, foreign := l.Check(nil); len(lost)+len(foreign) > 0 {
		t.Errorf("lost %q, foreign %q: nobody was told that it was written", lost, foreign)
	}
}

func TestJournalConfirm(t *testing.T) {
	key := Key{Resource: gadgets, Name: "a"}
	for _, tt := range []struct {
		name    string
		outcome Outcome
		foreign string
	}{
		{"a doubtful write was carried out", Broken, ""},
		{"a refused write was carried out", Unavailable, "refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := NewJournal()
			m := Mark{Counter: 1, Attempt: "x", Via: "server-1"}
			l.Note(key, "f", m, tt.outcome)
			l.Confirm(key, "f", m)
			// A later write must not hide what was seen.
			m = Mark{Counter: 2, Attempt: "y", Via: "server-1"}
			l.Note(key, "f", m, Acknowledged)
			_, foreign := l.Check(map[Key]Stored{key: {Mark: m, Filler: "f"}})
			assertOne(t, "foreign", foreign, tt.foreign)
			if n, _, _ := l.Counts(); n != 2 {
				t.Errorf("%d acknowledged, want 2", n)
			}
		})
	}
}

// TestTook counts the requests that were due in a time.
func TestTook(t *testing.T) {
	var all Requests
	base := time.Unix(1000, 0)
	for i := range 10 {
		due := base.Add(time.Duration(i) * time.Second)
		all = append(all, Request{Due: due, End: due.Add(time.Duration(i+1) * time.Second)})
	}
	got := all.Took(base.Add(3*time.Second), base.Add(6*time.Second))
	if len(got) != 3 || got[0] != 4000 || got[2] != 6000 {
		t.Errorf("got %v", got)
	}
}

// TestOpen: a request is made though the one before is not answered.
func TestOpen(t *testing.T) {
	made := make(chan int, 3)
	all := Open(t.Context(), 1000, 3, func(n int) error {
		made <- n
		if n == 0 {
			for len(made) < 3 {
				<-time.After(time.Millisecond)
			}
		}
		return nil
	})
	if len(all) != 3 || all.Err() != nil {
		t.Errorf("%d requests, error %v", len(all), all.Err())
	}
}

// TestOpenBehind: a rate that cannot be served is an error, and the loop ends.
func TestOpenBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(answer) })
		all := Open(t.Context(), 100, 0, func(int) error { <-answer; return nil })
		if err := all.Err(); len(all) != maxWaiting+1 || err == nil || !strings.Contains(err.Error(), "more than are served") {
			t.Errorf("%d requests, error %v", len(all), err)
		}
	})
}

// TestClosed: each client makes one request at a time, and none after one that fails.
// The pause of a bubble's clock ends once both clients wait or are done, so that
// no client is still to begin when the other one ends the loop.
func TestClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := errors.New("failed")
		all := Closed(ctx, 2, time.Second, func(client, n int) error {
			switch {
			case client == 1:
				return failed
			case n == 4:
				cancel()
			}
			return nil
		})
		if len(all) != 6 || !errors.Is(all.Err(), failed) {
			t.Errorf("%d requests, error %v", len(all), all.Err())
		}
	})
}

func unavailableError(retryAfter int32) error {
	err := apierrors.NewServiceUnavailable("wait for storage version registration")
	if retryAfter > 0 {
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	}
	return err
}

func TestClassify(t *testing.T) {
	sent := func(err error) error { return &url.Error{Op: "Post", URL: "https://127.0.0.1:1", Err: err} }
	gr := schema.GroupResource{Resource: "things"}
	for _, tt := range []struct {
		name     string
		err      error
		creation bool
		want     Outcome
	}{
		{"no error", nil, false, Acknowledged},
		{"503 with Retry-After", unavailableError(1), false, Unavailable},
		{"503 without", unavailableError(0), false, Unexpected},
		{"429", apierrors.NewTooManyRequests("later", 1), false, Unexpected},
		{"500", apierrors.NewInternalError(errors.New("etcdserver: request timed out")), false, Unexpected},
		{"404", apierrors.NewNotFound(gr, "a"), false, Unexpected},
		{"409", apierrors.NewConflict(gr, "a", errors.New("changed")), false, Conflict},
		{"exists", apierrors.NewAlreadyExists(gr, "a"), true, Conflict},
		{"failed test of a patch", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), false, Conflict},
		{"invalid object", apierrors.NewInvalid(schema.GroupKind{Kind: "Thing"}, "a", nil), true, Unexpected},
		{"refused", sent(syscall.ECONNREFUSED), false, Unconnected},
		{"nobody accepts", sent(&net.OpError{Op: "dial", Err: context.DeadlineExceeded}), false, Unconnected},
		{"nobody shakes hands", sent(errors.New("net/http: TLS handshake timeout")), false, Unconnected},
		{"reset", sent(syscall.ECONNRESET), false, Broken},
		{"end of file", sent(io.EOF), false, Broken},
		{"timed out", sent(context.DeadlineExceeded), false, Broken},
		{"lost", sent(errors.New("http2: client connection lost")), false, Broken},
		{"going away", sent(errors.New("http2: server sent GOAWAY and closed the connection; LastStreamID=1")), false, Broken},
		{"unknown", sent(errors.New("tls: bad certificate")), false, Unexpected},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Classify(tt.err, tt.creation); got != tt.want {
				t.Errorf("Classify(%v) = %q, want %q", tt.err, got, tt.want)
			}
		})
	}
}
