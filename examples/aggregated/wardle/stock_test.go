package wardle

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const saidAlone = "The host cluster serves no StorageVersions"

// In a stock cluster a server serves and says once that it has nobody to report to. Its
// replicas fence each other all the same.
func testStockHost(t *testing.T) {
	s := deploy(t, startHost(t, build(t, "k8s.io/kubernetes/cmd/kube-apiserver")))
	a, b := s.start("a", "v1alpha1"), s.start("b", "v1alpha1")
	writes := s.write(a, b)
	s.waitWritten(writes, a)
	a.Pause()
	cluster.Eventually(t, settle, "who is paused is buried", func(context.Context) error {
		if n := len(s.own.Reports(flunders)); n != 1 {
			return errNotBuried
		}
		return nil
	})
	b.restart("v1beta1")
	a.Resume()
	s.waitWritten(writes, a)
	s.waitWritten(writes, b)
	s.own.CheckLoad(writes.Stop(), load.BrokenTo("a", "b"))
	s.wantFenced()

	for _, r := range s.started {
		// A replica that was started twice says it in each life.
		lives := strings.Count(r.Output(), `"Registered"`)
		if n := strings.Count(r.Output(), saidAlone); n == 0 || n > lives {
			t.Errorf("%s says %d times that it reports to nobody", r.Name, n)
		}
	}
	leases, err := s.host.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: storageversion.AggregatedLabel})
	if err != nil || len(leases.Items) != 0 {
		t.Errorf("the host has the Leases %v of servers that report nothing: %v", leases, err)
	}
}
