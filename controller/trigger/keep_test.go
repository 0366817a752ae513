package trigger

import (
	"context"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// A version that may still be stored and was taken out of storedVersions is put back, of the
// definition as it was read.
func TestKeep(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v1)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	w.report(v1, v2)
	w.settle(c)
	stored := func() []string { t.Helper(); return w.storedVersions() }
	prune := func() { t.Helper(); w.prune("v2") }
	if got := stored(); !slices.Equal(got, []string{"v1", "v2"}) {
		t.Fatalf("storedVersions are %v before anybody touched them", got)
	}
	prune()
	expect(t, w.settle(c), "keep batch.example.com/v1 in storedVersions of "+cronJobs.String())
	if got := stored(); !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("storedVersions are %v", got)
	}

	prune()
	touched := false
	w.Before = func(call string) error {
		if call == "update status CustomResourceDefinition" && !touched {
			touched = true
			prune() // the definition is not as it was read
			w.Quietly(func() {
				crd := &apiextensionsv1.CustomResourceDefinition{}
				w.must(w.client.Get(context.Background(), client.ObjectKey{Name: cronJobs.String()}, crd))
				crd.Labels = map[string]string{"touched": "true"}
				w.must(w.client.Update(context.Background(), crd))
			})
		}
		return nil
	}
	_, err := c.Step(context.Background(), cronJobs)
	w.Before = nil
	if !touched || !changed(err) {
		t.Errorf("touched %v, error %v", touched, err)
	}
}

// While nobody knows what is stored, a version that storedVersions named is put back, and only
// a migration's success ends that.
func TestKeepUnknown(t *testing.T) {
	w, c := newWorld(t, kinds{})
	w.crd("v2", "v1", "v2")
	w.report(v1, v2)
	w.settle(c)
	if state := w.state(); !slices.Equal(state.Status.PersistedEncodings, []string{"Unknown"}) {
		t.Fatalf("the stored set is %v", state.Status.PersistedEncodings)
	}
	listed := func(want string) {
		t.Helper()
		if got := w.state().Annotations[migrationv1alpha1.ListedEncodingsAnnotation]; got != want {
			t.Errorf("listed are %q, want %q", got, want)
		}
	}
	listed("batch.example.com/v1,batch.example.com/v2")
	w.prune("v2")
	expect(t, w.settle(c), "keep batch.example.com/v1 in storedVersions of "+cronJobs.String())
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2", "v1"}) {
		t.Errorf("storedVersions are %v", got)
	}
	w.report(v2)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	listed("")
	if got := w.storedVersions(); !slices.Equal(got, []string{"v2"}) {
		t.Errorf("storedVersions are %v after the proof", got)
	}
}

// storedVersions are those of the definition.
func (w *world) storedVersions() []string {
	w.t.Helper()
	crd := &apiextensionsv1.CustomResourceDefinition{}
	w.Quietly(func() { w.must(w.client.Get(context.Background(), client.ObjectKey{Name: cronJobs.String()}, crd)) })
	return crd.Status.StoredVersions
}

// prune sets the definition's storedVersions, as another migrator does.
func (w *world) prune(to ...string) {
	w.t.Helper()
	w.Quietly(func() {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		w.must(w.client.Get(context.Background(), client.ObjectKey{Name: cronJobs.String()}, crd))
		crd.Status.StoredVersions = to
		w.must(w.client.Status().Update(context.Background(), crd))
	})
}
