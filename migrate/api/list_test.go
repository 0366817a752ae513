package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

// slowLists counts the lists that a server answered, and those that took it too long.
type slowLists struct{ tooSlow, read int }

// on counts the lists of a server that answers "timeout" if tooSlow returns true for the limit of a list.
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

// TestListLarge: large objects make pages smaller.
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

// TestListTooSlow: a server that needs too long for large pages is asked for small ones, without a pause and from then
// on.
func TestListTooSlow(t *testing.T) {
	s := startServer(t, 700)
	var lists slowLists
	lists.on(s, func(limit int) bool { return limit > 50 })
	waited := &pausing{WithTicker: clock.RealClock{}}
	result, err := s.run(Options{Clock: waited})
	if err != nil || result.Patched != 700 || len(waited.pauses) > 0 {
		t.Errorf("%+v, %v, waited %v", result.Progress, err, waited.pauses)
	}
	// Pages of 25 and 50 are read; the page of 100 is too slow, and all pages after it have 50.
	if lists != (slowLists{tooSlow: 1, read: 15}) {
		t.Errorf("%+v", lists)
	}
}

// TestListTooSlowNow: a server that needs too long for any page for a while is asked for large pages again afterwards. A
// server that always needs too long ends the run.
func TestListTooSlowNow(t *testing.T) {
	s := startServer(t, 700)
	var lists slowLists
	left := 15
	lists.on(s, func(int) bool { left--; return left >= 0 })
	// Pages of 1, 2, 4 and so on to 256 objects, then the rest.
	if result, err := s.run(Options{}); err != nil || result.Patched != 700 || lists.read != 10 {
		t.Errorf("%+v, %v, %+v", result.Progress, err, lists)
	}
	lists.on(s, func(int) bool { return true })
	if _, err := s.run(Options{Patience: 100 * time.Millisecond}); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// TestListTooSlowOften: a server that sometimes needs too long even for a page of one object is not asked for large pages
// again and again for ever.
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

// versionIn returns the version in the path of a request.
func versionIn(r *http.Request) string {
	return strings.Split(strings.TrimPrefix(r.URL.Path, "/apis/example.com/"), "/")[0]
}

// TestAsStored: objects are patched in the stored version only, whatever errors its lists have. A page is listed in
// another version only if objects may be readable in that version and not in the stored one.
func TestAsStored(t *testing.T) {
	const objects, pages = 30, 3
	webhook := func(text string) error {
		return apierrors.NewInternalError(errors.New("conversion webhook for example.com/v2, Kind=Widget failed: " + text))
	}
	unsound := name(15)
	for what, test := range map[string]struct {
		failing int // number of lists in the stored version that fail
		err     error
		others  int // number of lists in the other version
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

// TestOtherVersionBusy: an object cannot be read in the stored version, and a list in the other version fails for a
// moment. That list is repeated. If it never succeeds, the object counts as unreadable.
func TestOtherVersionBusy(t *testing.T) {
	for what, test := range map[string]struct {
		failing int // number of lists in the other version that fail
		err     error
		others  int // number of lists in the other version
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

// TestStoredNotServed: if the stored version is not served, nothing is patched, and the error says what to do.
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

// refusing is an API of which each patch takes a millisecond of the bubble's clock, or fails with the error that refuse
// returns. All other requests are answered.
type refusing struct {
	*direct
	began  time.Time
	refuse func(name types.NamespacedName, after time.Duration) error
}

// Patch implements API.
func (p *refusing) Patch(ctx context.Context, r schema.GroupVersionResource, name types.NamespacedName, patch []byte) error {
	err := p.refuse(name, time.Since(p.began))
	<-time.After(time.Millisecond)
	if err != nil {
		return err
	}
	return p.direct.Patch(ctx, r, name, patch)
}

// runRefused runs a migration of so many objects in a synctest bubble, and returns how long it took.
func runRefused(t *testing.T, objects int, o Options, refuse func(name types.NamespacedName, after time.Duration) error) (result Result, took time.Duration, err error) {
	t.Helper()
	s := newTestServer(t)
	for i := range objects {
		s.create(name(i))
	}
	began := time.Now()
	result, err = New(&refusing{direct: &direct{s: s}, began: began, refuse: refuse}).Run(t.Context(), target, o, nil)
	return result, time.Since(began), err
}

var (
	busyNow    = apierrors.NewServiceUnavailable("not now")
	throttling = apierrors.NewTooManyRequests("too many", 0)
	gateClosed = apierrors.NewServiceUnavailable("nothing was written, try again: etcd has not answered for 7.9s")
	etcdAway   = apierrors.NewInternalError(errors.New("etcdserver: no leader"))
)

// TestObjectRefused: objects for which the server is always too busy, while it accepts others, fail by name. They do not
// end the run, however soon the other objects are done.
func TestObjectRefused(t *testing.T) {
	for what, err := range map[string]error{
		"503": busyNow, "504": apierrors.NewTimeoutError("too slow", 0), "no answer": errors.New("EOF"),
	} {
		for _, bad := range [][]types.NamespacedName{{name(5)}, {name(0)}, {name(0), name(50), name(51), name(120)}} {
			t.Run(fmt.Sprintf("%s for %d", what, len(bad)), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					result, took, err := runRefused(t, 300, Options{PageSize: 50}, func(n types.NamespacedName, _ time.Duration) error {
						if slices.Contains(bad, n) {
							return err
						}
						return nil
					})
					wantRefused(t, result, err, 300, bad...)
					if took > 2*time.Minute {
						t.Errorf("it took %s", took)
					}
				})
			})
		}
	}
}

// TestObjectThrottled: the same for an object that is throttled each time, while others are written for long.
func TestObjectThrottled(t *testing.T) {
	for objects, most := range map[int]time.Duration{200: 200*time.Second + 5*time.Second} {
		for _, err := range []error{throttling, etcdAway} {
			synctest.Test(t, func(t *testing.T) {
				pacer, stop := pace.New(pace.Bounds{MaxPerSecond: 1}, nil, clock.RealClock{})
				defer stop()
				result, took, err := runRefused(t, objects, Options{Pacer: pacer, MaxParallel: 8}, func(n types.NamespacedName, _ time.Duration) error {
					if n == name(0) {
						return err
					}
					return nil
				})
				wantRefused(t, result, err, objects, name(0))
				if took > most+time.Minute {
					t.Errorf("%d objects took %s", objects, took)
				}
			})
		}
	}
}

// wantRefused asserts that exactly these objects failed, by name, and all others were written.
func wantRefused(t *testing.T, result Result, err error, objects int, bad ...types.NamespacedName) {
	t.Helper()
	var failed []types.NamespacedName
	for _, f := range result.Failed {
		failed = append(failed, f.NamespacedName)
		if f.Reason != Rejected || f.Detail == "" {
			t.Errorf("a failure is %+v", f)
		}
	}
	slices.SortFunc(bad, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	if err != nil || !slices.Equal(failed, bad) || result.Patched != int64(objects-len(bad)) {
		t.Errorf("%+v, %v, failed: %v, want %v", result.Progress, err, failed, bad)
	}
}

// TestNobodyTaken: a server that answers reads but accepts no writes ends the run, and no object fails. That may be so
// from the beginning, after some writes, or after the server has throttled or refused some objects; it is not known then
// whether the reason is the object.
func TestNobodyTaken(t *testing.T) {
	first := func(n types.NamespacedName) bool { return n.Namespace == "ns-0" && n.Name < "o-0018" }
	for what, refuse := range map[string]func(n types.NamespacedName, after time.Duration, taken int) error{
		"from the beginning": func(types.NamespacedName, time.Duration, int) error { return busyNow },
		"after some": func(_ types.NamespacedName, _ time.Duration, taken int) error {
			if taken > 100 {
				return busyNow
			}
			return nil
		},
		"after throttling some until all others are done": func(n types.NamespacedName, after time.Duration, _ int) error {
			switch {
			case !first(n):
				return nil
			case after < 10*time.Second:
				return throttling
			}
			return busyNow
		},
		"after throttling some for long": func(n types.NamespacedName, after time.Duration, taken int) error {
			switch {
			case after > 75*time.Second:
				return busyNow
			case first(n) || int(after/(200*time.Millisecond)) <= taken:
				return throttling
			}
			return nil
		},
		"as etcd is away":                     func(types.NamespacedName, time.Duration, int) error { return etcdAway },
		"as a Concord server finds etcd away": func(types.NamespacedName, time.Duration, int) error { return gateClosed },
		"for some, as it refuses writes, after all others are done": func(n types.NamespacedName, after time.Duration, _ int) error {
			if first(n) {
				return gateClosed
			}
			return nil
		},
		"for some, as etcd is away, after all others are done": func(n types.NamespacedName, after time.Duration, _ int) error {
			if first(n) {
				return etcdAway
			}
			return nil
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var taken atomic.Int64
				result, took, err := runRefused(t, 600, Options{PageSize: 100, MaxParallel: 8}, func(n types.NamespacedName, after time.Duration) error {
					err := refuse(n, after, int(taken.Load()))
					if err == nil {
						taken.Add(1)
					}
					return err
				})
				if !errors.Is(err, ErrUnavailable) || result.Progress.Failed.Sum() != 0 {
					t.Errorf("%+v, %v, %v", result.Progress, err, result.Failed)
				}
				if took > 3*time.Minute {
					t.Errorf("it took %s", took)
				}
			})
		})
	}
}
