package trigger

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lateMapper learns of a kind when it is reset, as one over discovery does.
type lateMapper struct {
	*meta.DefaultRESTMapper
	late schema.GroupVersionKind
}

func (m lateMapper) Reset() { m.Add(m.late, meta.RESTScopeNamespace) }

func TestKindsOf(t *testing.T) {
	early := schema.GroupVersionKind{Group: "batch.example.com", Version: "v1", Kind: "CronJob"}
	late := schema.GroupVersionKind{Group: "late.example.com", Version: "v1", Kind: "Late"}
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(early, meta.RESTScopeNamespace)
	kinds := KindsOf(lateMapper{mapper, late})
	for gr, want := range map[schema.GroupResource]string{
		{Group: "batch.example.com", Resource: "cronjobs"}: "CronJob",
		{Group: "late.example.com", Resource: "lates"}:     "Late",
	} {
		if got, err := kinds.Kind(context.Background(), gr); err != nil || got != want {
			t.Errorf("%s: %s, %v", gr, got, err)
		}
	}
	for _, gr := range []schema.GroupResource{
		{Group: "batch.example.com", Resource: "typos"},
		{Group: "batch.example.com", Resource: "cronjob"},
		{Group: "batch.example.com", Resource: "CronJobs"},
		{Group: "batch", Resource: "cronjobs"},
		{Resource: "cronjobs"},
	} {
		if kind, err := kinds.Kind(context.Background(), gr); !meta.IsNoMatchError(err) {
			t.Errorf("%s, which is not served: %q, %v", gr, kind, err)
		}
	}
}
