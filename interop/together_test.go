package interop

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/beside"
)

// TestTogether: kube-controller-manager's own migrator migrates the same resource at the same
// time, while clients write. No write is lost, storedVersions never lacks a version in which
// objects are stored, and an Event about the CRD says that both migrate.
func TestTogether(t *testing.T) {
	const objects = 1000
	c := newCluster(t)
	a := guarded(t, c)
	b := c.APIServer("b")
	deployed(a, nil)
	controllerManager(t, b, withMigrator, "--leader-elect=false")
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	w.AwaitStored(beside.V1, beside.V1)
	stop := beside.Guard(t, c.Etcd.Raw, w.In("v1").GroupResource(), 0)
	writing := w.Write(objects, a, b)
	w.Store("v2")
	order(t, w)
	w.AwaitPruned(objects)
	beside.Eventually(t, 2*beside.Patience, "the in-tree migration ends", func(ctx context.Context) error {
		now, err := conditions(ctx, t, w)
		if _, ok := now["Succeeded"]; err == nil && !ok {
			err = fmt.Errorf("its conditions are %v", now)
		}
		return err
	})
	writing.Stop("v2")
	told, err := a.Kube().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + w.Name()})
	if err != nil || len(told.Items) != 1 || told.Items[0].Reason != migrationv1alpha1.ReasonMigratedElsewhere {
		t.Errorf("events about the definition are %+v, %v", told, err)
	}
	if err := w.TakeOut(); err != nil {
		t.Fatalf("take out v1: %v", err)
	}
	stop()
}
