package api

import (
	"errors"
	"net/http"
	"strconv"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// slowLists counts the lists of a server by what became of them.
type slowLists struct{ tooSlow, read int }

// on counts the lists of a server, which takes too long for those of so many objects.
func (l *slowLists) on(s *testServer, tooSlow func(limit int) bool) {
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		if r.Method != http.MethodGet || name.Name != "" {
			return nil
		}
		if limit, _ := strconv.Atoi(r.URL.Query().Get("limit")); tooSlow(limit) {
			l.tooSlow++
			return apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
		}
		l.read++
		return nil
	}
}

// TestListTooSlow: a server that takes too long for large pages is asked for small ones, at
// once and from then on.
func TestListTooSlow(t *testing.T) {
	s := startServer(t, 700)
	var lists slowLists
	lists.on(s, func(limit int) bool { return limit > 50 })
	waited := &pausing{WithTicker: clock.RealClock{}}
	result, err := s.run(Options{Clock: waited})
	if err != nil || result.Patched != 700 || len(waited.pauses) > 0 {
		t.Errorf("%+v, %v, waited %v", result.Progress, err, waited.pauses)
	}
	// Not 500, 250, 125 and 62, but 31.
	if lists != (slowLists{tooSlow: 4, read: 23}) {
		t.Errorf("%+v", lists)
	}
}

// TestListTooSlowNow: a server that takes too long for any page for a while is asked for large
// ones again after that, and one that does so all the time ends the run.
func TestListTooSlowNow(t *testing.T) {
	s := startServer(t, 700)
	var lists slowLists
	left := 15
	lists.on(s, func(int) bool { left--; return left >= 0 })
	// 1, 2, 4 and so on to 256, then the objects left.
	if result, err := s.run(Options{}); err != nil || result.Patched != 700 || lists.read != 10 {
		t.Errorf("%+v, %v, %+v", result.Progress, err, lists)
	}
	lists.on(s, func(int) bool { return true })
	if _, err := s.run(Options{Patience: 100 * time.Millisecond}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// TestListTooSlowOften: a server that takes too long for pages now and then, however small, is
// not asked for large ones without end.
func TestListTooSlowOften(t *testing.T) {
	s := startServer(t, 700)
	var lists slowLists
	ones := 0
	lists.on(s, func(limit int) bool {
		if limit == 1 {
			ones++
		}
		return limit > 1 || ones%2 == 1
	})
	result, err := s.run(Options{Clock: &pausing{WithTicker: clock.RealClock{}}})
	if err != nil || result.Patched != 700 {
		t.Errorf("%+v, %v", result.Progress, err)
	}
	if large := lists.tooSlow - ones/2; large > (1+maxSlow)*10 {
		t.Errorf("%d lists of several objects, %+v", large, lists)
	}
}
