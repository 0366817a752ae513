package stock

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

// TestReadyElection: a process without a permission on the Lease of its election is not ready, and says
// why.
func TestReadyElection(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no right", http.StatusForbidden)
	}))
	defer server.Close()
	c, err := newControllers(Config{Rest: &rest.Config{Host: server.URL}, Instance: "x", LeaderElect: true})
	must(t, err)
	if err := c.ready(); err != nil {
		t.Errorf("before it is tried: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.elected.Campaign(ctx) }()
	err = wait.PollUntilContextTimeout(ctx, time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		err := c.ready()
		return err != nil && strings.Contains(err.Error(), "cannot be elected: "), nil
	})
	cancel()
	if err != nil || <-ended != nil {
		t.Errorf("%v; ready says %v", err, c.ready())
	}
}
