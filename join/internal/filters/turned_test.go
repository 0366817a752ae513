package filters

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"k8s.io/client-go/kubernetes/scheme"
)

// TestTurnedAway has the first handlers of a custom resource be closed as apiextensions closes
// an old one: the client gets the answer of the one after them, or is told what is changing.
func TestTurnedAway(t *testing.T) {
	for _, test := range []struct {
		closed int
		verb   string
		custom bool
		code   int
		want   string
	}{
		{0, "create", true, http.StatusCreated, "made body"},
		{1, "create", true, http.StatusCreated, "made body"},
		{maxTurns - 1, "get", true, http.StatusCreated, "made body"},
		{maxTurns, "create", true, http.StatusServiceUnavailable, "the storage version of widgets is changing"},
		{1, "create", false, http.StatusServiceUnavailable, "apiserver is shutting down"},
	} {
		calls := 0
		handlers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			group := &waitgroup.SafeWaitGroup{}
			if calls++; calls <= test.closed {
				group.Wait()
			}
			genericfilters.WithWaitGroup(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				w.WriteHeader(http.StatusCreated)
				_, _ = io.WriteString(w, "made "+string(body))
			}), func(*http.Request, *apirequest.RequestInfo) bool { return false }, group).ServeHTTP(w, r)
		})
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: test.verb, APIGroup: "example.com", APIVersion: "v1", Resource: "widgets"}
			Again(handlers, scheme.Codecs, func(schema.GroupResource) bool { return test.custom }).ServeHTTP(w, r.WithContext(apirequest.WithRequestInfo(context.WithoutCancel(r.Context()), info)))
		}))
		response, err := http.Post(server.URL, "text/plain", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != test.code || !strings.Contains(string(body), test.want) {
			t.Errorf("%+v: %d %q, %v", test, response.StatusCode, body, err)
		}
		if test.code == http.StatusServiceUnavailable && len(response.Header.Values("Retry-After")) != 1 {
			t.Errorf("%+v: headers %v", test, response.Header)
		}
		_ = response.Body.Close()
		server.Close()
	}
}

// TestOtherUnavailable: other answers of 503 pass, also those without a body.
func TestOtherUnavailable(t *testing.T) {
	for _, want := range []string{"", "the gate is closed"} {
		recorder := httptest.NewRecorder()
		info := &apirequest.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: "widgets"}
		request := httptest.NewRequest(http.MethodPost, "/", nil)
		Again(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			if want != "" {
				_, _ = io.WriteString(w, want)
			}
		}), scheme.Codecs, func(schema.GroupResource) bool { return true }).ServeHTTP(recorder, request.WithContext(apirequest.WithRequestInfo(t.Context(), info)))
		if recorder.Code != http.StatusServiceUnavailable || recorder.Body.String() != want {
			t.Errorf("%d %q, want %q", recorder.Code, recorder.Body, want)
		}
	}
}
