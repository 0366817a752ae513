package trigger

import (
	"context"
	"strings"
	"testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// A migration of a version in which no server serves the resource is ended, and says in which
// it is served; one that names a version which is served, or none, is done.
func TestVersionNotServed(t *testing.T) {
	for version, refused := range map[string]bool{"v9": true, "v1": false, "": false} {
		w, c := newWorld(t, served)
		w.report(v1)
		m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: cronJobs.Group, Version: version, Resource: cronJobs.Resource},
		}}
		m.Name = "mine"
		w.Quietly(func() { w.must(w.client.Create(context.Background(), m)) })
		w.settle(c)
		for _, got := range w.migrations() {
			if got.Name != "mine" {
				continue
			}
			failed := migrationv1alpha1.True(&got, migrationv1alpha1.MigrationFailed)
			if (failed != nil) != refused {
				t.Errorf("%q: it says %+v", version, got.Status.Conditions)
			}
			if failed != nil && (failed.Reason != migrationv1alpha1.ReasonVersionNotServed || !strings.Contains(failed.Message, `in version "v9" of spec.resource, but in v1: `)) {
				t.Errorf("%q: %s: %s", version, failed.Reason, failed.Message)
			}
		}
		if refused {
			w.wantEvent("mine", migrationv1alpha1.ReasonVersionNotServed)
		}
	}
}
