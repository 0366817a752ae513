package e2e

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
)

// soonStopped is the time that a stop may take: two seconds in which watches are drained, and three beside.
const soonStopped = 2*time.Second + 3*time.Second

// A server that embeds etcd stops soon, with a watch open and a connection that asks nothing; and
// so it does while another server uses its etcd.
func TestStopsSoon(t *testing.T) {
	t.Parallel()
	for _, servers := range [][]string{{"one"}, {"one", "two"}} {
		t.Run(fmt.Sprintf("%d servers", len(servers)), func(t *testing.T) { stopsSoon(t, servers) })
	}
}

func stopsSoon(t *testing.T, servers []string) {
	c := cluster.NewEmbedded(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.Start(cluster.Options{}, servers[1:]...)
	watch, err := s.Kube().CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	mute, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"))
	must(t, err)
	defer func() { _ = mute.Close() }()
	// The test's own client is none of a server.
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

// A server that stops gives up the tasks that it was elected to, so that another one goes on at once.
func testElectionsGivenUp(t *testing.T) {
	c := cluster.New(t)
	elected := c.Start(cluster.Options{}, "one")[0]
	leases := elected.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace)
	locks := []string{"concord-controllers", "concord-controllers-storagemigration", "concord-kubernetes-controllers"}
	cluster.Eventually(t, time.Minute, "it is elected", func(ctx context.Context) error {
		for _, lock := range locks {
			if lease, err := leases.Get(ctx, lock, metav1.GetOptions{}); err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
				return fmt.Errorf("%s: %+v, %w", lock, lease, err)
			}
		}
		return nil
	})
	next := c.Start(cluster.Options{}, "two")[0]
	watch, err := next.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	elected.Terminate()
	kept, deadline := sets.New(locks...), time.After(time.Minute)
	for kept.Len() > 0 {
		select {
		case event := <-watch.ResultChan():
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
				kept.Delete(lease.Name)
			}
		case <-deadline:
			t.Fatalf("never given up: %v", sets.List(kept))
		}
	}
	c.WaitSettled()
	c.Check()
}

// A server that stops takes writes as long as --shutdown-delay-duration says: load balancers may send them here
// until they have seen that it is not ready.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{Args: "--shutdown-delay-duration=20s"}, "one")[0]
	s.Signal(syscall.SIGTERM)
	s.WaitUnready(10 * time.Second)
	for i := range 3 {
		if a := send(t.Context(), s.Config(), http.MethodPost, configMapsPath, named("v1", "ConfigMap", fmt.Sprint("late", i))); a.status != http.StatusCreated {
			t.Errorf("a write is answered with %v", a)
		}
	}
	if result, ended := s.Wait(time.Minute); !ended || result.Code != 0 {
		t.Errorf("it ended: %t, with %+v", ended, result)
	}
}
