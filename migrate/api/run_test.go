package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

// TestEveryObject: each object is patched once, several at a time, and the last progress is that of the result.
func TestEveryObject(t *testing.T) {
	s := startServer(t, 700)
	// The server answers the first patch only when the second has arrived.
	second := make(chan struct{})
	var patches atomic.Int64
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if r.Method != http.MethodPatch {
			return nil
		}
		switch patches.Add(1) {
		case 1:
			select {
			case <-second:
			case <-time.After(time.Minute):
			}
		case 2:
			close(second)
		}
		return nil
	}
	var last Report
	result, err := s.engine().Run(t.Context(), target, Options{PageSize: 100}, func(r Report) {
		if r.Total < last.Total || r.Patched < last.Patched || r.Cursor.Progress.Patched > r.Patched {
			t.Errorf("after %+v it says %+v", last, r)
		}
		last = r
	})
	must(t, err)
	if result.Progress != (Progress{Expected: 700, Total: 700, Patched: 700}) || last.Progress != result.Progress {
		t.Errorf("result %+v, last report %+v", result, last)
	}
	for name, n := range s.asked {
		if n != 1 {
			t.Errorf("%s was patched %d times", name, n)
		}
	}
	if left := s.unwritten(); len(left) > 0 {
		t.Errorf("not written: %v", left)
	}
	if s.most < 2 {
		t.Errorf("%d patches were under way", s.most)
	}
}

// TestThrottled: a server that accepts four patches at a time gets few more. The engine waits for as long as the server
// says, and migrates all objects in the end.
func TestThrottled(t *testing.T) {
	s := startServer(t, 400)
	var mu sync.Mutex
	var sent []time.Time // answers that the engine has not taken in yet
	var closed time.Time
	early, most := 0, 0
	crowded := make(chan struct{})
	var once sync.Once
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if r.Method != http.MethodPatch {
			return nil
		}
		s.mu.Lock()
		under := s.under
		s.mu.Unlock()
		if under > 4 {
			once.Do(func() { close(crowded) })
		}
		select { // the first patches wait until they are too many
		case <-crowded:
		case <-r.Context().Done():
		}
		mu.Lock()
		defer mu.Unlock()
		if time.Now().Before(closed) {
			early++
			most = max(most, early)
		}
		if under <= 4 {
			return nil
		}
		sent = append(sent, time.Now())
		return apierrors.NewTooManyRequests("too many", 1)
	}
	// A worker waits for a second, and for no shorter time, once the engine has taken in an answer.
	waits := watchedClock{longTimer: func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		if d < time.Second {
			return
		}
		if time.Now().After(closed) {
			early = 0
		}
		closed, sent = sent[0].Add(900*time.Millisecond), sent[1:]
	}}
	const parallel = 12
	result, err := s.run(Options{MaxParallel: parallel, Clock: waits})
	must(t, err)
	if result.Patched != 400 || result.Throttled == 0 || result.Throttled > 200 {
		t.Errorf("result %+v", result)
	}
	// Only patches that were under way when the engine took in the server's answer may come early.
	if closed.IsZero() || most >= parallel || len(s.unwritten()) > 0 {
		t.Errorf("%d patches came early, %d objects are left", most, len(s.unwritten()))
	}
}

// TestContinueExpires: no object is left out if a continue token has expired, whether or not the server sends a new one.
func TestContinueExpires(t *testing.T) {
	for _, goesOn := range []bool{true, false} {
		t.Run(fmt.Sprintf("goes on %t", goesOn), func(t *testing.T) {
			s := startServer(t, 300)
			expired := 0
			s.answer = func(r *http.Request, _ types.NamespacedName) error {
				token := r.URL.Query().Get("continue")
				if r.Method != http.MethodGet || token == "" || expired == 2 {
					return nil
				}
				expired++
				s.mu.Lock()
				defer s.mu.Unlock()
				clear(s.pages)
				s.create(types.NamespacedName{Namespace: "ns-9", Name: fmt.Sprint("late-", expired)})
				err := apierrors.NewResourceExpired("too old")
				if goesOn {
					place, _ := readToken(token)
					place.Revision = newest
					err.ErrStatus.Continue = place.text()
				}
				return err
			}
			result, err := s.run(Options{PageSize: 50})
			must(t, err)
			left := slices.DeleteFunc(s.unwritten(), func(n types.NamespacedName) bool { return n.Namespace == "ns-9" })
			if expired != 2 || len(left) > 0 || result.Total != result.Patched+result.Overtaken+result.Gone {
				t.Errorf("expired %d times, left %v, result %+v", expired, left, result)
			}
		})
	}
}

