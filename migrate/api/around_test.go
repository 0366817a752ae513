package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// broken is the error of a server that cannot decode a value.
func broken(words string) error {
	return apierrors.NewInternalError(errors.New("unable to decode " + words))
}

// breakAll makes these objects unreadable, and creates those that do not exist.
func (s *testServer) breakAll(words func(types.NamespacedName) string, names ...types.NamespacedName) {
	for _, n := range names {
		if s.objects[n] == nil {
			s.create(n)
		}
		s.broken[n] = broken(words(n))
	}
}

// TestUnreadable: objects that make every list with them fail are named, wherever they are, also if several are
// neighbours, and all other objects are migrated. Each such object costs few lists.
func TestUnreadable(t *testing.T) {
	ns := func(namespace, name string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: name}
	}
	every := func(from, step int) (names []types.NamespacedName) {
		for i := from; i < 300; i += step {
			names = append(names, name(i))
		}
		return names
	}
	for what, names := range map[string][]types.NamespacedName{
		"in the middle":                        {name(151)},
		"first":                                {ns("a", "first")},
		"last":                                 {ns("zz", "last-0.x")},
		"only in its namespace, beside others": {ns("ns-0", "zzz"), ns("ns-01", "a"), ns("ns-1", "a")},
		"a prefix of another":                  {ns("ns-1", "o-0001"), ns("ns-1", "o-00011"), ns("ns-1", "o-0004-x")},
		"every seventh":                        every(0, 7),
		"more in a row than are named at once": append(every(0, 3), every(1, 3)...),
		"all":                                  every(0, 1),
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, 300)
			s.breakAll(apart, names...)
			result, err := s.run(Options{PageSize: 50})
			s.wantAround(result, err, names)
			// To find an object, pages are halved until one object is left; behind it, they are doubled as
			// often.
			if s.lists > 300/50+14*len(names)*len(target.Versions) {
				t.Errorf("after %d lists", s.lists)
			}
		})
	}
}

// TestUnreadableWithoutNamespace: the same for objects of a cluster-scoped resource, whose keys have no
// namespace.
func TestUnreadableWithoutNamespace(t *testing.T) {
	s := startServer(t, 0)
	s.withoutNamespaces = true
	for i := range 20 {
		s.create(types.NamespacedName{Name: fmt.Sprintf("o-%04d", i)})
	}
	names := []types.NamespacedName{{Name: "o-0007"}, {Name: "o-0008"}, {Name: "über"}}
	s.breakAll(apart, names...)
	result, err := s.run(Options{PageSize: 5})
	s.wantAround(result, err, names)
}

// wantAround asserts that these objects failed and all others were migrated.
func (s *testServer) wantAround(result Result, err error, names []types.NamespacedName) {
	s.t.Helper()
	n := int64(len(names))
	if err != nil || result.Progress.Failed[DoesNotDecode] != n || result.Progress.Failed.Sum() != n ||
		result.Total != int64(len(s.objects)) || result.Patched+result.Overtaken != result.Total-n {
		s.t.Errorf("%+v, %v", result.Progress, err)
	}
	for _, f := range result.Failed {
		if s.broken[f.NamespacedName] == nil || f.Reason != DoesNotDecode || !strings.Contains(f.Detail, "unable to decode") {
			s.t.Errorf("a failure is %+v", f)
		}
	}
	if left := s.unwritten(); len(left) != len(names) {
		s.t.Errorf("%d objects were not written, want %d: %v", len(left), len(names), left)
	}
}

// TestUnreadableResumed: a run that begins at a cursor behind an unreadable object counts that object, and does
// not read it again.
func TestUnreadableResumed(t *testing.T) {
	s := startServer(t, 100)
	names := []types.NamespacedName{name(3)}
	s.breakAll(alike, names...)
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

// TestUnreadableNoWay: if the server does not name the object that it cannot read, or its continue tokens have
// another format, the objects before that one are migrated, and the error says where it is.
func TestUnreadableNoWay(t *testing.T) {
	for what, be := range map[string]func(*testServer){
		"nameless":   func(s *testServer) { s.nameless = true },
		"own tokens": func(s *testServer) { s.ownTokens = true },
	} {
		t.Run(what, func(t *testing.T) {
			s := startServer(t, 300)
			be(s)
			s.breakAll(alike, name(151)) // the 151st object, behind the 100 of ns-0
			result, err := s.run(Options{PageSize: 50})
			if !errors.Is(err, errNoWay) || !strings.Contains(err.Error(), "unable to decode it") || result.Patched != 150 || len(s.unwritten()) != 150 {
				t.Errorf("%+v, %v", result.Progress, err)
			}
			if s.nameless && !strings.Contains(err.Error(), `behind "`+name(148).String()+`"`) {
				t.Errorf("the place is not told: %v", err)
			}
		})
	}
}

// listing is an API that calls before in front of each list, which may make the list fail.
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

// runBefore runs a migration with such an API.
func (s *testServer) runBefore(o Options, before func(from token, n int) error) (Result, error) {
	return New(&listing{API: s.engine().api, before: before}).Run(s.t.Context(), target, impatient(o), nil)
}

func inDefault(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: "default", Name: name}
}

