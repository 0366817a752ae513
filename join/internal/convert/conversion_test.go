package convert

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// hook is a conversion webhook behind a real HTTP server. A test can make it misbehave.
type hook struct {
	t *testing.T

	mu    sync.Mutex
	calls []int // the number of objects of each call
	// refuse says of which objects the conversion fails.
	refuse func(name string) bool
	// reverse makes it return the objects in the opposite order.
	reverse bool
	// answer, if not nil, is called for every call and returns the HTTP status; with 0 the
	// connection is closed without an answer.
	answer func(r *http.Request, names []string) int
}

func startHook(t *testing.T) (*hook, *webhookConversion) {
	t.Helper()
	return startHookWithin(t, t.Context())
}

func startHookWithin(t *testing.T, ctx context.Context) (*hook, *webhookConversion) {
	t.Helper()
	h, crd := startHookOf(t)
	convertor, calls, err := New(nil, &rest.Config{}).convertor(ctx, crd)
	if err != nil {
		t.Fatal(err)
	}
	return h, newWebhookConversion(crd, schema.GroupVersion{Group: "example.com", Version: "v2"}, convertor, calls)
}

// startHookOf starts a webhook, and returns it with a CRD that names it.
func startHookOf(t *testing.T) (*hook, *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	h := &hook{t: t}
	server := httptest.NewUnstartedServer(h)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	crd := widgetDefinition.DeepCopy()
	url := server.URL + "/convert"
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &url, CABundle: ca},
			ConversionReviewVersions: []string{"v1"},
		},
	}
	crd.Name = "widgets.example.com"
	return h, crd
}

// ServeHTTP implements http.Handler.
func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the call was given up before all of it was sent
	}
	var review apiextensionsv1.ConversionReview
	if err := json.Unmarshal(body, &review); err != nil {
		h.t.Error(err)
		return
	}
	var names []string
	response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	h.mu.Lock()
	h.calls = append(h.calls, len(review.Request.Objects))
	answer := h.answer
	for _, raw := range review.Request.Objects {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw.Raw); err != nil {
			h.t.Error(err)
		}
		names = append(names, u.GetName())
		if h.refuse != nil && h.refuse(u.GetName()) {
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: u.GetName() + " is refused"}
		}
		u.SetAPIVersion(review.Request.DesiredAPIVersion)
		u.Object["converted"] = u.GetName()
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: u})
	}
	h.mu.Unlock()
	if answer != nil {
		switch code := answer(r, names); code {
		case http.StatusOK:
		case 0:
			panic(http.ErrAbortHandler)
		default:
			w.WriteHeader(code)
			return
		}
	}
	if response.Result.Status != metav1.StatusSuccess {
		response.ConvertedObjects = nil
	}
	if h.reverse {
		slices.Reverse(response.ConvertedObjects)
	}
	review.Request, review.Response = nil, response
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

func plains(n int) [][]byte {
	var values [][]byte
	for i := range n {
		values = append(values, fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w-%d","namespace":"ns","uid":"u-%d"}}`, i, i))
	}
	return values
}

func ignored(error) {}

// quickClock is a clock on which the time of a timer has passed when it begins, and no other time passes.
type quickClock struct{ *clocktesting.FakeClock }

func newQuickClock() quickClock { return quickClock{clocktesting.NewFakeClock(time.Unix(1000, 0))} }

// NewTimer implements clock.Clock.
func (c quickClock) NewTimer(d time.Duration) clock.Timer {
	defer c.Step(d)
	return c.FakeClock.NewTimer(d)
}

// wantConverted asserts that exactly these objects were not converted, for these reasons.
func wantConverted(t *testing.T, got []migratestore.Converted, n int, failed map[int]migratestore.Reason) {
	t.Helper()
	if len(got) != n {
		t.Fatalf("%d answers for %d objects", len(got), n)
	}
	for i, c := range got {
		if reason, ok := failed[i]; ok {
			if c.Err == nil || c.Reason != reason {
				t.Errorf("w-%d: %s, %v, want %s", i, c.Reason, c.Err, reason)
			}
			continue
		}
		encoding, _, _ := migratestore.Envelope(c.Plain)
		if c.Err != nil || encoding != "example.com/v2" || !strings.Contains(string(c.Plain), fmt.Sprintf(`"converted":"w-%d"`, i)) {
			t.Errorf("w-%d: %s, %v", i, c.Plain, c.Err)
		}
	}
}

// TestWebhookBatch: a part of a page of objects is converted by one call.
func TestWebhookBatch(t *testing.T) {
	h, w := startHook(t)
	wantConverted(t, w.convert(t.Context(), plains(100), ignored), 100, nil)
	if !slices.Equal(h.calls, []int{100}) {
		t.Errorf("calls of %v objects", h.calls)
	}
}

// TestWebhookRefuses: an object that the webhook refuses does not keep the other objects of its
// call from being converted; nor does a value that cannot be decoded.
func TestWebhookRefuses(t *testing.T) {
	h, w := startHook(t)
	h.refuse = func(name string) bool { return strings.HasSuffix(name, "7") } // every tenth object
	values := plains(100)
	values[3], values[4] = []byte("noise"), []byte(`{"apiVersion":"example.com/v0","kind":"Widget","metadata":{"name":"w-4"}}`)
	failed := map[int]migratestore.Reason{3: migratestore.Undecodable, 4: migratestore.Undecodable}
	for i := 7; i < 100; i += 10 {
		failed[i] = migratestore.Unconverted
	}
	got := w.convert(t.Context(), values, ignored)
	wantConverted(t, got, 100, failed)
	if got[7].Err == nil || !strings.Contains(got[7].Err.Error(), "w-7 is refused") {
		t.Errorf("it says %v", got[7].Err)
	}
	if len(h.calls) >= 100 {
		t.Errorf("%d calls", len(h.calls))
	}
}

// TestWebhookDown: if the webhook is down for a short time, the conversion waits, and no object
// fails.
func TestWebhookDown(t *testing.T) {
	for name, code := range map[string]int{"no answer": 0, "503": http.StatusServiceUnavailable} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, w := startHook(t)
			w.clock = newQuickClock()
			down := 12
			h.answer = func(*http.Request, []string) int {
				h.mu.Lock()
				defer h.mu.Unlock()
				if down--; down >= 0 {
					return code
				}
				return http.StatusOK
			}
			wantConverted(t, w.convert(t.Context(), plains(100), ignored), 100, nil)
			wantConverted(t, w.convert(t.Context(), plains(100), ignored), 100, nil)
			if last := h.calls[len(h.calls)-1]; last < 50 {
				t.Errorf("it is asked for %d objects at a time after it has come back: %v", last, h.calls)
			}
		})
	}
}

