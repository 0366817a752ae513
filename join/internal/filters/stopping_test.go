package filters

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/join/roles"
)

// TestStopping: a server that stops does not have its own requests repeated, and tells others to.
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
