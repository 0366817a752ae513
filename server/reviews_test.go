package server

import (
	"fmt"
	"net/http"
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
	migrated  underWay
	reviews   *reviews
}

func startReviewed(t *testing.T) *reviewed {
	t.Helper()
	w := &reviewed{t: t}
	h, crd := startHookOf(t)
	w.hook = h
	resolver := through(newCustomResources(nil, &rest.Config{}).resolver, func(next http.RoundTripper) http.RoundTripper {
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
	for i := range n {
		group.Go(func() { errs[i] = w.convert(i) })
		if i == 0 {
			<-begun
		}
	}
	deadline := time.Now().Add(time.Minute)
	for w.waiting() < n-1 {
		if time.Now().After(deadline) {
			w.t.Fatalf("%d of %d conversions wait", w.waiting(), n-1)
		}
		<-time.After(time.Millisecond)
	}
	close(release)
	group.Wait()
	return errs
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

// TestReviewsUnanswered: where a webhook is away every object is told so after one call.
func TestReviewsUnanswered(t *testing.T) {
	w := startReviewed(t)
	const n = 21
	for i := range n {
		defer w.migrated.begin(types.UID(fmt.Sprint("uid-", i)))()
	}
	w.hook.answer = func(_ *http.Request, names []string) int {
		if len(names) > 1 {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	}
	for i, err := range w.atOnce(n) {
		if (i > 0) != (err != nil) || err != nil && !strings.Contains(err.Error(), "currently unable to handle the request") {
			t.Errorf("o-%d: %v", i, err)
		}
	}
	if len(w.hook.calls) != 2 {
		t.Errorf("calls %v", w.hook.calls)
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

// TestReviewsOfClients: what no migration writes is converted by a call of its own, at once.
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
