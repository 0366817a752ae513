package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// The definitions of StorageStates and migrations are deleted while servers run: they are
// made again within a minute, and all that is stored is proven anew, by new migrations.
func TestOwnCRDsDeleted(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two")
	c.WaitSettled()
	s := servers[0]
	objects := s.Objects()
	var states migrationv1alpha1.StorageStateList
	must(t, objects.List(t.Context(), &states))
	before := map[string]bool{}
	for _, state := range states.Items {
		before[string(state.UID)] = true
	}
	uids := map[string]string{}
	for _, crd := range migrationv1alpha1.CRDs() {
		have := &apiextensionsv1.CustomResourceDefinition{}
		must(t, objects.Get(t.Context(), client.ObjectKeyFromObject(crd), have))
		uids[crd.Name] = string(have.UID)
		must(t, objects.Delete(t.Context(), &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crd.Name}}))
	}
	cluster.Eventually(t, time.Minute, "the definitions are made again", func(ctx context.Context) error {
		for name, uid := range uids {
			have := &apiextensionsv1.CustomResourceDefinition{}
			if err := objects.Get(ctx, client.ObjectKey{Name: name}, have); err != nil {
				return err
			}
			if string(have.UID) == uid {
				return fmt.Errorf("%s is still there", name)
			}
		}
		return nil
	})
	cluster.Eventually(t, cluster.SettleTimeout, "all that is stored is proven anew", func(ctx context.Context) error {
		var now migrationv1alpha1.StorageStateList
		if err := objects.List(ctx, &now); err != nil {
			return err
		}
		if len(now.Items) < len(states.Items) {
			return fmt.Errorf("%d StorageStates of %d", len(now.Items), len(states.Items))
		}
		for _, state := range now.Items {
			if persisted := state.Status.PersistedStorageVersionHashes; before[string(state.UID)] || len(persisted) != 1 || strings.EqualFold(string(persisted[0]), "unknown") {
				return fmt.Errorf("%s, uid %s, has %v", state.Name, state.UID, persisted)
			}
		}
		return nil
	})
	c.WaitSettled()
	// The controllers watch the new objects.
	createWidgets(t, "v1", servers...)
	fill(t, s, widgetsV1, 20)
	storeWidgetsIn(t, s, "v2")
	c.WaitSettled()
	wantEncoding(t, c, widgets, widgetEncoding("v2"), 20)
	c.Check()
}
