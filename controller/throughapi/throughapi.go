// Package throughapi does the jobs of package claim by the engine of package migrate/api.
package throughapi

import (
	"context"
	"encoding/json"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
)

// Run does a job. The caller's options say how much it may ask of the server; Run fills in where to begin and whom to
// report progress to.
func Run(ctx context.Context, engine *migrateapi.Engine, job claim.Job, options migrateapi.Options, progress func(claim.Progress)) (claim.Result, error) {
	options.MaxNamed = migrationv1alpha1.MaxFailures
	// A cursor that cannot be read is the beginning.
	if json.Unmarshal([]byte(job.Resume), &options.Resume) != nil {
		options.Resume = migrateapi.Cursor{}
	}
	if job.Failed != nil {
		options.Failed = func(f migrateapi.Failure) { job.Failed(failureOf(f)) }
	}
	target := migrateapi.Target{GroupResource: job.GroupResource, Versions: job.Versions}
	result, err := engine.Run(ctx, target, options, func(r migrateapi.Report) { progress(nowOf(r)) })
	answer := claim.Result{Progress: progressOf(result.Progress), Failures: failuresOf(result.Failed)}
	answer.Total = result.Total - result.Gone
	return answer, err
}

func nowOf(r migrateapi.Report) claim.Progress {
	now := progressOf(r.Progress)
	now.Hindered, now.Overloaded = r.Hindered, r.Overloaded
	if kept, err := json.Marshal(r.Cursor); err == nil && r.Cursor.Continue != "" {
		now.Checkpoint = claim.Checkpoint{Position: string(kept), Failures: failuresOf(r.Cursor.Failed)}
	}
	return now
}

func progressOf(p migrateapi.Progress) claim.Progress {
	progress := claim.Progress{Total: max(p.Expected, p.Total) - p.Gone, Done: p.Patched + p.Overtaken, Failed: p.Failed.Sum(), Conflicts: p.Overtaken}
	for reason, n := range p.Failed {
		if n == 0 {
			continue
		}
		if progress.FailedByReason == nil {
			progress.FailedByReason = map[migrationv1alpha1.MigrationFailureReason]int64{}
		}
		progress.FailedByReason[migrationv1alpha1.MigrationFailureReason(migrateapi.Reason(reason).String())] = n
	}
	return progress
}

func failuresOf(failed []migrateapi.Failure) []claim.Failure {
	var failures []claim.Failure
	for _, f := range failed {
		failures = append(failures, failureOf(f))
	}
	return failures
}

func failureOf(f migrateapi.Failure) claim.Failure {
	return claim.Failure{Namespace: f.Namespace, Name: f.Name, Reason: migrationv1alpha1.MigrationFailureReason(f.Reason.String()), Message: f.Detail}
}