// TestOvertaken: an object that another client has written, deleted or created again since it was listed is not written.
// It is patched once, and does not count as failed.
func TestOvertaken(t *testing.T) {
	s := startServer(t, 40)
	updated, deleted, replaced := name(3), name(7), name(11)
	var once sync.Once
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if r.Method == http.MethodPatch {
			once.Do(func() {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.revision++
				s.objects[updated].revision = s.revision
				delete(s.objects, deleted)
				s.create(replaced)
			})
		}
		return nil
	}
	result, err := s.run(Options{MaxParallel: 1})
	must(t, err)
	if result.Progress != (Progress{Expected: 40, Total: 40, Patched: 37, Overtaken: 1, Gone: 2}) {
		t.Errorf("result %+v", result)
	}
	for _, n := range []types.NamespacedName{updated, deleted, replaced} {
		if s.asked[n] != 1 || s.objects[n] != nil && s.objects[n].written != 0 {
			t.Errorf("%s was patched %d times", n, s.asked[n])
		}
	}
}

// TestFailures: each kind of failed object has its own reason, does not keep others from being migrated, and is tried
// again only if that may help.
func TestFailures(t *testing.T) {
	webhook := `conversion webhook for example.com/v1, Kind=Widget failed: it has no spec.size`
	for _, test := range []struct {
		why    string
		err    error
		reason Reason
		asked  int
	}{
		{"validation", apierrors.NewInvalid(widgets.WithVersion("").GroupVersion().WithKind("Widget").GroupKind(), "x", field.ErrorList{field.Required(field.NewPath("spec"), "")}), Rejected, 1},
		{"admission", apierrors.NewForbidden(widgets, "x", errors.New("a policy denies it")), Rejected, 1},
		{"conflict", apierrors.NewConflict(widgets, "x", errors.New("says a policy")), Conflict, 1},
		{"size of the request", apierrors.NewRequestEntityTooLargeError("limit is 3 MiB"), TooLarge, 1},
		{"size in etcd", apierrors.NewInternalError(errors.New("etcdserver: request is too large")), TooLarge, 1},
		{"size of what etcd is sent", apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = trying to send message larger than max (2097200 vs. 2097152)")), TooLarge, 1},
		{"webhook", apierrors.NewInternalError(errors.New(webhook)), WebhookFailed, attempts},
		{"damaged", apierrors.NewInternalError(errors.New("couldn't get version/kind; json parse error")), DoesNotDecode, attempts},
		{"a panic", apierrors.NewInternalError(errors.New("runtime error")), Rejected, attempts},
	} {
		t.Run(test.why, func(t *testing.T) {
			t.Parallel()
			s := startServer(t, 60)
			bad := []types.NamespacedName{name(5), name(6), name(30)}
			s.answer = func(r *http.Request, name types.NamespacedName) error {
				if r.Method == http.MethodPatch && slices.Contains(bad, name) {
					return test.err
				}
				return nil
			}
			var mu sync.Mutex
			told := map[types.NamespacedName]Reason{}
			result, err := s.run(Options{PageSize: 20, MaxNamed: 2, Failed: func(f Failure) {
				mu.Lock()
				defer mu.Unlock()
				told[f.NamespacedName] = f.Reason
			}})
			must(t, err)
			if result.Failed[0].Reason != test.reason || result.Failed[0].Detail == "" || len(result.Failed) != 2 || result.Progress.Failed[test.reason] != 3 || result.Patched != 57 {
				t.Errorf("result %+v", result)
			}
			for _, n := range bad {
				if reason, ok := told[n]; !ok || reason != test.reason || s.asked[n] != test.asked {
					t.Errorf("%s: told %v, %v, asked for %d times", n, ok, reason, s.asked[n])
				}
			}
			if left := s.unwritten(); len(left) != 3 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// TestWebhookAway: no object fails if a conversion webhook is away for a while, even for longer than a few attempts take.
// If the webhook stays away, exactly the objects that need it fail, and all of them together take only the time of one.
func TestWebhookAway(t *testing.T) {
	const failed = "conversion webhook for example.com/v1, Kind=Widget failed: "
	for text, want := range map[string]answer{
		`Post "https://x/convert?timeout=30s": connect: connection refused`: away,
		"the server is currently unable to handle the request":              away,
		"the server could not find the requested resource":                  away,
		"it has no spec.size": unsure,
	} {
		if v := judge(apierrors.NewInternalError(errors.New(failed + text))); v.answer != want || v.reason != WebhookFailed {
			t.Errorf("%s: %+v", text, v)
		}
	}
	for _, text := range []string{"failed to decrypt DEK, error: rpc error: code = Unavailable desc = connection error", "got unexpected nil transformer"} {
		if v := judge(apierrors.NewInternalError(errors.New("unable to transform key: " + text))); v.answer != away || v.reason != DoesNotDecode {
			t.Errorf("%s: %+v", text, v)
		}
	}
	err := apierrors.NewInternalError(errors.New(failed + `Post "https://x": EOF`))
	const needing, patience = 10, 500 * time.Millisecond
	s := startServer(t, 300)
	needs := func(name types.NamespacedName) bool { return strings.HasPrefix(name.Name, "o-000") }
	lists, patches := 5, needing*(attempts+1)
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		left := &patches
		switch {
		case name.Name == "":
			left = &lists
		case !needs(name):
			return nil
		}
		if *left--; *left >= 0 {
			return err
		}
		return nil
	}
	if result, err := s.run(Options{WebhookPatience: time.Minute}); err != nil || result.Patched != 300 {
		t.Fatalf("%+v, %v", result, err)
	}
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		if r.Method == http.MethodPatch && needs(name) {
			return err
		}
		return nil
	}
	const parallel = 4
	clear(s.asked)
	if result, err := s.run(Options{WebhookPatience: patience, MaxParallel: parallel}); err != nil || result.Patched != 300-needing || result.Progress.Failed[WebhookFailed] != needing {
		t.Fatalf("%+v, %v", result, err)
	}
	waited := 0
	for name, n := range s.asked {
		if needs(name) && n > 1 {
			waited++
		}
	}
	if waited == 0 || waited > parallel {
		t.Errorf("%d objects were tried again, want those that were under way when it went away", waited)
	}
	s.answer = func(*http.Request, types.NamespacedName) error { return err }
	if _, err := s.run(Options{WebhookPatience: patience}); err == nil || !strings.Contains(err.Error(), "EOF") {
		t.Errorf("a list that needs the webhook: %v", err)
	}
}

// skippingClock stands still but for the seconds that it is set ahead. Its timers are real.
type skippingClock struct {
	clock.RealClock
	ahead *atomic.Int64
}

func (c skippingClock) Now() time.Time {
	return time.Unix(1000+c.ahead.Load(), 0)
}

func (c skippingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// TestHindered: an error that keeps the whole run waiting is reported after a while, until a page is listed or an object
// written.
func TestHindered(t *testing.T) {
	for _, method := range []string{http.MethodGet, http.MethodPatch} {
		s, failures := startServer(t, 1), 3
		c := skippingClock{ahead: &atomic.Int64{}}
		s.answer = func(r *http.Request, _ types.NamespacedName) error {
			if r.Method != method {
				return nil
			}
			if failures--; failures < 0 {
				return nil
			}
			c.ahead.Add(2)
			return apierrors.NewInternalError(errors.New(`conversion webhook for example.com/v1, Kind=Widget failed: Post "https://x": context deadline exceeded`))
		}
		var told []string
		_, err := s.engine().Run(t.Context(), target, Options{Clock: c, WebhookPatience: time.Minute}, func(r Report) { told = append(told, r.Hindered) })
		if err != nil || len(told) != 4 || told[0] != "" || told[1] != "" || !strings.Contains(told[2], "context deadline exceeded") || told[3] != "" {
			t.Errorf("%s fails for 2, 4 and 6 s: %q is told, %v", method, told, err)
		}
	}
}

// TestHinderedWhileAllFails: objects that fail for a conversion webhook that does not answer are no progress; one that it
// refuses is.
func TestHinderedWhileAllFails(t *testing.T) {
	s, asked := startServer(t, 4), 0
	c := skippingClock{ahead: &atomic.Int64{}}
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if r.Method != http.MethodPatch {
			return nil
		}
		c.ahead.Add(10)
		if asked++; asked == 5 { // the first object is tried twice
			return apierrors.NewBadRequest("no")
		}
		return apierrors.NewInternalError(errors.New(`conversion webhook for example.com/v1, Kind=Widget failed: Post "https://x": context deadline exceeded`))
	}
	told := map[int64]string{}
	_, err := s.engine().Run(t.Context(), target, Options{Clock: c, MaxParallel: 1, WebhookPatience: time.Nanosecond}, func(r Report) { told[r.Failed.Sum()] = r.Hindered })
	for failed := int64(1); failed < 4; failed++ {
		if !strings.Contains(told[failed], "context deadline exceeded") {
			t.Errorf("after %d failures it says %q", failed, told[failed])
		}
	}
	if err != nil || told[4] != "" {
		t.Errorf("after all it says %q, %v", told[4], err)
	}
}

// TestServerAway: the run waits for a server that is away for a while. A server that stays away ends the run, and the next
// run goes on at its cursor.
func TestServerAway(t *testing.T) {
	s := startServer(t, 300)
	away := map[string]error{"no answer": errors.New("away"), "503": apierrors.NewServiceUnavailable("starting")}
	for _, text := range []string{
		"etcdserver: request timed out, possibly due to previous leader failure", "etcdserver: leader changed", "etcdserver: no leader",
		"rpc error: code = Unavailable desc = error reading from server: EOF", "etcdserver: mvcc: database space exceeded",
	} {
		away[text] = apierrors.NewInternalError(errors.New(text))
	}
	for kind, err := range away {
		failing := 20
		lists := 2
		s.answer = func(r *http.Request, _ types.NamespacedName) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			left := &failing
			if r.Method == http.MethodGet {
				left = &lists
			}
			if *left--; *left >= 0 {
				return err
			}
			return nil
		}
		if result, err := s.run(Options{WebhookPatience: time.Minute}); err != nil || result.Patched != 300 {
			t.Errorf("%s: %+v, %v", kind, result, err)
		}
	}
	taken := 0
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if taken++; r.Method == http.MethodPatch && taken > 150 {
			return apierrors.NewServiceUnavailable("gone")
		}
		return nil
	}
	first, err := s.run(Options{PageSize: 20, Patience: 300 * time.Millisecond})
	if !errors.Is(err, ErrUnavailable) || first.Patched == 0 || first.Cursor.Continue == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	s.answer = nil
	clear(s.asked)
	second, err := s.run(Options{PageSize: 20, Resume: first.Cursor})
	must(t, err)
	done := int(first.Cursor.Progress.Patched)
	if second.Total != 300 || second.Patched+second.Overtaken != 300 || len(s.asked) != 300-done {
		t.Errorf("%d were done; then %d were asked for: %+v", done, len(s.asked), second)
	}
}

// pausing is a clock that records the pauses it was asked for, and makes them much shorter.
type pausing struct {
	clock.WithTicker
	mu     sync.Mutex
	pauses []time.Duration
}

// NewTimer implements clock.Clock.
func (p *pausing) NewTimer(d time.Duration) clock.Timer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pauses = append(p.pauses, d)
	return p.WithTicker.NewTimer(d / 50)
}

