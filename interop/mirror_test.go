package interop

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// TestMirrorAuto creates migrations of storagemigration.k8s.io beside a kube-controller-manager without its
// migrator, and then beside one with it. The first is done by concord controllers, after nobody has begun it
// for a while; the second is done by kube-controller-manager, and the controllers make no copy of it.
func TestMirrorAuto(t *testing.T) {
	// kube-controller-manager tries again after 5, 10, 20 and 40 s, until its garbage collector also knows
	// the custom resource.
	const objects, after = 20, 100 * time.Second
	c := newCluster(t)
	a := c.APIServer("a")
	manager := controllerManager(t, a, withoutMigrator)
	elected := func(other string) (holder string) {
		t.Helper()
		beside.Eventually(t, beside.Patience, "kube-controller-manager is elected", func(ctx context.Context) error {
			lease, err := a.Kube().CoordinationV1().Leases(observed.ManagerNamespace).Get(ctx, observed.ManagerLease, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if h := lease.Spec.HolderIdentity; h == nil || *h == "" || *h == other {
				return fmt.Errorf("its Lease says %+v", lease.Spec)
			}
			holder = *lease.Spec.HolderIdentity
			return nil
		})
		return holder
	}
	first := elected("")
	done, theirs := a.Define("widgets", true, nil), a.Define("gadgets", true, nil)
	for _, w := range []*beside.Widgets{done, theirs} {
		w.Fill(objects, nil)
	}
	controllers := a.Controllers("controllers", stock.Config{
		Settle: 3 * time.Second, Poll: 2 * time.Second, ReplicaTimeout: 10 * time.Second, InstallDefinitions: true, MirrorAfter: after,
	})
	done.AwaitStored(beside.V1, beside.V1)
	order(t, done)
	ordered := time.Now()
	if reason := succeeded(t, done); reason != migrationv1alpha1.ReasonSucceeded {
		t.Errorf("kube-controller-manager has no migrator, and the migration says %s", reason)
	}
	if took := time.Since(ordered); took < after {
		t.Errorf("it was not left alone for %v, but done after %v", after, took)
	}

	manager.Kill()
	controllerManager(t, a, withMigrator)
	elected(first)
	order(t, theirs)
	if reason := succeeded(t, theirs); !strings.HasPrefix(reason, "StorageVersionMigration") {
		t.Errorf("kube-controller-manager has a migrator, and the migration says %s", reason)
	}
	for w, want := range map[*beside.Widgets]int{done: 1, theirs: 0} {
		migrations, err := w.Migrations(t.Context())
		copies := 0
		for i := range migrations {
			if migrationv1alpha1.Original(&migrations[i]) != nil {
				copies++
			}
		}
		if err != nil || copies != want {
			t.Errorf("of %s there are %d copies, want %d, %v", w.Plural, copies, want, err)
		}
	}
	for line := range strings.SplitSeq(controllers.Output(), "\n") {
		if strings.Contains(line, "storagemigration.k8s.io are") {
			t.Log(line)
		}
	}
}

// succeeded waits until the migration has succeeded, and returns the condition's reason, which says whose
// migrator did it.
func succeeded(t testing.TB, w *beside.Widgets) (reason string) {
	t.Helper()
	// kube-controller-manager's migrator tries again after twice as long each time, the last time after 82 s.
	beside.Eventually(t, 2*beside.Patience, "the migration of "+w.Plural+" succeeds", func(ctx context.Context) error {
		all, err := conditions(ctx, t, w)
		if err != nil {
			return err
		}
		c, ok := all["Succeeded"]
		if !ok {
			return fmt.Errorf("its conditions are %v", all)
		}
		reason = c.reason
		return nil
	})
	return reason
}
