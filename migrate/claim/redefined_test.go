package claim

import (
	"context"
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

// TestRedefined: if the definition changes during a rewrite, for example its conversion webhook, or after it was read and
// before the rewrite begins, the rewrite begins again at once with the new definition, which does not count as an error.
// The migration fails if the definition changes again and again, or stores another version.
func TestRedefined(t *testing.T) {
	const always = -1
	for name, test := range map[string]struct {
		at         int64 // the definition changes when so many rewrites have begun
		stores     string
		generation int64 // 1: the change was seen already when the definition was read
		begun      int64
		ended      migrationv1alpha1.MigrationConditionType
		reason     string
	}{
		"once":                          {1, "v1", 2, 2, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
		"always":                        {always, "v1", 0, 1 + attempts, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"stores another version":        {1, "v2", 2, 1, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"seen late":                     {1, "v1", 1, 1, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
		"before":                        {0, "v1", 2, 2, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
		"stores another version before": {0, "v2", 2, 1, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged},
		"before, and seen late":         {0, "v1", 1, 1, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 1)
			w.migration(nil)
			if test.at == 0 { // while the claim is written
				w.once("update status StorageVersionMigration", 1, func() { w.redefine(test.stores, test.generation) })
			}
			var begun int64
			w.rewrite = func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
				begun++
				if job.Resume != "" || job.CRD != (CRD{UID: "crd-uid", Generation: begun}) {
					t.Errorf("the rewrite begins at %q under %+v", job.Resume, job.CRD)
				}
				progress(Progress{Total: 3, Done: 1, Checkpoint: Checkpoint{Position: "one"}})
				generation := test.generation
				if test.at == always {
					generation = begun + 1
				}
				if test.at == always || test.at == begun {
					if w.redefine(test.stores, generation); generation > 1 {
						return untilInterrupted(ctx)
					}
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
