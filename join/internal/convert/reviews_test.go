package convert

import (
	"fmt"
	"math/bits"
	"net/http"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// reviewed converts single objects by a real webhook as apiextensions does.
type reviewed struct {
	t         *testing.T
	hook      *hook
	convertor runtime.ObjectConvertor
	migrated  UnderWay
	reviews   *reviews
}

func startReviewed(t *testing.T) *reviewed {
	t.Helper()
	w := &reviewed{t: t}
	h, crd := startHookOf(t)
	w.hook = h
	resolver := through(New(nil, &rest.Config{}).resolver, func(next http.RoundTripper) http.RoundTripper {
		w.reviews = newReviews(next, &w.migrated)
		w.reviews.patience = time.Minute
		return w.reviews
	})
	converters, err := conversion.NewCRConverterFactory(webhook.NewDefaultServiceResolver(), resolver)
	if err != nil {
		t.Fatal(err)
	}
	if w.convertor, _, err = converters.NewConverter(crd); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *reviewed) convert(i int) error {
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": fmt.Sprint("o-", i), "uid": fmt.Sprint("uid-", i)}}}
	to := schema.GroupVersion{Group: "example.com", Version: "v2"}
	converted, err := w.convertor.ConvertToVersion(u, to)
	if err == nil {
		u = converted.(*unstructured.Unstructured)
		if got, _, _ := unstructured.NestedString(u.Object, "converted"); got != u.GetName() || u.GetName() != fmt.Sprint("o-", i) || u.GetAPIVersion() != to.String() {
			err = fmt.Errorf("o-%d is %v", i, u.Object)
		}
	}
	return err
}

// atOnce converts so many objects, all but the first of which come while that is converted.
func (w *reviewed) atOnce(n int) []error {
	w.t.Helper()
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	answer := w.hook.answer
	w.hook.answer = func(r *http.Request, names []string) int {
		once.Do(func() { close(begun); <-release })
		if answer != nil {
			return answer(r, names)
		}
		return http.StatusOK
	}
	errs := make([]error, n)
	var group sync.WaitGroup
	deadline := time.Now().Add(time.Minute)
	for i := range n {
		group.Go(func() { errs[i] = w.convert(i) })
		if i == 0 {
			<-begun
		}
		for w.waiting() < i { // so that they wait in this order
			if time.Now().After(deadline) {
				w.t.Fatalf("%d of %d conversions wait", w.waiting(), n-1)
			}
			goruntime.Gosched()
		}
	}
	close(release)
	group.Wait()
	return errs
}

// migratedAtOnce is atOnce while a migration writes all of them.
func (w *reviewed) migratedAtOnce(n int) []error {
	w.t.Helper()
	for i := range n {
		defer w.migrated.begin(types.UID(fmt.Sprint("uid-", i)))()
	}
	return w.atOnce(n)
}

func (w *reviewed) waiting() (n int) {
	w.reviews.mu.Lock()
	defer w.reviews.mu.Unlock()
	for _, calls := range w.reviews.kind {
		n += calls.Waiting()
	}
	return n
}

// TestReviewsTogether: conversions that a migration needs at once are made by few reviews,
// and the same one again by none, as long as the object is written.
func TestReviewsTogether(t *testing.T) {
	w := startReviewed(t)
	const n = 301
	var done []func()
	for i := range n {
		done = append(done, w.migrated.begin(types.UID(fmt.Sprint("uid-", i))))
	}
	for i, err := range w.atOnce(n) {
		if err != nil {
			t.Errorf("o-%d: %v", i, err)
		}
	}
	if want := []int{1, 100, 100, 100}; !slices.Equal(w.hook.calls, want) {
		t.Errorf("calls %v, want %v", w.hook.calls, want)
	}
	if err := w.convert(7); err != nil || len(w.hook.calls) != 4 {
		t.Errorf("again: %v, calls %v", err, w.hook.calls)
	}
	done[7]()
	if err := w.convert(7); err != nil || len(w.hook.calls) != 5 {
		t.Errorf("once it is written: %v, calls %v", err, w.hook.calls)
	}
	for i, f := range done {
		if i != 7 {
			f()
		}
	}
	if !w.migrated.empty() {
		t.Error("objects are left")
	}
}

// TestReviewsRefused: an object that the webhook refuses fails alone, and with its own words.
func TestReviewsRefused(t *testing.T) {
	w := startReviewed(t)
	const n = 41
	for i := range n {
		defer w.migrated.begin(types.UID(fmt.Sprint("uid-", i)))()
	}
	w.hook.refuse = func(name string) bool { return name == "o-7" || name == "o-30" }
	for i, err := range w.atOnce(n) {
		if refused := i == 7 || i == 30; refused != (err != nil) || refused && !strings.Contains(err.Error(), fmt.Sprintf("o-%d is refused", i)) {
			t.Errorf("o-%d: %v", i, err)
		}
	}
	if len(w.hook.calls) > 25 {
		t.Errorf("calls %v", w.hook.calls)
	}
}

// TestReviewsUnanswered: where a webhook answers for no several objects they are asked for one
// by one.
func TestReviewsUnanswered(t *testing.T) {
	w := startReviewed(t)
	w.hook.answer = func(_ *http.Request, names []string) int {
		if len(names) > 1 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}
	for i, err := range w.migratedAtOnce(21) {
		if err != nil {
			t.Errorf("o-%d: %v", i, err)
		}
	}
}

// TestReviewsPoison: an object that the webhook gives no answer for, nor for others beside it,
// fails alone, wherever it is; so do two beside each other.
func TestReviewsPoison(t *testing.T) {
	const n = 41
	for _, poison := range [][]int{{1}, {17}, {n - 1}, {1, 2}, {17, 18}, {n - 2, n - 1}} {
		t.Run(fmt.Sprint(poison), func(t *testing.T) {
			w := startReviewed(t)
			w.hook.answer = func(_ *http.Request, names []string) int {
				for _, i := range poison {
					if slices.Contains(names, fmt.Sprint("o-", i)) {
						return 0
					}
				}
				return http.StatusOK
			}
			for i, err := range w.migratedAtOnce(n) {
				if failed := slices.Contains(poison, i); failed != (err != nil) || failed && !strings.Contains(err.Error(), "EOF") {
					t.Errorf("o-%d: %v", i, err)
				}
			}
			if len(w.hook.calls) > 25 {
				t.Errorf("calls %v", w.hook.calls)
			}
		})
	}
}

// TestReviewsAway: of a webhook that is away every object is told so after a few calls, however
// many they are.
func TestReviewsAway(t *testing.T) {
	for _, code := range []int{0, http.StatusServiceUnavailable} {
		w := startReviewed(t)
		w.hook.answer = func(*http.Request, []string) int { return code }
		for i, err := range w.migratedAtOnce(1 + maxReview) {
			if err == nil {
				t.Errorf("%d: o-%d is converted", code, i)
			}
		}
		// One alone, then twice the halves of a hundred down to one.
		if most := 1 + 2*bits.Len(maxReview); len(w.hook.calls) > most {
			t.Errorf("%d: calls %v, want at most %d", code, w.hook.calls, most)
		}
	}
}

// TestReviewsHanging: an object that the webhook never answers for holds up no other, be it
// first or among them.
func TestReviewsHanging(t *testing.T) {
	w := startReviewed(t)
	w.reviews.patience = time.Second
	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	w.hook.answer = func(_ *http.Request, names []string) int {
		if slices.Contains(names, "o-0") || slices.Contains(names, "o-5") {
			<-hang
		}
		return http.StatusOK
	}
	const n = 21
	type result struct {
		i   int
		err error
	}
	results := make(chan result, n)
	for i := range n {
		defer w.migrated.begin(types.UID(fmt.Sprint("uid-", i)))()
		go func() { results <- result{i, w.convert(i)} }()
	}
	for done := range n {
		if done == n-2 {
			release()
		}
		select {
		case r := <-results:
			if hung := r.i == 0 || r.i == 5; r.err != nil || hung != (done >= n-2) {
				t.Errorf("o-%d was number %d: %v", r.i, done, r.err)
			}
		case <-time.After(time.Minute):
			t.Fatalf("only %d of %d", done, n)
		}
	}
}

// TestReviewsReordered: objects that a webhook answers in another order are asked for one by
// one.
func TestReviewsReordered(t *testing.T) {
	w := startReviewed(t)
	w.hook.reverse = true
	const n = 5
	for i := range n {
		defer w.migrated.begin(types.UID(fmt.Sprint("uid-", i)))()
	}
	for i, err := range w.atOnce(n) {
		if err != nil {
			t.Errorf("o-%d: %v", i, err)
		}
	}
}

// TestReviewsOfClients: an object that no migration writes is converted by a call of its own, at once.
func TestReviewsOfClients(t *testing.T) {
	w := startReviewed(t)
	defer w.migrated.begin("uid-1000")()
	both := make(chan struct{})
	var calls sync.WaitGroup
	calls.Add(2)
	go func() { calls.Wait(); close(both) }()
	w.hook.answer = func(*http.Request, []string) int {
		calls.Done()
		select {
		case <-both:
			return http.StatusOK
		case <-time.After(time.Minute):
			return http.StatusInternalServerError
		}
	}
	var group sync.WaitGroup
	for i := range 2 {
		group.Go(func() {
			if err := w.convert(i); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if !slices.Equal(w.hook.calls, []int{1, 1}) {
		t.Errorf("calls %v", w.hook.calls)
	}
}
