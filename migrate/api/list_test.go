package api

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// TestListLarge: a page is bounded by the size of its objects, too.
func TestListLarge(t *testing.T) {
	s := startServer(t, 40)
	s.annotations = pageOf(1, 240_000).Items[0].Annotations
	var limits []string
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		if name.Name == "" {
			limits = append(limits, r.URL.Query().Get("limit"))
		}
		return nil
	}
	result, err := s.run(Options{PageSize: 100})
	if err != nil || result.Patched != 40 || strings.Join(limits, " ") != "25 12 8 8 8 8" {
		t.Errorf("%+v, %v, the limits were %v", result.Progress, err, limits)
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
	// 25 and 50, and instead of 100 only 50 again.
	if lists != (slowLists{tooSlow: 1, read: 15}) {
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

// versionIn is the version of the resource that is asked for.
func versionIn(r *http.Request) string {
	return strings.Split(strings.TrimPrefix(r.URL.Path, "/apis/example.com/"), "/")[0]
}

// TestAsStored: whatever lists in the stored version say, objects are patched in no other; and lists are in
// another only where that may read what the stored one cannot, and only for that page.
func TestAsStored(t *testing.T) {
	const objects, pages = 30, 3
	webhook := func(text string) error {
		return apierrors.NewInternalError(errors.New("conversion webhook for example.com/v2, Kind=Widget failed: " + text))
	}
	unsound := name(15)
	for what, test := range map[string]struct {
		failing int // so many lists in the stored version
		err     error
		others  int // so many lists are in another
	}{
		"busy once":                    {1, apierrors.NewServiceUnavailable("starting"), 0},
		"too many requests":            {3, apierrors.NewTooManyRequests("later", 0), 0},
		"no answer":                    {2, errors.New("away"), 0},
		"etcd without a leader":        {2, apierrors.NewInternalError(errors.New("etcdserver: no leader")), 0},
		"not served, in passing":       {2, notFound(&http.Request{Method: http.MethodGet}), 0},
		"the webhook away once":        {1, webhook(`Post "https://x": EOF`), 1},
		"an object refused":            {1, webhook("it has no spec.size"), 1},
		"an object refused, each time": {1 << 30, webhook("it has no spec.size"), pages},
		"an object named":              {1 << 30, unreadError([]metav1.StatusCause{{Field: "/registry/example.com/widgets/" + keyOf(metadataOf(unsound, &stored{}))}}), pages},
	} {
		t.Run(what, func(t *testing.T) {
			s := startServer(t, objects)
			left, others := test.failing, 0
			s.answer = func(r *http.Request, name types.NamespacedName) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				switch stored := versionIn(r) == target.Versions[0]; {
				case name.Name != "" && !stored:
					t.Errorf("%s %s", r.Method, r.URL.Path)
				case name.Name != "" && test.failing > 1<<20 && name == unsound:
					return webhook("it has no spec.size")
				case name.Name == "" && !stored:
					others++
				case name.Name == "":
					if left--; left >= 0 {
						return test.err
					}
				}
				return nil
			}
			result, err := s.run(Options{PageSize: objects / pages, WebhookPatience: time.Minute})
			failed := int64(0)
			if test.failing > 1<<20 {
				failed = 1
			}
			if err != nil || result.Patched != objects-failed || result.Progress.Failed[WebhookFailed] != failed || others != test.others {
				t.Errorf("%+v, %v, %d lists in another version", result.Progress, err, others)
			}
		})
	}
}

// TestOtherVersionBusy: where an object cannot be read in the stored version, a server that does not list another one for
// a moment is asked for it again. If it never does, the object cannot be read.
func TestOtherVersionBusy(t *testing.T) {
	for what, test := range map[string]struct {
		failing int // so many lists in the other version
		err     error
		others  int // so many are tried
		named   bool
	}{
		"throttled":            {10, apierrors.NewTooManyRequests("later", 0), 11, false},
		"etcd has no leader":   {10, apierrors.NewInternalError(errors.New("etcdserver: no leader")), 11, false},
		"it starts":            {attempts - 1, apierrors.NewServiceUnavailable("starting"), attempts, false},
		"it starts, each time": {1 << 30, apierrors.NewServiceUnavailable("starting"), attempts, true},
	} {
		t.Run(what, func(t *testing.T) {
			s := startServer(t, 2)
			s.ownTokens = true
			left, others := test.failing, 0
			s.answer = func(r *http.Request, object types.NamespacedName) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				switch {
				case object.Name != "" || r.URL.Query().Get("continue") == "":
				case versionIn(r) == target.Versions[0]:
					return unreadError([]metav1.StatusCause{{Field: "/registry/example.com/widgets/" + keyOf(metadataOf(name(1), &stored{}))}})
				default:
					others++
					if left--; left >= 0 {
						return test.err
					}
				}
				return nil
			}
			result, err := s.run(Options{PageSize: 1, Clock: &pausing{WithTicker: clock.RealClock{}}})
			if errors.Is(err, errNoWay) != test.named || !test.named && (err != nil || result.Patched != 2) || others != test.others {
				t.Errorf("%+v, %v, %d lists in the other version", result.Progress, err, others)
			}
		})
	}
}

// TestStoredNotServed: where the stored version is not served nothing is patched, and the error says what to do.
func TestStoredNotServed(t *testing.T) {
	s := startServer(t, 30)
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if versionIn(r) == target.Versions[0] {
			return notFound(r)
		}
		return nil
	}
	result, err := s.run(Options{Clock: &pausing{WithTicker: clock.RealClock{}}})
	if !apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "version v2, which is stored, is not served: serve it") || len(s.asked) > 0 || result.Total > 0 {
		t.Errorf("%+v, %v, asked for %v", result.Progress, err, s.asked)
	}
}