// TestBackoff: the pauses between the attempts for an object become longer, up to a bound, whether the server is away or
// answers with an error.
func TestBackoff(t *testing.T) {
	for kind, err := range map[string]error{"away": errors.New("away"), "failing": apierrors.NewInternalError(errors.New("runtime error"))} {
		s := startServer(t, 1)
		failing := 10
		if kind == "failing" {
			failing = attempts - 1
		}
		left := failing
		s.answer = func(r *http.Request, _ types.NamespacedName) error {
			if r.Method == http.MethodPatch {
				if left--; left >= 0 {
					return err
				}
			}
			return nil
		}
		waited := &pausing{WithTicker: clock.RealClock{}}
		if result, err := s.run(Options{MaxParallel: 1, Clock: waited}); err != nil || result.Patched != 1 {
			t.Fatalf("%s: %+v, %v", kind, result, err)
		}
		backoff := minBackoff
		for i, pause := range waited.pauses {
			if most := backoff + time.Duration(jitter*float64(backoff)); pause < backoff || pause > most {
				t.Errorf("%s: waited %s, the %d. time, want %s to %s", kind, pause, i+1, backoff, most)
			}
			backoff = min(2*backoff, maxBackoff)
		}
		if len(waited.pauses) != failing {
			t.Errorf("%s: waited %v, want %d times", kind, waited.pauses, failing)
		}
	}
}

