package api

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// broken is the error that a server answers with for a value that it cannot decode.
func broken(words string) error {
	return apierrors.NewInternalError(errors.New("unable to decode " + words))
}

// breakAll makes these objects unreadable.
func (s *testServer) breakAll(words func(types.NamespacedName) string, names ...types.NamespacedName) {
	for _, n := range names {
		if s.objects[n] == nil {
			s.create(n)
		}
		s.broken[n] = broken(words(n))
	}
}

// TestUnreadable: objects that no list can have in it are counted and named, wherever they
// are, also beside each other, and all others are migrated.
func TestUnreadable(t *testing.T) {
	ns := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	var every []types.NamespacedName
	for i := 0; i < 300; i += 7 {
		every = append(every, name(i))
	}
	for what, names := range map[string][]types.NamespacedName{
		"in the middle":                        {name(151)},
		"first":                                {ns("a", "first")},
		"last":                                 {ns("zz", "last-0.x")},
		"only in its namespace, beside others": {ns("ns-0", "zzz"), ns("ns-01", "a"), ns("ns-1", "a")},
		"a prefix of another":                  {ns("ns-1", "o-0001"), ns("ns-1", "o-00011"), ns("ns-1", "o-0004-x")},
		"every seventh":                        every,
	} {
		for _, how := range []struct {
			name  string
			words func(types.NamespacedName) string
			named bool
		}{
			{"told apart", func(n types.NamespacedName) string { return n.Name + n.Namespace }, true},
			{"alike", func(types.NamespacedName) string { return "it" }, false},
		} {
			t.Run(what+", "+how.name, func(t *testing.T) {
				t.Parallel()
				s := startServer(t, 300)
				s.breakAll(how.words, names...)
				result, err := s.run(Options{PageSize: 50})
				s.wantAround(result, err, names)
				if how.named && (unnamed(result) > 0 || s.lists > 800*len(names)) {
					t.Errorf("after %d lists: %+v", s.lists, result.Failed)
				}
			})
		}
	}
}

// wantAround fails unless these objects failed and all others were migrated.
func (s *testServer) wantAround(result Result, err error, names []types.NamespacedName) {
	s.t.Helper()
	n := int64(len(names))
	if err != nil || result.Progress.Failed[DoesNotDecode] != n || result.Progress.Failed.Sum() != n ||
		result.Total != int64(len(s.objects)) || result.Patched != result.Total-n {
		s.t.Errorf("%+v, %v", result.Progress, err)
	}
	for _, f := range result.Failed {
		if f.Name != "" && s.broken[f.NamespacedName] == nil || f.Reason != DoesNotDecode || !strings.Contains(f.Detail, "unable to decode") {
			s.t.Errorf("a failure is %+v", f)
		}
	}
	if left := s.unwritten(); len(left) != len(names) {
		s.t.Errorf("%d objects were not written, want %d: %v", len(left), len(names), left)
	}
}

// unnamed counts the failures without a name.
func unnamed(result Result) int64 {
	named := int64(0)
	for _, f := range result.Failed {
		if f.Name != "" {
			named++
		}
	}
	return result.Progress.Failed.Sum() - named
}

// TestUnreadableAnywhere: at random places no object that can be read is left, and one that
// cannot is counted, whatever the server says of it.
func TestUnreadableAnywhere(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 0))
			s := startServer(t, 0)
			for range 200 {
				s.create(types.NamespacedName{Namespace: fmt.Sprint("ns-", random.IntN(4)), Name: fmt.Sprintf("pod-%x", random.IntN(1<<20))})
			}
			all := slices.SortedFunc(maps.Keys(s.objects), func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
			var names []types.NamespacedName
			for _, n := range all {
				if random.IntN(20) == 0 {
					names = append(names, n)
				}
			}
			s.breakAll(func(types.NamespacedName) string { return "it" }, names...)
			result, err := s.run(Options{PageSize: 1 + random.IntN(100)})
			s.wantAround(result, err, names)
		})
	}
}

