package claim

import (
	"context"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// redefine changes the CustomResourceDefinition, and gives the controller its watch event.
func (w *world) redefine(stores string, generation int64) {
	w.crd(stores, generation)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	w.must(w.client.Get(context.Background(), client.ObjectKey{Name: cronJobs.String()}, crd))
	w.c.ObserveDefinition(crd)
}

// TestRedefined: if the definition changes during a rewrite, for example its conversion webhook, the rewrite begins again
// at once with the new definition, which does not count as an error. The migration fails if the definition changes again
// and again, or stores another version.
func TestRedefined(t *testing.T) {
	for name, test := range map[string]struct {
		redefine func(w *world, begun int64) bool // whether the change interrupts the rewrite
		begun    int64
		ended    migrationv1alpha1.MigrationConditionType
		reason   string
	}{
		"once": {func(w *world, begun int64) bool {
			if begun == 1 {
				w.redefine("v1", 2)
			}
			return begun == 1
		}, 2, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
		"always": {func(w *world, begun int64) bool {
			w.redefine("v1", begun+1)
			return true
		}, 1 + attempts, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"stores another version": {func(w *world, _ int64) bool {
			w.redefine("v2", 2)
			return true
		}, 1, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"seen late": {func(w *world, _ int64) bool {
			w.redefine("v1", 1)
			return false
		}, 1, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 1)
			w.migration(nil)
			var begun int64
			w.rewrite = func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
				begun++
				if job.Resume != "" || job.CRD != (CRD{UID: "crd-uid", Generation: begun}) {
					t.Errorf("the rewrite begins at %q under %+v", job.Resume, job.CRD)
				}
				progress(Progress{Total: 3, Done: 1, Checkpoint: Checkpoint{Position: "one"}})
				if test.redefine(w, begun) {
					return untilInterrupted(ctx)
				}
				return Result{Progress: Progress{Total: 3, Done: 3}}, ctx.Err()
			}
			w.step()
			w.expectTrue(test.ended, test.reason)
			if begun != test.begun {
				t.Errorf("it began %d times, want %d", begun, test.begun)
			}
		})
	}
}

// TestRedefinedBeforeItBegins: the definition changes after it was read and before the rewrite begins, while the claim is
// written. The rewrite is done with the new definition.
func TestRedefinedBeforeItBegins(t *testing.T) {
	for name, test := range map[string]struct {
		stores     string
		generation int64
		begun      []int64
		ended      migrationv1alpha1.MigrationConditionType
		reason     string
	}{
		"changed":                {"v1", 2, []int64{1, 2}, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
		"stores another version": {"v2", 2, []int64{1}, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"seen late":              {"v1", 1, []int64{1}, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 1)
			w.migration(nil)
			w.once("update status StorageVersionMigration", 1, func() { w.redefine(test.stores, test.generation) })
			var begun []int64
			w.rewrite = func(ctx context.Context, job Job, _ func(Progress)) (Result, error) {
				begun = append(begun, job.CRD.Generation)
				return Result{Progress: Progress{Total: 3, Done: 3}}, ctx.Err()
			}
			w.step()
			w.expectTrue(test.ended, test.reason)
			if !slices.Equal(begun, test.begun) {
				t.Errorf("it began under generations %v, want %v", begun, test.begun)
			}
		})
	}
}
