package filters

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	genericfilters "k8s.io/apiserver/pkg/server/filters"

	"k8s.io/client-go/kubernetes/scheme"
)

func request(verb, group, resource string, u user.Info) *http.Request {
	r := httptest.NewRequest(http.MethodPost, "/apis", nil)
	ctx := apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: verb, APIGroup: group, APIVersion: "v1", Resource: resource})
	return r.WithContext(apirequest.WithUser(ctx, u))
}

// TestDrain asserts the order of a graceful stop (DESIGN 3.4): writes under way land
// before the server is idle, new ones are refused with a retriable 503, and the requests
// that the server itself sends, and reads, still pass. Nobody waits for an open exec.
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
