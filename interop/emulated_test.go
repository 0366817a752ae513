package interop

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/e2e/beside"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestEmulated: one of two kube-apiservers emulates an older release, so that they store some built-in
// resources in different versions. These are not called agreed on, no migration of them is created, and
// the StorageStates say which server stores what. Meanwhile a custom resource, on which both agree, is migrated,
// proven and pruned. When the older one has ended, the others are agreed on, too.
func TestEmulated(t *testing.T) {
	const objects = 5000
	c := newCluster(t)
	a := guarded(t, c)
	plain := program(t, "kube-apiserver") // without the migrator's API, which the older release does not have
	b := c.Start(func(flags ...string) *exec.Cmd { return exec.Command(plain, flags...) }, "b", "--emulated-version="+tested(t).emulates)
	deployed(a, map[string]string{"": b.Address}) // the Lease of an older release does not tell the address
	var differ []string
	beside.Eventually(t, 2*beside.Patience, "most are agreed on and some are not", func(ctx context.Context) error {
		list := &migrationv1alpha1.StorageStateList{}
		if err := a.Objects().List(ctx, list); err != nil {
			return err
		}
		differ = nil
		var agreed []string
		for _, state := range list.Items {
			switch s := state.Status; {
			case strings.Contains(s.Message, "kube-apiservers store different versions"):
				if s.CurrentEncoding != migrationv1alpha1.Unknown || !strings.Contains(s.Message, "apiserver-") {
					t.Errorf("%s is %+v", state.Name, s)
				}
				differ = append(differ, state.Name)
			case s.CurrentEncoding != migrationv1alpha1.Unknown:
				agreed = append(agreed, state.Name)
			}
		}
		if len(differ) == 0 || !slices.Contains(agreed, "configmaps") {
			return fmt.Errorf("%v differ, on %d is agreed", differ, len(agreed))
		}
		return nil
	})
	t.Logf("stored in different versions: %v", differ)
	unmigrated(t, a, differ)
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	w.Store("v2")
	w.AwaitPruned(objects)
	unmigrated(t, a, differ)
	b.Terminate()
	beside.Eventually(t, 2*beside.Patience, "all are agreed on", func(ctx context.Context) error {
		for _, name := range differ {
			state := &migrationv1alpha1.StorageState{}
			if err := a.Objects().Get(ctx, client.ObjectKey{Name: name}, state); err != nil {
				return err
			}
			if state.Status.CurrentEncoding == migrationv1alpha1.Unknown {
				return fmt.Errorf("%s is not: %s", name, state.Status.Message)
			}
		}
		return nil
	})
}

// unmigrated checks that nothing is agreed on for these resources, and that there is no migration of them.
func unmigrated(t testing.TB, s *beside.APIServer, names []string) {
	t.Helper()
	for _, name := range names {
		state := &migrationv1alpha1.StorageState{}
		must(t, s.Objects().Get(t.Context(), client.ObjectKey{Name: name}, state))
		if state.Status.CurrentEncoding != migrationv1alpha1.Unknown {
			t.Errorf("%s is %+v", name, state.Status)
		}
	}
	list := &migrationv1alpha1.StorageVersionMigrationList{}
	must(t, s.Objects().List(t.Context(), list))
	for i := range list.Items {
		if name := migrationv1alpha1.StateName(migrationv1alpha1.Resource(&list.Items[i])); slices.Contains(names, name) {
			t.Errorf("%s is migrated, on which nothing is agreed", name)
		}
	}
}