// TestBackoffApart: objects that failed at the same time are not tried again at the same time, and none before the
// server's Retry-After is over.
func TestBackoffApart(t *testing.T) {
	const parallel = firstParallel
	for _, after := range []int{0, 1} {
		s := startServer(t, parallel)
		var together sync.WaitGroup
		together.Add(parallel)
		s.answer = func(r *http.Request, name types.NamespacedName) error {
			s.mu.Lock()
			first := r.Method == http.MethodPatch && s.asked[name] == 1
			s.mu.Unlock()
			if !first {
				return nil
			}
			together.Done()
			together.Wait()
			return apierrors.NewTooManyRequests("too many", after)
		}
		waited := &pausing{WithTicker: clock.RealClock{}}
		if result, err := s.run(Options{MaxParallel: parallel, Clock: waited}); err != nil || result.Patched != parallel {
			t.Fatalf("%+v, %v", result, err)
		}
		if pauses := slices.Compact(slices.Sorted(slices.Values(waited.pauses))); after == 0 && len(pauses) < 2 {
			t.Errorf("waited %v", waited.pauses)
		}
		if after > 0 && waited.pauses[0] != time.Second {
			t.Errorf("waited %v, want a second", waited.pauses)
		}
	}
}

// TestUnreadableToken: a run with a cursor that it cannot read begins at the first object.
func TestUnreadableToken(t *testing.T) {
	s := startServer(t, 30)
	result, err := s.run(Options{Resume: Cursor{Continue: "nonsense", Progress: Progress{Total: 12, Patched: 12}}})
	if err != nil || result.Progress != (Progress{Expected: 30, Total: 30, Patched: 30}) {
		t.Errorf("%+v, %v", result, err)
	}
}

