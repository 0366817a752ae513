package interop

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// TestRestarted: one of two kube-apiservers is restarted in the middle of a migration, while
// clients write. Agreements from before do not count for the new process; in the end everything is
// migrated, proven and pruned, and no write is lost.
func TestRestarted(t *testing.T) {
	const objects = 5000
	c := newCluster(t)
	a, b := c.APIServer("a"), c.APIServer("b")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	a.Controllers("controllers", stock.Config{
		Settle: 3 * time.Second, Poll: 2 * time.Second, ReplicaTimeout: 10 * time.Second, InstallDefinitions: true, CleanFields: true,
		// The status tells of a migration on its way more than once in this time.
		MaxObjectsPerSecond: objects / 10, Settings: observed.Settings{PruneAfter: 3 * time.Second},
	})
	w.AwaitStored(beside.V1, beside.V1)
	written := beside.Written{Resource: w.In("v2"), Namespace: beside.Namespace}
	for i := range 500 {
		written.Names = append(written.Names, beside.ObjectName(i))
	}
	traffic := beside.StartTraffic(t, 10*time.Second, beside.Patience, []beside.Written{written}, a.APIServer, b.APIServer)
	traffic.Await(10, a.APIServer, b.APIServer)
	w.Store("v2")
	begun(t, w)
	before := holders(t, a)
	traffic.Through(a.APIServer)
	b.Terminate()
	b.Start()
	b.WaitReady()
	traffic.Through(a.APIServer, b.APIServer)
	traffic.Await(10, a.APIServer, b.APIServer)
	if now := holders(t, a); len(now) != 2 || len(before) != 2 || changed(before, now) != 1 {
		t.Errorf("the identity Leases were held by %v, and are by %v", before, now)
	}
	w.AwaitStored(beside.V2, beside.V2)
	traffic.Stop()
	w.AwaitPruned(objects)
	migrations, err := w.Migrations(t.Context())
	for i := range migrations {
		t.Logf("%s: %+v", migrations[i].Name, migrations[i].Status.Conditions)
	}
	if err != nil {
		t.Error(err)
	}
	if err := w.TakeOut(); err != nil {
		t.Errorf("v1 cannot be taken out: %v", err)
	}
}

// holders returns the holders of the identity Leases, by the Lease's name.
func holders(t testing.TB, s *beside.APIServer) map[string]string {
	t.Helper()
	list, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: storageversion.Identities.String()})
	must(t, err)
	all := map[string]string{}
	for _, lease := range list.Items {
		all[lease.Name] = ptr.Deref(lease.Spec.HolderIdentity, "")
	}
	return all
}

// changed counts the Leases that have another holder now.
func changed(before, now map[string]string) (n int) {
	for name, holder := range before {
		if now[name] != holder {
			n++
		}
	}
	return n
}
