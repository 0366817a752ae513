// Package throughapi does the jobs of package migrate by the engine of package apimigrate.
package throughapi

import (
	"context"
	"encoding/json"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/apimigrate"
	"github.com/concord-dev/concord/controller/migrate"
)

// Run does a job. The options say how much it may ask of the server; where to begin and whom
// to tell is filled in.
func Run(ctx context.Context, engine *apimigrate.Engine, job migrate.Job, options apimigrate.Options, progress func(migrate.Progress)) (migrate.Result, error) {
	options.MaxNamed = migrationv1alpha1.MaxFailures
	// What cannot be read is the beginning.
	if json.Unmarshal([]byte(job.Resume), &options.Resume) != nil {
		options.Resume = apimigrate.Cursor{}
	}
	if job.Failed != nil {
		options.Failed = func(f apimigrate.Failure) { job.Failed(failureOf(f)) }
	}
	target := apimigrate.Target{GroupResource: job.GroupResource, Versions: job.Versions}
	result, err := engine.Run(ctx, target, options, func(r apimigrate.Report) {
		now := progressOf(r.Progress)
		if kept, err := json.Marshal(r.Cursor); err == nil && r.Cursor.Continue != "" {
			now.Checkpoint = migrate.Checkpoint{Position: string(kept), Failures: failuresOf(r.Cursor.Failed)}
		}
		progress(now)
	})
	answer := migrate.Result{Progress: progressOf(result.Progress), Failures: failuresOf(result.Failed)}
	answer.Total = result.Total - result.Gone
	return answer, err
}

func progressOf(p apimigrate.Progress) migrate.Progress {
	progress := migrate.Progress{Total: max(p.Expected, p.Total) - p.Gone, Done: p.Patched + p.Overtaken, Failed: p.Failed.Sum(), Conflicts: p.Overtaken}
	for reason, n := range p.Failed {
		if n == 0 {
			continue
		}
		if progress.FailedByReason == nil {
			progress.FailedByReason = map[migrationv1alpha1.MigrationFailureReason]int64{}
		}
		progress.FailedByReason[reasonOf(apimigrate.Reason(reason))] += n
	}
	return progress
}

func failuresOf(failed []apimigrate.Failure) []migrate.Failure {
	var failures []migrate.Failure
	for _, f := range failed {
		failures = append(failures, failureOf(f))
	}
	return failures
}

func failureOf(f apimigrate.Failure) migrate.Failure {
	return migrate.Failure{Namespace: f.Namespace, Name: f.Name, Reason: reasonOf(f.Reason), Message: f.Detail}
}

func reasonOf(r apimigrate.Reason) migrationv1alpha1.MigrationFailureReason {
	switch r {
	case apimigrate.DoesNotDecode:
		return migrationv1alpha1.FailureDoesNotDecode
	case apimigrate.WebhookFailed:
		return migrationv1alpha1.FailureConversionWebhook
	case apimigrate.Conflict:
		return migrationv1alpha1.FailureConflict
	case apimigrate.TooLarge:
		return migrationv1alpha1.FailureTooLarge
	default:
		return migrationv1alpha1.FailureRejected
	}
}