// TestUnable: an error that is the same for every object, such as "method not allowed", ends the run at once.
func TestUnable(t *testing.T) {
	s := startServer(t, 100)
	s.answer = func(r *http.Request, _ types.NamespacedName) error {
		if r.Method == http.MethodPatch {
			return apierrors.NewMethodNotSupported(widgets, "patch")
		}
		return nil
	}
	if _, err := s.run(Options{}); !apierrors.IsMethodNotSupported(err) || len(s.asked) > 32 {
		t.Errorf("%v, after %d patches", err, len(s.asked))
	}
}

// TestOtherVersion: if the objects cannot be listed in the stored version, they are listed in another one; if they cannot
// be listed in any version, the run ends.
func TestOtherVersion(t *testing.T) {
	s := startServer(t, 30)
	broken := []string{"v2"}
	lists := 0
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		if name.Name != "" {
			return nil
		}
		lists++
		for _, v := range broken {
			if r.URL.Path == "/apis/example.com/"+v+"/widgets" {
				return apierrors.NewInternalError(errors.New("conversion webhook for x failed"))
			}
		}
		return nil
	}
	if result, err := s.run(Options{}); err != nil || result.Patched != 30 {
		t.Errorf("%+v, %v", result, err)
	}
	lists, broken = 0, []string{"v2", "v1"}
	// Pages of 25, 12 and so on in each version, then of a single object, several times; then the run ends.
	if _, err := s.run(Options{}); err == nil || lists != 2*(4+attempts) {
		t.Errorf("%v after %d lists", err, lists)
	}
}

