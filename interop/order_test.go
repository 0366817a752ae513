package interop

import (
	"context"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/concord-dev/concord/e2e/beside"
)

// order makes a migration of storagemigration.k8s.io, as its users do by hand.
func order(t testing.TB, w *beside.Widgets) {
	t.Helper()
	m := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": tested(t).resource().GroupVersion().String(), "kind": "StorageVersionMigration", "metadata": map[string]any{"name": w.Plural},
		"spec": map[string]any{"resource": map[string]any{"group": beside.Group, "resource": w.Plural}},
	}}
	if _, err := w.Server.Dynamic().Resource(tested(t).resource()).Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// conditions are the true ones of that migration, and the reason of each.
func conditions(ctx context.Context, t testing.TB, w *beside.Widgets) (map[string]string, error) {
	m, err := w.Server.Dynamic().Resource(tested(t).resource()).Get(ctx, w.Plural, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	all, _, err := unstructured.NestedSlice(m.Object, "status", "conditions")
	for _, c := range all {
		if c, ok := c.(map[string]any); ok && c["status"] == "True" {
			found[fmt.Sprint(c["type"])] = fmt.Sprint(c["reason"])
		}
	}
	return found, err
}