// TestWebhookStaysDown: if the webhook is down for too long, objects fail without another call for
// each, until the webhook answers again.
func TestWebhookStaysDown(t *testing.T) {
	h, w := startHook(t)
	w.clock = newQuickClock()
	h.answer = func(*http.Request, []string) int { return 0 }
	all := map[int]migratestore.Reason{}
	for i := range 100 {
		all[i] = migratestore.Unconverted
	}
	var hindered []error
	got := w.convert(t.Context(), plains(100), func(err error) { hindered = append(hindered, err) })
	wantConverted(t, got, 100, all)
	if !errors.Is(got[0].Err, errNoAnswer) {
		t.Errorf("it says %v", got[0].Err)
	}
	if len(hindered) != len(h.calls) || !errors.Is(hindered[0], errNoAnswer) {
		t.Errorf("of %d calls without an answer it tells %v", len(h.calls), hindered)
	}
	calls := len(h.calls)
	for range 20 {
		wantConverted(t, w.convert(t.Context(), plains(100), ignored), 100, all)
	}
	if more := len(h.calls) - calls; more > 2 {
		t.Errorf("%d calls of a webhook that is down", more)
	}
	h.mu.Lock()
	h.answer = nil
	h.mu.Unlock()
	w.outage.probe = time.Time{} // as if some seconds had passed
	hindered = nil
	wantConverted(t, w.convert(t.Context(), plains(100), func(err error) { hindered = append(hindered, err) }), 100, nil)
	if len(hindered) == 0 || hindered[0] != nil {
		t.Errorf("of a webhook that answers again it tells %v", hindered)
	}
}

// TestWebhookBreaksDown: an object that makes the webhook crash, or answer with an error, fails
// alone, as long as the webhook answers for other objects.
func TestWebhookBreaksDown(t *testing.T) {
	for name, code := range map[string]int{"no answer": 0, "500": http.StatusInternalServerError} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, w := startHook(t)
			w.clock = newQuickClock()
			h.answer = func(_ *http.Request, names []string) int {
				if slices.Contains(names, "w-42") {
					return code
				}
				return http.StatusOK
			}
			wantConverted(t, w.convert(t.Context(), plains(60), ignored), 60, map[int]migratestore.Reason{42: migratestore.Unconverted})
		})
	}
}

// TestWebhookSlow: a webhook that needs longer for many objects than the timeout of a call gets
// fewer objects in a call.
func TestWebhookSlow(t *testing.T) {
	h, w := startHook(t)
	w.calls.timeout = 2 * time.Second
	h.answer = func(r *http.Request, names []string) int {
		select {
		case <-time.After(time.Duration(len(names)) * 60 * time.Millisecond):
			return http.StatusOK
		case <-r.Context().Done():
			return 0
		}
	}
	wantConverted(t, w.convert(t.Context(), plains(50), ignored), 50, nil)
	if h.calls[0] != 50 || len(h.calls) < 3 {
		t.Errorf("calls of %v objects", h.calls)
	}
}

// TestWebhookHangs: a webhook that never answers counts as down after three calls: one with many
// objects and two with a single object. The second of these finds out whether the first object was
// the reason.
func TestWebhookHangs(t *testing.T) {
	h, w := startHook(t)
	w.calls.timeout, w.outage.patience = 200*time.Millisecond, 100*time.Millisecond
	h.answer = func(r *http.Request, _ []string) int {
		<-r.Context().Done()
		return 0
	}
	all := map[int]migratestore.Reason{}
	for i := range 64 {
		all[i] = migratestore.Unconverted
	}
	wantConverted(t, w.convert(t.Context(), plains(64), ignored), 64, all)
	h.mu.Lock()
	defer h.mu.Unlock()
	if many := slices.DeleteFunc(slices.Clone(h.calls), func(n int) bool { return n == 1 }); len(h.calls) > 3 || len(many) > 1 {
		t.Errorf("calls of %v objects", h.calls)
	}
}

// TestWebhookCancelled: a migration whose context is cancelled does not wait for a webhook that
// hangs.
func TestWebhookCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	h, w := startHookWithin(t, ctx)
	h.answer = func(r *http.Request, _ []string) int {
		cancel()
		<-r.Context().Done()
		return 0
	}
	for _, c := range w.convert(ctx, plains(10), ignored) {
		if !errors.Is(c.Err, context.Canceled) {
			t.Errorf("got %v", c.Err)
		}
	}
}
