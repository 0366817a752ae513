package trigger

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// TestCountAfterRestore: a count of objects is not used any more after the StorageState was deleted, or has an
// older resourceVersion, as after etcd was restored from a backup.
func TestCountAfterRestore(t *testing.T) {
	c := New(Config{Census: func(context.Context, schema.GroupResource, evolve.Target) ([]agree.Encoding, error) { return nil, nil }})
	target := evolve.Target{Ref: evolve.Ref{UID: "u", Epoch: 2}, Encoding: v2}
	state := func(resourceVersion string) *migrationv1alpha1.StorageState {
		s := &migrationv1alpha1.StorageState{}
		s.ResourceVersion = resourceVersion
		return s
	}
	for name, tc := range map[string]struct {
		then  *migrationv1alpha1.StorageState
		stays bool
	}{
		"the same": {state("90"), true}, "a later one": {state("100"), true}, "an older one": {state("89"), false}, "none": {nil, false},
	} {
		c.notice(cronJobs, state("90"))
		if err := c.Count(t.Context(), cronJobs, target); err != nil {
			t.Fatal(err)
		}
		c.notice(cronJobs, tc.then)
		if census := c.census(cronJobs, target); (census != nil) != tc.stays {
			t.Errorf("%s: the count is %v", name, census)
		}
		delete(c.newest, cronJobs)
	}
}