// TestUnreadableExpiring: a server that compacts every revision at once makes neither the search nor the run
// endless.
func TestUnreadableExpiring(t *testing.T) {
	s := startServer(t, 30)
	s.breakAll(apart, name(10))
	result, err := s.runBefore(Options{PageSize: 7}, func(from token, _ int) error {
		if from.Revision != newest {
			return &apierrors.StatusError{ErrStatus: func() metav1.Status {
				from.Revision = newest
				st := apierrors.NewResourceExpired("compacted").Status()
				st.Continue = from.text()
				return st
			}()}
		}
		return nil
	})
	s.wantAround(result, err, []types.NamespacedName{name(10)})
}

// TestUnreadableChanged: an object that is deleted or repaired after it made a list fail does not count as
// failed.
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
		for where, others := range map[string]int{"in the middle": 20, "alone": 0} {
			t.Run(what+" "+where, func(t *testing.T) {
				s := startServer(t, others)
				s.breakAll(apart, name(10))
				all := len(s.objects)
				api := &looking{API: s.engine().api, before: func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					if s.objects[name(10)] != nil && s.mended[name(10)] == 0 {
						change(s)
					}
				}}
				result, err := New(api).Run(t.Context(), target, impatient(Options{}), nil)
				if err != nil || !api.looked || result.Progress.Failed.Sum() != 0 || result.Total != int64(all) || len(s.unwritten()) > 0 {
					t.Errorf("of %d: %+v, %v", all, result, err)
				}
			})
		}
	}
}

// looking is an API that calls before in front of the first read of an object.
type looking struct {
	API
	before func()
	looked bool
}

func (l *looking) Get(ctx context.Context, r schema.GroupVersionResource, object types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	l.looked = true
	l.before()
	return l.API.Get(ctx, r, object)
}

// TestUnreadableForOnce: a list that fails once, with an error that names no object, is repeated.
func TestUnreadableForOnce(t *testing.T) {
	s := startServer(t, 30)
	s.breakAll(apart, name(10))
	result, err := s.runBefore(Options{PageSize: 7}, func(_ token, n int) error {
		if n%3 == 1 {
			return broken("it, for once")
		}
		return nil
	})
	s.wantAround(result, err, []types.NamespacedName{name(10)})
}

// TestUnreadableForAWhile: if the server fails at all requests for a while, no object counts as failed.
func TestUnreadableForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		for i := range 300 {
			s.create(name(i))
		}
		d := &direct{s: s}
		var once sync.Once
		d.before = func(from token) error {
			if from.Start == "" {
				return nil
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			once.Do(func() {
				for i := range 300 {
					s.broken[name(i)] = broken("it")
				}
				time.AfterFunc(20*time.Second, func() {
					s.mu.Lock()
					defer s.mu.Unlock()
					clear(s.broken)
				})
			})
			return nil
		}
		result, err := d.run(Options{PageSize: 50, WebhookPatience: 30 * time.Second})
		if err != nil || result.Patched+result.Progress.Failed.Sum() != 300 || result.Progress.Failed.Sum() > 50 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// notFound is the answer to a request for a resource, or a version of it, that is not served.
func notFound(r *http.Request) error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, r.Method, widgets, "", "404 page not found", 0, true)
}

// TestUnreadableInOneVersion: whether an object exists cannot be concluded from another version that is not
// served, or that does not answer.
func TestUnreadableInOneVersion(t *testing.T) {
	for _, name := range []types.NamespacedName{{Namespace: "aa", Name: "zz"}, {Namespace: "aa", Name: "a"}, {Namespace: "ns-1", Name: "o-0004-x"}} {
		for what, other := range map[string]func(*http.Request) error{
			"not served": notFound,
			"busy":       func(*http.Request) error { return apierrors.NewServiceUnavailable("starting") },
		} {
			t.Run(name.String()+" "+what, func(t *testing.T) {
				s := startServer(t, 30)
				s.breakAll(apart, name)
				s.answer = func(r *http.Request, _ types.NamespacedName) error {
					if versionIn(r) == "v1" {
						return other(r)
					}
					return nil
				}
				result, err := s.run(Options{PageSize: 10})
				s.wantAround(result, err, []types.NamespacedName{name})
			})
		}
	}
}

// TestUnreadableNotFoundOnce: two 404s for the resource's path do not mean that the object does not exist. No
// object behind it is left out.
func TestUnreadableNotFoundOnce(t *testing.T) {
	s := startServer(t, 30)
	unsound := types.NamespacedName{Namespace: "ns-1", Name: "zz"}
	s.breakAll(apart, unsound)
	missed := 0
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		if r.Method == http.MethodGet && name.Name == unsound.Name && missed < 2 {
			missed++
			return notFound(r)
		}
		return nil
	}
	result, err := s.run(Options{PageSize: 10})
	if !apierrors.IsNotFound(err) || result.Progress.Failed.Sum() > 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	result, err = s.run(Options{PageSize: 10, Resume: result.Cursor})
	s.wantAround(result, err, []types.NamespacedName{unsound})
}