// TestRate: a migration with a maximal rate keeps to it, and ends when all objects are done. Workers that have nothing to
// do use nothing of the rate: a patch's part for each of them would take minutes.
func TestRate(t *testing.T) {
	const objects, perSecond, workers = 10, 5, 2000
	s := startServer(t, objects)
	pacer, stop := pace.New(pace.Bounds{MaxPerSecond: perSecond}, nil, clock.RealClock{})
	defer stop()
	began := time.Now()
	if result, err := s.run(Options{Pacer: pacer, MaxParallel: workers}); err != nil || result.Patched != objects {
		t.Errorf("%+v, %v", result, err)
	}
	// Patches that are due in the first three bursts, of 20 ms each, may be sent at the start.
	least := (objects-1)*time.Second/perSecond - 60*time.Millisecond
	if took := time.Since(began); took < least || took > time.Minute {
		t.Errorf("%d objects took %s", objects, took)
	}
}

func TestWindow(t *testing.T) {
	start := time.Unix(1000, 0)
	w := window{limit: 8, most: 10}
	if one := w.taken(time.Time{}, 0); one.limit != 9 {
		t.Errorf("it grew to %v", one.limit)
	}
	for range 100 {
		w = w.taken(time.Time{}, 0)
	}
	if w.limit != 10 {
		t.Errorf("it grew to %v", w.limit)
	}
	w = w.throttled(start, start.Add(time.Second))
	// Nine more patches that were under way get the same answer.
	for range 9 {
		w = w.throttled(start, start.Add(time.Second))
	}
	if w.limit != 5 {
		t.Errorf("it fell to %v", w.limit)
	}
	if one := w.taken(time.Time{}, 0); one.limit != 5.2 {
		t.Errorf("it grew to %v", one.limit)
	}
	for range 20 {
		w = w.throttled(start.Add(time.Minute), start.Add(time.Minute))
	}
	if w.limit != 1 {
		t.Errorf("it fell to %v", w.limit)
	}
	if w = w.taken(time.Time{}, 0); w.limit != 2 {
		t.Errorf("it grew to %v", w.limit)
	}
}

// TestWindowUnused: the number of patches that may be under way grows only while at least half of them are. A server that
// gets patches one after the other does not show how many it can take at a time.
func TestWindowUnused(t *testing.T) {
	g := newTurnstile(Options{MaxParallel: 100}.withDefaults())
	patch := func(together int) float64 {
		t.Helper()
		for range together {
			if _, _, ok := g.begin(); !ok {
				t.Fatalf("of %d patches one was not let in", together)
			}
		}
		before := g.window.limit
		g.leave(time.Now(), verdict{answer: written})
		grown := g.window.limit - before
		for range together - 1 {
			g.leave(time.Now(), verdict{answer: unable})
		}
		return grown
	}
	for together, grows := range map[int]float64{1: 0, firstParallel/2 - 1: 0} {
		if got := patch(together); got != grows {
			t.Errorf("with %d of %d under way the window grew by %v", together, firstParallel, got)
		}
	}
	if got := patch(firstParallel / 2); got != 1 {
		t.Errorf("with half of them under way the window grew by %v", got)
	}
}

// TestPatience: a server, webhook or plugin is given up if it has not answered for that long. With forget, an outage after
// which nobody asked for a while is forgotten: the next outage is waited for like the first one.
func TestPatience(t *testing.T) {
	const bound = 30 * time.Second
	for _, forget := range []time.Duration{0, 3 * maxBackoff} {
		p := &patience{bound: bound, forget: forget}
		now := time.Unix(1000, 0)
		for asked := range 20 {
			if lasts, want := p.lasts(now), time.Duration(asked)*maxBackoff < bound; lasts != want {
				t.Errorf("forget %v: asked %d times it lasts %t, want %t", forget, asked, lasts, want)
			}
			now = now.Add(maxBackoff)
		}
		if lasts := p.lasts(now.Add(time.Hour)); lasts != (forget > 0) {
			t.Errorf("forget %v: it lasts %t an hour later", forget, lasts)
		}
		p.answered()
		if !p.lasts(now.Add(2 * time.Hour)) {
			t.Errorf("forget %v: it does not last after an answer", forget)
		}
	}
}

