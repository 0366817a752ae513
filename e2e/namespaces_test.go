package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/e2e/load"
)

// A namespace goes with all it holds, of every kind and many of them, but not before the
// last finalizer. Meanwhile nothing can be made in it.
func testNamespaceDeletion(t *testing.T) {
	const namespace = "doomed"
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two")
	createWidgets(t, "v1", servers...)
	kube := servers[0].Kube().CoreV1()
	if _, err := kube.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fill(t, servers[0], load.ConfigMaps(namespace), 300)
	fill(t, servers[1], load.Custom(widgets.WithVersion("v1"), "Widget", namespace), 300)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "held", Finalizers: []string{"e2e.concord.dev/hold"}}}
	if _, err := kube.Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := servers[1].Kube().CoreV1().Namespaces().Delete(t.Context(), namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, 60*time.Second, "all but the held object goes", func(ctx context.Context) error {
		if left := keysOf(t, c, namespace); len(left) != 1 {
			return fmt.Errorf("%d objects are left", len(left))
		}
		ns, err := kube.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ns.Status.Phase != corev1.NamespaceTerminating || len(ns.Status.Conditions) == 0 {
			return fmt.Errorf("the namespace does not say why it is still there: %+v", ns.Status)
		}
		return nil
	})
	_, err := servers[1].Kube().CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("an object was to be made in a namespace that goes away: %v, want Forbidden", err)
	}
	release := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := kube.Secrets(namespace).Patch(t.Context(), "held", types.MergePatchType, release, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, time.Minute, "the namespace goes", func(ctx context.Context) error {
		if _, err := kube.Namespaces().Get(ctx, namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.New("it is there")
		}
		return nil
	})
	if left := keysOf(t, c, namespace); len(left) > 0 {
		t.Errorf("the namespace is gone, but etcd still has %v", left)
	}
	c.Check()
}

// keysOf returns the keys of all objects in the namespace.
func keysOf(t *testing.T, c *cluster.Cluster, namespace string) []string {
	t.Helper()
	var keys []string
	for _, prefix := range []string{"configmaps", "secrets", "serviceaccounts", "events", "leases", "endpointslices", "e2e.concord.dev/widgets"} {
		response, err := c.Raw.Get(t.Context(), "/registry/"+prefix+"/"+namespace+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range response.Kvs {
			keys = append(keys, string(kv.Key))
		}
	}
	return keys
}
