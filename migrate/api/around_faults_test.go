package api

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
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

// direct is the API of the test's server without a network, so that a test can run in a synctest
// bubble, whose clock jumps.
type direct struct {
	s *testServer
	// before, if not nil, is called before each list.
	before func(from token) error

	mu    sync.Mutex
	lists int
}

var _ API = (*direct)(nil)

// List implements API.
func (d *direct) List(ctx context.Context, _ schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lists++
	if t, _ := readToken(from); d.before != nil {
		if err := d.before(t); err != nil {
			return nil, err
		}
	}
	query := url.Values{"limit": {fmt.Sprint(limit)}, "continue": {from}}
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	found, err := d.s.list(&http.Request{Method: http.MethodGet, URL: &url.URL{RawQuery: query.Encode()}})
	if err != nil {
		return nil, err
	}
	return found.(*metav1.PartialObjectMetadataList), nil
}

// Get implements API.
func (d *direct) Get(_ context.Context, _ schema.GroupVersionResource, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	found, err := d.s.serve(&http.Request{Method: http.MethodGet}, name)
	if err != nil {
		return nil, err
	}
	return found.(*metav1.PartialObjectMetadata), nil
}

// Patch implements API.
func (d *direct) Patch(_ context.Context, _ schema.GroupVersionResource, name types.NamespacedName, patch []byte) error {
	_, err := d.s.serve(&http.Request{
		Method: http.MethodPatch, Header: http.Header{"Content-Type": {string(types.MergePatchType)}}, Body: io.NopCloser(bytes.NewReader(patch)),
	}, name)
	return err
}

// run runs a migration in one version, for an hour of the bubble's clock at most.
func (d *direct) run(o Options) (Result, error) {
	ctx, cancel := context.WithTimeout(d.s.t.Context(), time.Hour)
	defer cancel()
	return New(d).Run(ctx, Target{GroupResource: widgets, Versions: []string{"v2"}}, impatient(o), nil)
}

func alike(types.NamespacedName) string { return "it" }

func apart(n types.NamespacedName) string { return n.String() }

// goOnAt is the error of a server for a list whose revision is compacted; it has a token to go on
// with.
func goOnAt(t token) error {
	status := apierrors.NewResourceExpired("compacted").Status()
	status.Continue = t.text()
	return &apierrors.StatusError{ErrStatus: status}
}

// inWorld runs a test in a synctest bubble, with sound objects and with some that cannot be read.
func inWorld(t *testing.T, sound []string, words func(types.NamespacedName) string, unsound []string, f func(*testing.T, *testServer, *direct)) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t)
		for _, n := range sound {
			s.create(inDefault(n))
		}
		for _, n := range unsound {
			s.breakAll(words, inDefault(n))
		}
		f(t, s, &direct{s: s})
	})
}

