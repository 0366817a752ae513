package audit

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestStatusWriters: a controller that writes the status changes status and managedFields without a
// client's mark. All other fields must stay the same.
func TestStatusWriters(t *testing.T) {
	stored := func(text, status, writer string) *content {
		fields := map[string]any{"spec": map[string]any{"text": text}, "status": map[string]any{"text": status}, "metadata": map[string]any{}}
		if writer != "" {
			(&unstructured.Unstructured{Object: fields}).SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: writer, Subresource: "status"}})
		}
		return &content{fields: fields}
	}
	for name, c := range map[string]struct {
		now  *content
		want string
	}{
		"nothing":                   {stored("x", "a", ""), ""},
		"a status by a controller":  {stored("x", "b", "controller"), ""},
		"a status by nobody":        {stored("x", "b", ""), ".status.text: a became b"},
		"a spec with the status":    {stored("y", "b", "controller"), ".spec.text: x became y"},
		"a spec without its status": {stored("y", "a", ""), ".spec.text: x became y"},
	} {
		if got := stored("x", "a", "").diff(c.now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
