package trigger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestMissingResource: a migration of what no server stores ends, also where it names a
// subresource, after which no object can be called.
func TestMissingResource(t *testing.T) {
	for _, gr := range []schema.GroupResource{cronJobs, {Resource: "pods/status"}} {
		t.Run(gr.String(), func(t *testing.T) { missing(t, gr) })
	}
}

// TestNobodyKnows: a migration of a resource of which discovery does not tell, since an aggregated API server
// does not answer, says what it waits for.
func TestNobodyKnows(t *testing.T) {
	w, c := newWorld(t, silent{})
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: cronJobs.Group, Version: "v1", Resource: cronJobs.Resource},
	}}
	m.Name = "away"
	w.must(w.client.Create(context.Background(), m))
	for range 3 {
		result := w.step(c)
		w.clock.Step(result.After)
	}
	got := w.migrations()[0]
	if why := migrationv1alpha1.Waiting(&got); !strings.Contains(why, "kubectl get apiservices") {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
}

// silent are kinds that nobody tells.
type silent struct{}

// Kind implements Kinds.
func (silent) Kind(context.Context, schema.GroupResource) (string, error) {
	return "", errors.New("the server is currently unable to handle the request")
}

func missing(t *testing.T, gr schema.GroupResource) {
	w, c := newWorld(t, kinds{})
	typo := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: gr.Group, Version: "v1", Resource: gr.Resource},
	}}
	typo.Name = "typo"
	original := &storagemigrationv1.StorageVersionMigration{}
	original.Name, original.UID = "original", "original-uid"
	typo.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(original, storagemigrationv1.SchemeGroupVersion.WithKind(migrationv1alpha1.MigrationKind))}
	w.must(w.client.Create(context.Background(), typo))
	result, err := c.Step(context.Background(), gr)
	w.must(err)
	if result.After <= 0 || result.After > time.Minute {
		t.Fatalf("looks again after %s", result.After)
	}
	w.clock.Step(result.After)
	_, err = c.Step(context.Background(), gr)
	w.must(err)
	got := w.migrations()[0]
	failed := migrationv1alpha1.True(&got, migrationv1alpha1.MigrationFailed)
	if failed == nil || failed.Reason != migrationv1alpha1.ReasonResourceNotFound || !strings.Contains(failed.Message, gr.String()) {
		t.Errorf("conditions %+v", got.Status.Conditions)
	}
	w.wantEnded("typo Failed")
	for _, name := range []string{"typo", "original"} {
		w.wantEvent(name, migrationv1alpha1.ReasonResourceNotFound)
	}
}
