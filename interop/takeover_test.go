package interop

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
)

// left is a resource as kube-storage-version-migrator has left it, in the middle of its work.
type left struct {
	*beside.Widgets
	// says are the conditions of its migration.
	says []any
	// stored are the versions that its StorageState names; the first is the current one.
	stored []string
	// goesOn says that the controllers continue the migration as it is.
	goesOn bool
	want   migrationv1alpha1.MigrationConditionType
	reason string
}

// TestTakeOver: the controllers come after kube-storage-version-migrator. There are the CRDs of
// its manifests, and a migration that it had not begun, one that it had begun, and one that had
// ended, with their StorageStates. The controllers take up the first, end the second with a
// reason and make it anew, and leave the third as it is. Everything is migrated and pruned.
func TestTakeOver(t *testing.T) {
	const objects = 50
	c := newCluster(t)
	a := c.APIServer("a")
	for _, file := range []string{"storage_migration_crd", "storage_state_crd"} {
		definitions, err := beside.Manifests("testdata/kube-storage-version-migrator/" + file + ".yaml")
		must(t, err)
		a.Install(definitions)
	}
	condition := func(kind string) []any {
		return []any{map[string]any{"type": kind, "status": "True", "lastUpdateTime": metav1.Now().UTC().Format(time.RFC3339)}}
	}
	all := []*left{
		{Widgets: a.Define("pendings", true, nil), stored: []string{"v2", "v1"}, goesOn: true, want: migrationv1alpha1.MigrationSucceeded, reason: migrationv1alpha1.ReasonSucceeded},
		{Widgets: a.Define("runnings", true, nil), stored: []string{"v2", "v1"}, says: condition("Running"), want: migrationv1alpha1.MigrationFailed, reason: migrationv1alpha1.ReasonBegunElsewhere},
		{Widgets: a.Define("endeds", true, nil), stored: []string{"v2"}, says: condition("Succeeded"), want: migrationv1alpha1.MigrationSucceeded},
	}
	for _, l := range all {
		if len(l.stored) > 1 {
			l.Fill(objects, nil)
		}
		l.Store("v2")
		beside.Eventually(t, beside.Patience, l.Plural+" are stored in v2", func(context.Context) error {
			list, err := a.Kube().Discovery().ServerResourcesForGroupVersion(beside.V2)
			if err == nil && !slices.ContainsFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == l.Plural && r.StorageVersionHash == l.hash("v2") }) {
				err = fmt.Errorf("it says %+v", list.APIResources)
			}
			return err
		})
		l.Fill(objects, nil) // those that are not there yet
		l.leave(t)
	}
	a.Controllers("controllers", stock.Config{
		Settle: 3 * time.Second, Poll: 2 * time.Second, ReplicaTimeout: 10 * time.Second, InstallDefinitions: true, ReplicaAddresses: tested(t).places(a),
		Settings: observed.Settings{PruneAfter: 3 * time.Second},
	})
	for _, l := range all {
		l.AwaitPruned(objects)
		m := &migrationv1alpha1.StorageVersionMigration{}
		must(t, a.Objects().Get(t.Context(), client.ObjectKey{Name: l.Plural}, m))
		conditions := m.Status.Conditions
		if !slices.ContainsFunc(conditions, func(c migrationv1alpha1.MigrationCondition) bool {
			return c.Type == l.want && c.Status == "True" && c.Reason == l.reason
		}) {
			t.Errorf("%s says %+v, want %s because of %q", l.Plural, conditions, l.want, l.reason)
		}
		made, err := l.Migrations(t.Context())
		if err != nil || l.goesOn && len(made) != 1 {
			t.Errorf("of %s there are %d migrations, %v", l.Plural, len(made), err)
		}
		t.Logf("%s: %d migrations, the one that was there says %+v", l.Plural, len(made), conditions)
	}
}

// hash is the storage version hash by which discovery, and so kube-storage-version-migrator, knows a version.
func (l *left) hash(version string) string {
	kind := strings.ToUpper(l.Plural[:1]) + strings.TrimSuffix(l.Plural[1:], "s")
	return migrationv1alpha1.StorageVersionHash(schema.GroupVersionKind{Group: beside.Group, Version: version, Kind: kind})
}

// leave creates the objects that kube-storage-version-migrator has left for the resource.
func (l *left) leave(t testing.TB) {
	t.Helper()
	of := map[string]any{"group": beside.Group, "resource": l.Plural}
	var hashes []any
	for _, version := range l.stored {
		hashes = append(hashes, l.hash(version))
	}
	l.put(t, "storagestates", "StorageState", l.Name(), map[string]any{"resource": of}, map[string]any{
		"currentStorageVersionHash": hashes[0], "persistedStorageVersionHashes": hashes, "lastHeartbeatTime": metav1.Now().UTC().Format(time.RFC3339),
	})
	of["version"] = "v2"
	l.put(t, "storageversionmigrations", "StorageVersionMigration", l.Plural, map[string]any{"resource": of}, map[string]any{"conditions": l.says})
}

// put creates an object and writes its status.
func (l *left) put(t testing.TB, resource, kind, name string, spec, status map[string]any) {
	t.Helper()
	objects := l.Server.Dynamic().Resource(schema.GroupVersionResource{Group: migrationv1alpha1.GroupName, Version: "v1alpha1", Resource: resource})
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": migrationv1alpha1.SchemeGroupVersion.String(), "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec,
	}}
	o, err := objects.Create(t.Context(), o, metav1.CreateOptions{})
	must(t, err)
	o.Object["status"] = status
	if _, err := objects.UpdateStatus(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}
