package throughapi

import (
	"reflect"
	"testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
)

// TestProgress: an object that another client wrote meanwhile counts as done, and as a conflict.
func TestProgress(t *testing.T) {
	p := migrateapi.Progress{Expected: 8, Total: 10, Patched: 4, Overtaken: 2, Gone: 1}
	if got, want := progressOf(p), (claim.Progress{Total: 9, Done: 6, Conflicts: 2}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := nowOf(migrateapi.Report{Progress: p, Hindered: "why"}); got.Hindered != "why" || got.Done != 6 {
		t.Errorf("got %+v", got)
	}
	p.Failed[migrateapi.DoesNotDecode] = 3
	want := claim.Progress{Total: 9, Done: 6, Failed: 3, Conflicts: 2, FailedByReason: map[migrationv1alpha1.MigrationFailureReason]int64{"DoesNotDecode": 3}}
	if got := progressOf(p); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestReasons: each reason has its own name in the status of a migration, both in the counts and
// with the objects that failed.
func TestReasons(t *testing.T) {
	names := map[migrateapi.Reason]migrationv1alpha1.MigrationFailureReason{
		migrateapi.DoesNotDecode: "DoesNotDecode",
		migrateapi.WebhookFailed: "ConversionWebhookFailed",
		migrateapi.Rejected:      "Rejected",
		migrateapi.Conflict:      "Conflict",
		migrateapi.TooLarge:      "TooLarge",
	}
	var failed migrateapi.Counts
	if len(names) != len(failed) {
		t.Errorf("%d reasons are tested, of %d", len(names), len(failed))
	}
	want := map[migrationv1alpha1.MigrationFailureReason]int64{}
	for reason, name := range names {
		failed[reason] = 10 + int64(reason)
		want[name] = failed[reason]
		if got := failureOf(migrateapi.Failure{Reason: reason}).Reason; got != name {
			t.Errorf("%v is %q, want %q", reason, got, name)
		}
	}
	if got := progressOf(migrateapi.Progress{Failed: failed}); !reflect.DeepEqual(got.FailedByReason, want) || got.Failed != 60 {
		t.Errorf("%+v are counted as %v, %d, want %v", failed, got.FailedByReason, got.Failed, want)
	}
}
