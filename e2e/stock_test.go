package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
)

// The identity Lease of a kube-apiserver without Concord keeps everybody from agreeing, and
// anybody that looks is told so, until somebody deletes it as told. The Lease that upstream's code
// keeps in a process of ours does not.
func TestStockServersLease(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.WaitSettled()
	ctx, configMaps := t.Context(), schema.GroupResource{Resource: "configmaps"}
	leases := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace)
	create := func(name string) {
		t.Helper()
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}}}
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: ptr.To(name + "_1"), LeaseDurationSeconds: ptr.To[int32](3600), RenewTime: ptr.To(metav1.NowMicro())}
		if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const stock = "apiserver-kkqhvpzxapvqo7nmmyypiqz3ie"
	create(storageversion.NewUpstreamIdentity())
	create(stock)
	cluster.Eventually(t, time.Minute, "nobody agrees", func(context.Context) error {
		if standing := c.Standing(configMaps); standing.Common() != "" {
			return fmt.Errorf("servers agree on %s: %v", standing.Common(), c.Reports(configMaps))
		}
		return nil
	})
	sv := &v1alpha1.StorageVersion{}
	must(t, s.Objects().Get(ctx, client.ObjectKey{Name: storageversion.Name(configMaps)}, sv))
	told := storageversion.WaitsFor(sv)
	if !strings.HasPrefix(told, "1 server does not report what it encodes: "+stock+" (kube-apiserver without Concord") || !strings.HasSuffix(told, "kubectl delete lease -n kube-system "+stock) {
		t.Errorf("the StorageVersion says %q", told)
	}

	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "mine"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	must(t, s.Objects().Create(ctx, m))
	cluster.Eventually(t, time.Minute, "what waits says for whom", func(ctx context.Context) error {
		state := &migrationv1alpha1.StorageState{}
		if err := s.Objects().Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(configMaps)}, state); err != nil {
			return err
		}
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil {
			return err
		}
		if migrationv1alpha1.Waiting(m) != told || state.Status.Message != told || state.Status.CurrentEncoding != migrationv1alpha1.Unknown {
			return fmt.Errorf("the migration has the conditions %+v, the state says %+v, want %q", m.Status.Conditions, state.Status, told)
		}
		events, err := s.Kube().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + migrationv1alpha1.ReasonWaitingForAgreement})
		if err == nil && (len(events.Items) != 1 || events.Items[0].Type != corev1.EventTypeWarning) {
			err = fmt.Errorf("%d events tell of it: %+v", len(events.Items), events.Items)
		}
		return err
	})

	must(t, leases.Delete(ctx, stock, metav1.DeleteOptions{}))
	cluster.Eventually(t, 90*time.Second, "the migration succeeds", func(ctx context.Context) error {
		if err := s.Objects().Get(ctx, client.ObjectKeyFromObject(m), m); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) == nil {
			return fmt.Errorf("its conditions are %+v", m.Status.Conditions)
		}
		return nil
	})
	c.WaitSettled()
	c.Check()
}