// TestUnreadableUncounted: where lists do not say how much is left, an object that cannot be
// read is named if it is alone, and the others are migrated.
func TestUnreadableUncounted(t *testing.T) {
	s := startServer(t, 100)
	s.uncounted = true
	names := []types.NamespacedName{name(0), name(50)}
	s.breakAll(func(types.NamespacedName) string { return "it" }, names...)
	result, err := s.run(Options{})
	s.wantAround(result, err, names)
	if unnamed(result) > 0 {
		t.Errorf("not named: %+v", result.Failed)
	}
}

// TestUnreadableResumed: a cursor behind an object that cannot be read counts it, and
// another run does not meet it again.
func TestUnreadableResumed(t *testing.T) {
	s := startServer(t, 100)
	names := []types.NamespacedName{name(3)}
	s.breakAll(func(types.NamespacedName) string { return "it" }, names...)
	var cursor Cursor
	_, err := s.engine().Run(t.Context(), target, impatient(Options{PageSize: 10}), func(r Report) {
		if r.Cursor.Progress.Failed.Sum() == 1 && cursor.Continue == "" {
			cursor = r.Cursor
		}
	})
	if err != nil || cursor.Continue == "" || len(cursor.Failed) != 1 || cursor.Failed[0].NamespacedName != name(3) {
		t.Fatalf("%+v, %v", cursor, err)
	}
	told := 0
	result, err := s.run(Options{Resume: cursor, Failed: func(Failure) { told++ }})
	if err != nil || result.Total != 100 || result.Progress.Failed.Sum() != 1 || told != 0 {
		t.Errorf("%+v, %v, told of %d", result, err, told)
	}
}

// TestUnreadableOwnTokens: where tokens are of a format of the server's own, the objects before
// the unreadable one are migrated, and the error says why no more are.
func TestUnreadableOwnTokens(t *testing.T) {
	s := startServer(t, 300)
	s.ownTokens = true
	s.breakAll(func(types.NamespacedName) string { return "it" }, name(151)) // the 151st: 100 are before it in ns-0
	result, err := s.run(Options{PageSize: 50})
	if !errors.Is(err, errNoWay) || !strings.Contains(err.Error(), "unable to decode it") || result.Patched != 150 || len(s.unwritten()) != 150 {
		t.Errorf("%+v, %v", result.Progress, err)
	}
}

// listing is an API that fails, or does something, before some lists.
type listing struct {
	API
	before func(from token, n int) error
	n      int
}

func (l *listing) List(ctx context.Context, r schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error) {
	l.n++
	if t, _ := readToken(from); l.before != nil {
		if err := l.before(t, l.n); err != nil {
			return nil, err
		}
	}
	return l.API.List(ctx, r, limit, from)
}

// runBefore runs with something before each list.
func (s *testServer) runBefore(o Options, before func(from token, n int) error) (Result, error) {
	return New(&listing{API: s.engine().api, before: before}).Run(s.t.Context(), target, impatient(o), nil)
}

