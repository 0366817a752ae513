package inprocess

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	serverfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/client-go/rest"

	migrateapi "github.com/concord-dev/concord/migrate/api"
)

func serving(handler http.Handler) *Transport {
	p := &Transport{}
	if handler != nil {
		p.Serve(handler)
	}
	return p
}

// guarded adds the filters of a server for authentication and authorization.
func guarded(handler http.Handler) http.Handler {
	tokens := bearertoken.New(authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		switch token {
		case "loopback":
			return &authenticator.Response{User: &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}}}, true, nil
		case "nobody":
			return &authenticator.Response{User: &user.DefaultInfo{Name: "nobody"}}, true, nil
		}
		return nil, false, errors.New("no such token")
	}))
	codecs := serializer.NewCodecFactory(runtime.NewScheme())
	handler = filters.WithAuthorization(handler, authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup), codecs)
	handler = filters.WithAuthentication(handler, tokens, filters.Unauthorized(codecs), nil, nil)
	resolver := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	return filters.WithRequestInfo(handler, resolver)
}

var patched = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}

// patch sends the patch that the migrator sends.
func (p *Transport) patch(ctx context.Context, t *testing.T, config *rest.Config) error {
	t.Helper()
	client, err := migrateapi.NewClient(p.Config(config))
	if err != nil {
		t.Fatal(err)
	}
	return client.Patch(ctx, patched, types.NamespacedName{Namespace: "n", Name: "a/b c"}, []byte(`{"metadata":{}}`))
}

func loopback(r *http.Request) bool {
	u, ok := apirequest.UserFrom(r.Context())
	return ok && u.GetName() == user.APIServerUser
}

func TestPassesTheGuards(t *testing.T) {
	var asked []string
	p := serving(guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		info, _ := apirequest.RequestInfoFrom(r.Context())
		if err != nil || string(body) != `{"metadata":{}}` || r.Header.Get("Authorization") != "" || r.Header.Get("Content-Type") != string(types.MergePatchType) ||
			info == nil || info.Verb != "patch" || info.Namespace != "n" || !loopback(r) {
			t.Errorf("%s %s with %q, %v, info %+v: %v", r.Method, r.URL, body, r.Header, info, err)
		}
		if r.Context().Value("sender's") != nil { //nolint:staticcheck // any key does
			t.Error("the handler sees what the sender's context holds")
		}
		asked = append(asked, r.URL.Path)
		_, _ = io.WriteString(w, "{}")
	})))
	base := &rest.Config{Host: "https://127.0.0.1:1", TLSClientConfig: rest.TLSClientConfig{CAData: []byte("ca"), ServerName: "loopback"}}
	for token, refused := range map[string]func(error) bool{
		"":         apierrors.IsUnauthorized,
		"wrong":    apierrors.IsUnauthorized,
		"nobody":   apierrors.IsForbidden,
		"loopback": func(err error) bool { return err == nil },
	} {
		config := rest.CopyConfig(base)
		config.BearerToken = token
		//nolint:staticcheck // any key does
		if err := p.patch(context.WithValue(t.Context(), "sender's", 1), t, config); !refused(err) {
			t.Errorf("token %q: %v", token, err)
		}
	}
	if len(asked) != 1 || !strings.HasPrefix(asked[0], "/apis/example.com/v1/namespaces/n/widgets/") {
		t.Errorf("asked for %q", asked)
	}
}

func TestAnswers(t *testing.T) {
	busy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
		w.WriteHeader(http.StatusOK)
		w.Header().Set("Retry-After", "1")
	})
	if seconds, ok := apierrors.SuggestsClientDelay(serving(busy).patch(t.Context(), t, &rest.Config{})); !ok || seconds != 7 {
		t.Errorf("busy: wait %d, %v", seconds, ok)
	}
	for name, cause := range map[string]any{"aborted": http.ErrAbortHandler, "broken": "a panic"} {
		if err := serving(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(cause) })).patch(t.Context(), t, &rest.Config{}); err == nil || !strings.Contains(err.Error(), "aborted") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := serving(nil).patch(t.Context(), t, &rest.Config{}); err == nil || !strings.Contains(err.Error(), "does not serve yet") {
		t.Errorf("before it serves: %v", err)
	}
}

// TestCancelled: the handler's context ends when the sender's does, and the handler is not called
// for a sender whose context has ended already.
func TestCancelled(t *testing.T) {
	begun := make(chan struct{})
	p := serving(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- p.patch(ctx, t, &rest.Config{}) }()
	<-begun
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := p.patch(ctx, t, &rest.Config{}); !errors.Is(err, context.Canceled) { // a second call of the handler would panic, since it closes begun
		t.Errorf("cancelled before: %v", err)
	}
}

// TestFlushed asserts that a handler behind the server's filters, such as the proxy to aggregated
// APIs, can flush a part of its answer.
func TestFlushed(t *testing.T) {
	flushes := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first,")
		if err := http.NewResponseController(w).Flush(); err != nil {
			t.Error(err)
		}
		_, _ = io.WriteString(w, "second")
	})
	filtered := serverfilters.WithTimeoutForNonLongRunningRequests(flushes, func(*http.Request, *apirequest.RequestInfo) bool { return false })
	resolver := &apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	local := serving(filters.WithRequestInfo(filters.WithLatencyTrackers(filtered), resolver))
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://in-process/apis/example.com/v1/widgets", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := local.RoundTrip(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if body, err := io.ReadAll(response.Body); err != nil || string(body) != "first,second" {
		t.Errorf("the answer is %q, %v", body, err)
	}
}
