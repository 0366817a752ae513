package replay

import (
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestWatch: a watch tells of the objects that were there before it, of every change since, in
// order, and ends when it is stopped.
func TestWatch(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := coordinationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{Watch: Watch}).Build()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "before"}}
	if err := c.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	w, err := c.Watch(t.Context(), &coordinationv1.LeaseList{})
	if err != nil {
		t.Fatal(err)
	}
	expect := func(kind watch.EventType, name, holder string) {
		t.Helper()
		e := <-w.ResultChan()
		got, ok := e.Object.(*coordinationv1.Lease)
		if !ok || e.Type != kind || got.Name != name || got.Labels["holder"] != holder {
			t.Errorf("%s of %+v, want %s of %s held by %q", e.Type, e.Object, kind, name, holder)
		}
	}
	expect(watch.Added, "before", "")
	lease.Labels = map[string]string{"holder": "a"}
	if err := c.Update(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	expect(watch.Modified, "before", "a")
	if err := c.Delete(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	expect(watch.Deleted, "before", "a")
	lease.ResourceVersion = ""
	if err := c.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	expect(watch.Added, "before", "a")
	w.Stop()
	if e, more := <-w.ResultChan(); more {
		t.Errorf("after the end: %+v", e)
	}
}