func inDefault(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// TestUnreadableExpired: when the revision of a search is compacted, the search begins again
// with counts of one revision, and nothing that can be read is missed.
func TestUnreadableExpired(t *testing.T) {
	s := startServer(t, 0)
	for i := range 5 {
		s.create(inDefault(fmt.Sprint("a-", i)))
	}
	s.create(inDefault("b-1"))
	names := []types.NamespacedName{inDefault("b"), inDefault("x")}
	s.breakAll(func(types.NamespacedName) string { return "it" }, names...)
	s.create(inDefault("y"))
	compacted := int64(0)
	result, err := s.runBefore(Options{}, func(from token, _ int) error {
		if from.Start == beyond && compacted == 0 { // the search has begun
			s.mu.Lock()
			defer s.mu.Unlock()
			compacted = int64(s.revision)
			for i := range 30 {
				s.create(inDefault(fmt.Sprint("z-", i)))
			}
		}
		if from.Revision != newest && from.Revision <= compacted {
			return apierrors.NewResourceExpired("compacted")
		}
		return nil
	})
	if left := s.unwritten(); err != nil || compacted == 0 || len(left) != 2 || result.Progress.Failed.Sum() != 2 || result.Patched != 37 {
		t.Errorf("%+v, %v, not written: %v", result, err, left)
	}
}

// TestUnreadableExpiring: a server that keeps no revision ends neither the search nor the run.
func TestUnreadableExpiring(t *testing.T) {
	s := startServer(t, 30)
	s.breakAll(func(n types.NamespacedName) string { return n.Name }, name(10))
	result, err := s.runBefore(Options{PageSize: 7}, func(from token, _ int) error {
		if from.Revision != newest {
			return &apierrors.StatusError{ErrStatus: func() metav1.Status {
				from.Revision = newest
				st := apierrors.NewResourceExpired("compacted").Status()
				st.Continue = from.at(from.Start)
				return st
			}()}
		}
		return nil
	})
	s.wantAround(result, err, []types.NamespacedName{name(10)})
}

// TestUnreadableNotSeen: where nothing counts the objects before one that cannot be read, its
// failure says that there may be more.
func TestUnreadableNotSeen(t *testing.T) {
	s := startServer(t, 0)
	s.create(inDefault("web-1"))
	s.breakAll(func(types.NamespacedName) string { return "it" }, inDefault("web"), inDefault("z"))
	result, err := s.run(Options{})
	if err != nil || len(result.Failed) == 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	if left := s.unwritten(); len(left) > int(result.Progress.Failed.Sum()) && !strings.Contains(result.Failed[0].Detail, "may be more objects") {
		t.Errorf("nothing is said of %v: %+v", left, result.Failed)
	}
}

// TestUnreadableOnlyThere: a list that fails only as the first page goes on behind it.
func TestUnreadableOnlyThere(t *testing.T) {
	s := startServer(t, 20)
	result, err := s.runBefore(Options{}, func(from token, _ int) error {
		if from.Start == "" {
			return apierrors.NewInternalError(errors.New("oops"))
		}
		return nil
	})
	s.wantAround(result, err, nil)
}

// TestUnreadableChanged: an object that was deleted or mended while it was searched for is no failure.
func TestUnreadableChanged(t *testing.T) {
	for what, change := range map[string]func(*testServer){
		"deleted": func(s *testServer) {
			s.revision++
			delete(s.objects, name(10))
		},
		"mended": func(s *testServer) {
			s.revision++
			s.objects[name(10)].revision = s.revision
			s.mended[name(10)] = s.revision
		},
	} {
		for where, first := range map[string]int{"in the middle": 20, "first": 0} {
			t.Run(what+" "+where, func(t *testing.T) {
				s := startServer(t, first)
				s.breakAll(func(n types.NamespacedName) string { return n.Name }, name(10))
				all, changed := len(s.objects), false
				result, err := s.runBefore(Options{}, func(from token, _ int) error {
					if from.Start == beyond+"\x00" || changed || from.Start == "" || from.Start == beyond {
						return nil
					}
					s.mu.Lock()
					defer s.mu.Unlock()
					change(s)
					changed = true
					return nil
				})
				if err != nil || !changed || result.Progress.Failed.Sum() != 0 || len(s.unwritten()) > 0 {
					t.Errorf("of %d: %+v, %v", all, result, err)
				}
			})
		}
	}
}

// TestUnreadableForAWhile: a server that fails at everything for a while, in the same words,
// makes no object fail.
func TestUnreadableForAWhile(t *testing.T) {
	s := startServer(t, 300)
	var until time.Time
	result, err := s.runBefore(Options{PageSize: 50, WebhookPatience: 30 * time.Second}, func(from token, n int) error {
		if n == 2 {
			until = time.Now().Add(2 * time.Second)
		}
		if n > 1 && time.Now().Before(until) && from.Start <= "ns-2/o-0299" {
			return broken("it")
		}
		return nil
	})
	s.wantAround(result, err, nil)
}
