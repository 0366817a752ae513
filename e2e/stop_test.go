package e2e

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/e2e/cluster"
)

// soonStopped is what a stop may take beside draining, and what a busy machine adds.
const soonStopped = 3*time.Second + 4*time.Second

// A server that embeds etcd stops soon, with a watch open and a connection that asks nothing.
func TestStopsSoon(t *testing.T) {
	t.Parallel()
	c := cluster.NewEmbedded(t)
	s := c.Start(cluster.Options{}, "one")[0]
	watch, err := s.Kube().CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	mute, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = mute.Close() }()
	// The server alone: an etcd waits for clients of its own.
	if err := c.Raw.Close(); err != nil {
		t.Log(err)
	}
	began := time.Now()
	s.Signal(syscall.SIGTERM)
	result, ended := s.Wait(time.Minute)
	took := time.Since(began)
	if !ended || result.Code != 0 {
		t.Fatalf("it ended: %t, with %+v", ended, result)
	}
	if t.Logf("stopped after %v", took); took > soonStopped {
		t.Errorf("a stop took %v", took)
	}
}
