package stock

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestReadyElection: a process without a permission on the Lease of its election, or whose token is not valid, is not
// ready, and says why.
func TestReadyElection(t *testing.T) {
	t.Run("Forbidden", func(t *testing.T) { unready(t, http.StatusForbidden, "cannot be elected: ") })
	t.Run("Unauthorized", func(t *testing.T) { unready(t, http.StatusUnauthorized, "cannot begin: get the Lease") })
}

// unready starts a process that gets this answer to all that it asks, and waits until it says that it is not ready.
func unready(t *testing.T, code int, why string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no right", code)
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
		return err != nil && strings.Contains(err.Error(), why), nil
	})
	cancel()
	if err != nil || <-ended != nil {
		t.Errorf("%v; ready says %v", err, c.ready())
	}
}

// TestReadyDefinitions: an elected process is not ready without the CustomResourceDefinitions of its own objects, neither before
// it begins nor after they were deleted.
func TestReadyDefinitions(t *testing.T) {
	c, err := newControllers(Config{Rest: &rest.Config{Host: "127.0.0.1:1"}, Instance: "x"})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	_ = c.await(ctx, "The definitions of migration.k8s.io are not there yet", func(context.Context) error {
		cancel()
		return errors.New("not found")
	})
	if err := c.ready(); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("before they are there it says %v", err)
	}
	must(t, c.await(t.Context(), "The definitions of migration.k8s.io are not there yet", func(context.Context) error { return nil }))
	d := newDefinitions()
	for _, crd := range migrationv1alpha1.CRDs() {
		d.take(crd)
	}
	o := c.newObserver(nil, logr.Discard())
	o.definitions, o.whole, o.finished = d, true, o.clock.Now()
	c.working.Store(&work{observer: o})
	if err := c.ready(); err != nil {
		t.Errorf("with them it says %v", err)
	}
	gone := migrationv1alpha1.CRDs()[0]
	d.forget(gone)
	if err := c.ready(); err == nil || !strings.Contains(err.Error(), gone.Name+" is gone") {
		t.Errorf("without %s it says %v", gone.Name, err)
	}
}

// TestReadyRounds: an elected process that has not looked at kube-apiservers for three minutes is not ready, and says
// since when and why. A shorter outage does not matter.
func TestReadyRounds(t *testing.T) {
	var log logged
	clock := testclock.NewFakeClock(now)
	c, err := newControllers(Config{Rest: &rest.Config{Host: "127.0.0.1:1"}, Instance: "x", Clock: clock})
	must(t, err)
	kube := fake.NewClientset()
	kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("no right") })
	c.kube = kube
	o := c.newObserver(nil, log.logger())
	o.definitions = newDefinitions()
	for _, crd := range migrationv1alpha1.CRDs() {
		o.definitions.take(crd)
	}
	c.working.Store(&work{observer: o})
	if err := c.ready(); !errors.Is(err, errUnasked) {
		t.Errorf("before the first round it says %v", err)
	}
	o.observing(widgets, "Widget", "example.com/v1", 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- o.run(ctx, time.Hour) }()
	o.hurry()
	must(t, wait.PollUntilContextTimeout(ctx, time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		return len(log.lines("no right")) > 0, nil
	}))
	cancel()
	must(t, <-ended)
	clock.Step(2 * time.Minute)
	if err := c.ready(); err != nil {
		t.Errorf("after two minutes it says %v", err)
	}
	clock.Step(time.Minute)
	if err := c.ready(); err == nil || !strings.Contains(err.Error(), "last asked at "+now.UTC().Format(time.TimeOnly)) || !strings.Contains(err.Error(), "no right") {
		t.Errorf("after three minutes it says %v", err)
	}
	o.observing(widgets, "Widget", "example.com/v1", 3*time.Minute)
	if err := c.ready(); err != nil {
		t.Errorf("after a round that succeeded it says %v", err)
	}
}
