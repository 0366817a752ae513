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

// TestAsStored: objects are patched in the stored version alone, however lists in it fail. A page is listed in
// another version only if that may read objects which the stored one cannot.
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

// refusing is an API whose patches take a millisecond of the test's clock, unless they are
// refused by then. All else is answered.
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

// runRefused runs with so many objects and a clock that never waits, and says how long it took.
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

// TestObjectRefused: objects that the server is always too busy for, while it takes others, are
// failures by name, and do not end the run, however soon the others are done.
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

// TestObjectThrottled: so is one that is throttled each time while others are written for long.
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

// wantRefused fails unless these objects failed by name, and all others were written.
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

// TestNobodyTaken: a server that takes no writes, though it answers reads, ends the run and no
// object fails, be it away from the beginning, after it took some, or after it throttled or
// refused some of them, of which it is not known then why.
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