// watchedClock calls longTimer for a timer that is longer than the first pauses between attempts.
type watchedClock struct {
	clock.RealClock
	longTimer func(time.Duration)
}

func (c watchedClock) NewTimer(d time.Duration) clock.Timer {
	if d > 10*minBackoff {
		c.longTimer(d)
	}
	return c.RealClock.NewTimer(d)
}

// TestWaitingForTheList: a worker that waited for the next page checks again, before it sends a patch, whether the server
// has asked to be left alone.
func TestWaitingForTheList(t *testing.T) {
	s := startServer(t, 40)
	var mu sync.Mutex
	var closed time.Time
	early, lists := 0, 0
	throttled := make(chan struct{})
	s.answer = func(r *http.Request, name types.NamespacedName) error {
		mu.Lock()
		defer mu.Unlock()
		if name.Name == "" {
			if lists++; lists == 2 { // workers without objects wait for this page
				mu.Unlock()
				select {
				case <-throttled:
				case <-time.After(time.Minute):
				}
				mu.Lock()
			}
			return nil
		}
		if r.Method != http.MethodPatch {
			return nil
		}
		if closed.IsZero() {
			closed = time.Now().Add(900 * time.Millisecond)
			return apierrors.NewTooManyRequests("later", 1)
		}
		if time.Now().Before(closed) {
			early++
		}
		return nil
	}
	// The page is answered once a worker waits because of the server's Retry-After.
	var once sync.Once
	waits := watchedClock{longTimer: func(time.Duration) { once.Do(func() { close(throttled) }) }}
	if result, err := s.run(Options{PageSize: 1, Clock: waits}); err != nil || result.Patched != 40 {
		t.Fatalf("%+v, %v", result, err)
	}
	if early > 0 {
		t.Errorf("%d patches came early", early)
	}
}

// TestGone: a 404 that does not name the object may be about the resource, so the object does not count as deleted.
func TestGone(t *testing.T) {
	if !gone(apierrors.NewNotFound(widgets, "x")) || gone(&apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonNotFound, Code: 404}}) || gone(nil) {
		t.Error("not told apart")
	}
}

func TestTarget(t *testing.T) {
	if _, err := New(nil).Run(t.Context(), Target{GroupResource: widgets}, Options{}, nil); err == nil {
		t.Error("no version is accepted")
	}
}

// TestLongMessages: an error that is cut to its maximal length still has its end, which says what is wrong, also if it has
// long names.
func TestLongMessages(t *testing.T) {
	const name = "production-eu-central-1-payments-and-settlements-blue-control-plane-with-private-endpoints-and-managed-addons"
	for end, message := range map[string]string{
		`in API group "controlplane.cluster.x-k8s.io" in the namespace "` + name + `"`: `awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io "` + name + `" is forbidden: User "system:serviceaccount:concord-system:concord-controllers" cannot patch resource "awsmanagedcontrolplanes/status" in API group "controlplane.cluster.x-k8s.io" in the namespace "` + name + `"`,
		"connect: connection refused": `Internal error occurred: failed calling webhook "validation.awsmanagedcontrolplanes.controlplane.cluster.x-k8s.io": failed to call webhook: Post "https://capa-eks-control-plane-webhook-service.capa-eks-control-plane-system.svc:443/validate-controlplane-cluster-x-k8s-io-v1beta2-awsmanagedcontrolplane?timeout=10s": dial tcp 10.96.104.217:443: connect: connection refused`,
	} {
		if got := detail(errors.New(message)); !strings.HasSuffix(got, end) {
			t.Errorf("of %d bytes only this is kept: %s", len(message), got)
		}
	}
	if got := detail(errors.New(strings.Repeat("x", 10*maxDetail))); len(got) != maxDetail+len("…") {
		t.Errorf("%d bytes are kept of a message without end", len(got))
	}
}
