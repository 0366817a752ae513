package server

import (
	"reflect"
	"testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/apimigrate"
	"github.com/concord-dev/concord/controller/migrate"
)

// What others wrote meanwhile is done, and a conflict.
func TestAPIProgress(t *testing.T) {
	p := apimigrate.Progress{Expected: 8, Total: 10, Patched: 4, Overtaken: 2, Gone: 1}
	if got, want := apiProgress(p), (migrate.Progress{Total: 9, Done: 6, Conflicts: 2}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	p.Failed[0] = 3
	want := migrate.Progress{Total: 9, Done: 6, Failed: 3, Conflicts: 2, FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{apiReason(0): 3}}
	if got := apiProgress(p); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
