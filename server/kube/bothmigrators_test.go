package kube_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	stockserver "github.com/concord-dev/concord/server/stock"
)

// manage starts Kubernetes' own kube-controller-manager with its migrator and the garbage collector
// that this needs.
func (c *control) manage(s *apiserver) {
	c.t.Helper()
	kubeconfig, err := beside.Access{URL: s.URL(), CAFile: filepath.Join(c.Dir, s.Name, "apiserver.crt"), Token: adminToken, Dir: c.Dir}.Kubeconfig(manager)
	must(c.t, err)
	_, port, _ := strings.Cut(cluster.FreeAddress(c.t), ":")
	start(c.t, manager, manager, c.Dir, "--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+port,
		"--cert-dir="+c.Path(manager), "--leader-elect=false", stockserver.MigratorFlag)
}

// upstream makes a migration of widgets in storagemigration.k8s.io.
func (s *apiserver) upstream(name string) {
	s.t.Helper()
	m := &storagemigrationv1.StorageVersionMigration{Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource(widgets)}}
	m.Name = name
	if _, err := s.Kube().StoragemigrationV1().StorageVersionMigrations().Create(s.t.Context(), m, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// told returns the conditions of the migration, and the condition StorageMigrating of its CRD.
func (s *apiserver) told(ctx context.Context, name string) (conditions []metav1.Condition, definition *apiextensionsv1.CustomResourceDefinitionCondition, err error) {
	m, err := s.Kube().StoragemigrationV1().StorageVersionMigrations().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := s.Objects().Get(ctx, client.ObjectKey{Name: widgets.String()}, crd); err != nil {
		return nil, nil, err
	}
	return m.Status.Conditions, apihelpers.FindCRDCondition(crd, apiextensionsv1.StorageMigrating), nil
}

// done waits until the migration and its copy have succeeded, and the CRD does not say any more
// that a migration runs. It returns the reason of the success, which tells whose it is.
func (s *apiserver) done(timeout time.Duration, name string) (reason string) {
	s.t.Helper()
	eventually(s.t, timeout, "both migrators are done with "+name, func(ctx context.Context) error {
		conditions, definition, err := s.told(ctx, name)
		if err != nil {
			return err
		}
		succeeded := meta.FindStatusCondition(conditions, string(storagemigrationv1.MigrationSucceeded))
		if succeeded == nil || succeeded.Status != metav1.ConditionTrue || meta.IsStatusConditionTrue(conditions, string(storagemigrationv1.MigrationRunning)) {
			return fmt.Errorf("it says %v", conditions)
		}
		reason = succeeded.Reason
		if definition != nil && definition.Status != apiextensionsv1.ConditionFalse {
			return fmt.Errorf("the definition says %v", definition)
		}
		return s.copyDone(ctx, name)
	})
	return reason
}

func (s *apiserver) copyDone(ctx context.Context, name string) error {
	var all migrationv1alpha1.StorageVersionMigrationList
	if err := s.Objects().List(ctx, &all); err != nil {
		return err
	}
	for i := range all.Items {
		if of := migrationv1alpha1.Original(&all.Items[i]); of != nil && of.Name == name {
			if all.Items[i].Status.Phase != migrationv1alpha1.MigrationPhase(migrationv1alpha1.MigrationSucceeded) {
				return fmt.Errorf("the copy is %s: %v", all.Items[i].Status.Phase, all.Items[i].Status.Conditions)
			}
			return nil
		}
	}
	return fmt.Errorf("there is no copy")
}

// putRightIn is how long storedVersions may lack a version that is stored, after
// kube-controller-manager's migrator has taken it out: the time for a watch event, a step of the
// trigger and its write, on a busy machine. A person could not remove the version from the spec so
// fast.
const putRightIn = 10 * time.Second

// testBothMigrators: the real kube-controller-manager migrates beside Concord, while clients write.
// It is faster than Concord here. Whichever migrator ends first, storedVersions have all versions
// that are stored, or have them again within a moment; Concord ends when it has migrated; and
// neither the migration nor the CRD says for ever that a migration runs.
func testBothMigrators(t *testing.T) {
	c := newControl(t)
	slowly := "--migration-max-objects-per-second=100"
	one, two := c.ready(ours, "one", slowly), c.ready(ours, "two", slowly)
	const n = 200
	one.createWidgets(n)
	one.migrated(time.Minute)
	c.manage(one)
	w := write(t, patience, 20, one.APIServer, two.APIServer)
	stop := beside.Guard(t, c.Raw, widgets, putRightIn)
	deadline, theirs := time.Now().Add(4*time.Minute), 0
	for round := 0; round < 4 || theirs < 2; round++ {
		if time.Now().After(deadline) {
			t.Fatalf("kube-controller-manager was first in %d of %d rounds: nothing was tested", theirs, round)
		}
		stores, name := []string{"v2", "v1"}[round%2], fmt.Sprintf("round-%d", round)
		one.flip(stores)
		one.upstream(name)
		first := one.done(3*time.Minute, name)
		if first == "StorageVersionMigrationSucceeded" {
			theirs++
		}
		t.Logf("%s: it says %s", name, first)
		one.storedVersions(time.Minute, stores)
		one.migrated(time.Minute)
		if found := c.encodings(); len(found) != 1 {
			t.Errorf("%s: in etcd are %v", name, found)
		}
	}
	stop()
	t.Logf("%d writes", w.Stop())
}

// testMigratorBesideStock: while a stock server lives, servers do not agree. So the migration
// waits and names the stock server's Lease, kube-controller-manager's migrator waits as well, and the objects stay as
// they are.
func testMigratorBesideStock(t *testing.T) {
	c := newControl(t)
	s := c.ready(ours, "one")
	const n = 20
	s.createWidgets(n)
	s.migrated(time.Minute)
	c.manage(s)
	other := c.ready(stock, "other")
	lease := s.disagreed(time.Minute)
	stop := beside.Guard(t, c.Raw, widgets, putRightIn)
	s.flip("v2")
	s.storedVersions(time.Minute, "v1", "v2")
	s.upstream("waits")
	eventually(t, time.Minute, "kube-controller-manager has seen it, and it waits", func(ctx context.Context) error {
		conditions, definition, err := s.told(ctx, "waits")
		if err != nil {
			return err
		}
		running := meta.FindStatusCondition(conditions, string(storagemigrationv1.MigrationRunning))
		if running == nil || running.Reason != migrationv1alpha1.ReasonWaitingForAgreement || definition == nil || definition.Status != apiextensionsv1.ConditionTrue {
			return fmt.Errorf("it says %v, the definition %v", conditions, definition)
		}
		state := &migrationv1alpha1.StorageState{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(widgets)}, state); err != nil {
			return err
		}
		if !strings.Contains(running.Message, lease) || !strings.Contains(state.Status.Message, lease) {
			return fmt.Errorf("%s is not named: it says %q, the StorageState %q", lease, running.Message, state.Status.Message)
		}
		return nil
	})
	conditions, _, err := s.told(t.Context(), "waits")
	if err != nil || len(conditions) != 1 {
		t.Errorf("it says %v, error %v", conditions, err)
	}
	if found := c.encodings(); found["example.com/v1"] != n {
		t.Errorf("in etcd are %v", found)
	}
	s.storedVersions(time.Minute, "v1", "v2")
	other.end() // deletes its Lease
	t.Logf("it says %s", s.done(3*time.Minute, "waits"))
	s.storedVersions(time.Minute, "v2")
	if found := c.encodings(); found["example.com/v2"] != n || len(found) != 1 {
		t.Errorf("in etcd are %v", found)
	}
	stop()
}