// TestUnreadableElsewhere: a server that sends a new token to go on with in each answer is not
// followed for ever.
func TestUnreadableElsewhere(t *testing.T) {
	var names []string
	for i := range 20 {
		names = append(names, fmt.Sprint("o-", i))
	}
	inWorld(t, names, alike, nil, func(t *testing.T, _ *testServer, d *direct) {
		other := int64(0)
		d.before = func(from token) error {
			if from.Start == "" {
				return nil
			}
			if other++; other > 1000 {
				return errors.New("it is followed without end")
			}
			from.Revision = -1 - other
			return goOnAt(from)
		}
		if result, err := d.run(Options{PageSize: 5}); !apierrors.IsResourceExpired(err) {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

var aroundSeeds = flag.Int("around-seeds", 40, "random worlds of TestUnreadableWhateverHappens for each kind of fault")

// TestUnreadableWhateverHappens: in random worlds some lists fail, objects are created, deleted and
// repaired, and revisions are compacted. A run must end, count no object twice, and must not leave
// out an object without naming it.
func TestUnreadableWhateverHappens(t *testing.T) {
	for _, how := range []faults{{}, {flaky: true}, {changes: true}, {changes: true, expires: true}, {flaky: true, changes: true, expires: true}} {
		t.Run(fmt.Sprintf("%+v", how), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(*aroundSeeds) {
				synctest.Test(t, func(t *testing.T) { newWorld(t, seed, how).check() })
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
		})
	}
}

// faults are the kinds of faults that happen in a world.
type faults struct{ flaky, changes, expires bool }

// world is a random world, from a seed.
type world struct {
	*direct
	t       *testing.T
	how     faults
	random  *rand.Rand
	words   func(types.NamespacedName) string
	options Options
	// One in rate lists has a fault or a change; changes happen before the first lists only, as
	// many as within.
	rate, within int
	begin        map[types.NamespacedName]string // the uids of the objects at the begin
	ever         int                             // the number of objects that were ever created
	compacted    int64
	beginnings   int
}

func newWorld(t *testing.T, seed uint64, how faults) *world {
	s := newTestServer(t)
	w := &world{direct: &direct{s: s}, t: t, how: how, random: rand.New(rand.NewPCG(seed, 7)), within: 3000, begin: map[types.NamespacedName]string{}}
	w.words = []func(types.NamespacedName) string{
		alike, apart,
		func(n types.NamespacedName) string { return n.Namespace },
		func(n types.NamespacedName) string { return fmt.Sprint(len(n.Name) % 2) },
	}[w.random.IntN(4)]
	density := 1 + w.random.IntN(10)
	for range 1 + w.random.IntN(60) {
		w.create(density)
	}
	for n, o := range s.objects {
		w.begin[n] = o.uid
	}
	s.uncounted = w.random.IntN(4) == 0
	w.rate = 5 + w.random.IntN(300)
	w.options = Options{PageSize: 1 + w.random.IntN(30), MaxNamed: 10_000}
	w.before = w.happens
	return w
}

// create makes an object; one in density cannot be read.
func (w *world) create(density int) {
	n := types.NamespacedName{Namespace: fmt.Sprint("ns-", w.random.IntN(3)), Name: fmt.Sprintf("pod-%x", w.random.IntN(1<<[]int{6, 10, 20}[w.random.IntN(3)]))}
	if w.random.IntN(10) == 0 {
		n.Name += "-x"
	}
	if w.s.objects[n] != nil || w.s.broken[n] != nil {
		return
	}
	w.ever++
	w.s.create(n)
	if w.random.IntN(density) == 0 {
		w.s.breakAll(w.words, n)
	}
}

// happens makes the faults and changes before a list.
func (w *world) happens(from token) error {
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if from.Start == "" {
		w.beginnings++
	}
	if w.how.flaky && w.random.IntN(w.rate) == 0 {
		return apierrors.NewInternalError(errors.New("unable to decode, for once"))
	}
	changing := w.lists < w.within
	if w.how.changes && changing && w.random.IntN(w.rate) == 0 {
		w.change()
	}
	if w.how.expires && changing && w.random.IntN(w.rate) == 0 {
		w.compacted = int64(w.s.revision)
		w.s.revision++
	}
	if from.Start != "" && from.Revision != newest && from.Revision <= w.compacted {
		from.Revision = newest
		return goOnAt(from)
	}
	return nil
}

func (w *world) change() {
	s := w.s
	s.revision++
	switch w.random.IntN(3) {
	case 0:
		if n, ok := pick(w.random, s.objects); ok {
			delete(s.objects, n)
			delete(s.broken, n)
			delete(s.mended, n)
		}
	case 1:
		if n, ok := pick(w.random, s.broken); ok && s.objects[n] != nil && s.mended[n] == 0 {
			s.objects[n].revision, s.mended[n] = s.revision, s.revision
		}
	case 2:
		w.create(2)
	}
}

// pick returns a random key of a map.
func pick[V any](random *rand.Rand, m map[types.NamespacedName]V) (types.NamespacedName, bool) {
	var all []types.NamespacedName
	for n := range m {
		all = append(all, n)
	}
	if len(all) == 0 {
		return types.NamespacedName{}, false
	}
	slices.SortFunc(all, func(a, b types.NamespacedName) int { return strings.Compare(a.String(), b.String()) })
	return all[random.IntN(len(all))], true
}

func (w *world) check() {
	result, err := w.run(w.options)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			w.t.Errorf("it does not end: %+v", result.Progress)
		}
		return
	}
	p := result.Progress
	if p.Total != p.Patched+p.Overtaken+p.Gone+p.Failed.Sum() || min(p.Total, p.Patched, p.Overtaken, p.Gone, p.Failed.Sum()) < 0 {
		w.t.Errorf("%+v", p)
	}
	if w.beginnings < 2 && int(p.Total) > w.ever {
		w.t.Errorf("of %d objects there ever were: %+v", w.ever, p)
	}
	for n, uid := range w.begin {
		if o := w.s.objects[n]; o != nil && o.uid == uid && o.written == 0 && w.s.mended[n] == 0 && !slices.ContainsFunc(result.Failed, func(f Failure) bool { return f.NamespacedName == n }) {
			w.t.Errorf("%v was not written, and nothing is said of it: %+v", n, result)
		}
	}
}
