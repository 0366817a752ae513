package filters

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/waitgroup"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/roles"
)

func request(verb, group, resource string, u user.Info) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/apis", nil)
	ctx := apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource})
	return r.WithContext(apirequest.WithUser(ctx, u))
}

// TestDrain asserts the order of a graceful stop (DESIGN 3.4): writes under way are finished before
// the server is idle; new writes are refused with a 503 and Retry-After; reads, and the server's
// own requests, still pass. The stop does not wait for an open exec.
func TestDrain(t *testing.T) {
	client := &user.DefaultInfo{Name: "somebody", Groups: []string{user.SystemPrivilegedGroup}}
	loopback := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	d := NewDrain()
	longRunning := genericfilters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString("exec"))
	opened, closed := make(chan struct{}), make(chan struct{})
	defer close(closed)
	exec := request("create", "", "pods", client)
	info, _ := apirequest.RequestInfoFrom(exec.Context())
	info.Subresource = "exec"
	go d.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(opened)
		<-closed
	}), scheme.Codecs, longRunning).ServeHTTP(httptest.NewRecorder(), exec)
	<-opened
	entered, finish := make(chan struct{}), make(chan struct{})
	blocking := d.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-finish
	}), scheme.Codecs, longRunning)
	open := d.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }), scheme.Codecs, longRunning)

	landed := make(chan struct{})
	go func() {
		defer close(landed)
		blocking.ServeHTTP(httptest.NewRecorder(), request("create", "", "configmaps", client))
	}()
	<-entered
	idle := d.Begin()
	select {
	case <-idle:
		t.Fatal("idle while a write is under way")
	default:
	}
	for _, tc := range []struct {
		verb string
		user user.Info
		want int
	}{
		{"create", client, http.StatusServiceUnavailable},
		{"delete", client, http.StatusServiceUnavailable},
		{"get", client, http.StatusOK},
		{"watch", client, http.StatusOK},
		{"update", loopback, http.StatusOK},
		{"create", &user.DefaultInfo{Name: user.APIServerUser}, http.StatusServiceUnavailable},
	} {
		w := httptest.NewRecorder()
		open.ServeHTTP(w, request(tc.verb, "", "configmaps", tc.user))
		if w.Code != tc.want {
			t.Errorf("%s by %s: %d, want %d", tc.verb, tc.user.GetName(), w.Code, tc.want)
		}
		if w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "" {
			t.Errorf("%s by %s: no Retry-After", tc.verb, tc.user.GetName())
		}
	}
	close(finish)
	<-landed
	select {
	case <-idle:
	case <-time.After(time.Minute):
		t.Fatal("not idle after the last write landed")
	}
	select {
	case <-d.Begin():
	default:
		t.Error("a second begin is not idle")
	}
}

// TestStopping: a server that stops answers clients with Retry-After, but not its own user and its
// controllers, which stop with it.
func TestStopping(t *testing.T) {
	loopback := &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}
	client := &user.DefaultInfo{Name: "somebody", Groups: []string{user.SystemPrivilegedGroup}}
	controller := &user.DefaultInfo{Name: roles.Trigger.User()}
	open, stopping := make(chan struct{}), make(chan struct{})
	close(stopping)
	for _, tc := range []struct {
		name   string
		signal chan struct{}
		user   user.Info
		want   string
	}{
		{"the server's own while it runs", open, loopback, "1"},
		{"the server's own while it stops", stopping, loopback, ""},
		{"a controller's while it stops", stopping, controller, ""},
		{"a client's while it stops", stopping, client, "1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			refuse := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				Answer(scheme.Codecs, w, r, storageversion.Unavailable(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, "no space"))
			})
			w := httptest.NewRecorder()
			Stopping(refuse, tc.signal).ServeHTTP(w, request("update", "coordination.k8s.io", "leases", tc.user))
			if got := w.Header().Get("Retry-After"); w.Code != http.StatusServiceUnavailable || got != tc.want {
				t.Errorf("%d with Retry-After %q, want %q", w.Code, got, tc.want)
			}
		})
	}
}

// TestTurnedAway closes the first handlers of a custom resource as apiextensions closes old
// handlers. The request is repeated, so that the client gets the answer of the next handler; or the
// client is told what is changing.
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

// TestOtherUnavailable: other 503 answers are passed on, also those without a body.
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
