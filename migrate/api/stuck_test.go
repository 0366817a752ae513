package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

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
