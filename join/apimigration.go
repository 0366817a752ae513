package join

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/apimigrate"
	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/join/convert"
	"github.com/concord-dev/concord/join/garbage"
	"github.com/concord-dev/concord/rewrite"
)

// apiMigrator migrates through this server's API what is not to be rewritten in its store.
type apiMigrator struct {
	engine   *apimigrate.Engine
	services apiregistrationclient.APIServicesGetter
	garbage  *garbage.Collector
	// yield says how a job gives way.
	yield func(migrate.Job) rewrite.Yield
}

var _ migrate.Rewriter = (*apiMigrator)(nil)

// newAPIMigrator returns one that uses the server which config names, this one, in the
// process. What it writes is noted in migrated.
func newAPIMigrator(config *rest.Config, local *inProcess, collector *garbage.Collector, migrated *convert.UnderWay, yield func(migrate.Job) rewrite.Yield) (*apiMigrator, error) {
	client, err := apimigrate.NewClient(local.config(config))
	if err != nil {
		return nil, err
	}
	services, err := apiregistrationclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("a client for APIServices: %w", err)
	}
	return &apiMigrator{engine: apimigrate.New(convert.Noted(client, migrated)), services: services, garbage: collector, yield: yield}, nil
}

// elsewhere says which service a resource's version is served by, if it is one.
func (a *apiMigrator) elsewhere(ctx context.Context, gvr schema.GroupVersionResource) (string, error) {
	if gvr.Group == "" {
		return "", nil // is never served by another program
	}
	service, err := a.services.APIServices().Get(ctx, gvr.Version+"."+gvr.Group, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get the APIService of %s: %w", gvr.GroupVersion(), err)
	case service.Spec.Service == nil:
		return "", nil
	}
	return fmt.Sprintf("%s is served by service %s/%s", gvr.GroupVersion(), service.Spec.Service.Namespace, service.Spec.Service.Name), nil
}

// Rewrite implements migrate.Rewriter.
func (a *apiMigrator) Rewrite(ctx context.Context, job migrate.Job, progress func(migrate.Progress)) (migrate.Result, error) {
	// Every object is taken apart and put together several times.
	defer a.garbage.Spare()()
	options := giving(a.yield(job))
	options.MaxNamed = migrationv1alpha1.MaxFailures
	// What cannot be read is the beginning.
	if json.Unmarshal([]byte(job.Resume), &options.Resume) != nil {
		options.Resume = apimigrate.Cursor{}
	}
	if job.Failed != nil {
		options.Failed = func(f apimigrate.Failure) { job.Failed(apiFailure(f)) }
	}
	target := apimigrate.Target{GroupResource: job.GroupResource, Versions: job.Versions}
	result, err := a.engine.Run(ctx, target, options, func(r apimigrate.Report) {
		now := apiProgress(r.Progress)
		if kept, err := json.Marshal(r.Cursor); err == nil && r.Cursor.Continue != "" {
			now.Checkpoint = migrate.Checkpoint{Position: string(kept), Failures: apiFailures(r.Cursor.Failed)}
		}
		progress(now)
	})
	answer := migrate.Result{Progress: apiProgress(result.Progress), Failures: apiFailures(result.Failed)}
	answer.Total = result.Total - result.Gone
	return answer, err
}

// giving has a migration through the API give way: it does not look at clients where it may
// add any latency.
func giving(way rewrite.Yield) apimigrate.Options {
	options := apimigrate.Options{MaxPerSecond: way.MaxPerSecond}
	if way.MaxAddedLatency > 0 {
		options.Busy = way.Busy
	}
	return options
}

func apiProgress(p apimigrate.Progress) migrate.Progress {
	progress := migrate.Progress{Total: max(p.Expected, p.Total) - p.Gone, Done: p.Patched + p.Overtaken, Failed: p.Failed.Sum(), Conflicts: p.Overtaken}
	for reason, n := range p.Failed {
		if n == 0 {
			continue
		}
		if progress.FailedByReason == nil {
			progress.FailedByReason = map[migrationv1alpha1.MigrationFailureReason]int64{}
		}
		progress.FailedByReason[apiReason(apimigrate.Reason(reason))] += n
	}
	return progress
}

func apiFailures(failed []apimigrate.Failure) []migrate.Failure {
	var failures []migrate.Failure
	for _, f := range failed {
		failures = append(failures, apiFailure(f))
	}
	return failures
}

func apiFailure(f apimigrate.Failure) migrate.Failure {
	return migrate.Failure{Namespace: f.Namespace, Name: f.Name, Reason: apiReason(f.Reason), Message: f.Detail}
}

func apiReason(r apimigrate.Reason) migrationv1alpha1.MigrationFailureReason {
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
