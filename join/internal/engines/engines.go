// Package engines migrates a server's objects for the controller that claims migrations: in the stores that the
// server has, and through its API.
package engines

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/join/internal/convert"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Config holds the parts of a server that its engines use.
type Config struct {
	KV      migratestore.KV
	Fence   *fence.Fence
	Keyring *keyring.Ring
	Convert *convert.Resources
	// Clients are the clients to which migrations give way.
	Clients pace.Clients
	// MaxAddedLatency and MaxObjectsPerSecond are the bounds of a migration that names none (see join.Config).
	MaxAddedLatency     *time.Duration
	MaxObjectsPerSecond int
}

// Engines holds the engines of one server.
type Engines struct {
	Config
	store *migratestore.Engine
	// speed is how many objects per second the last rewrite of many wrote, as math.Float64bits has it.
	speed atomic.Uint64
}

var _ claim.Rewriter = (*Engines)(nil)

// New returns engines that have done nothing yet.
func New(config Config) *Engines {
	return &Engines{Config: config, store: migratestore.New(config.KV)}
}

// Speed is how many objects per second this server's last rewrite of many wrote, 0 without one.
func (e *Engines) Speed() float64 { return math.Float64frombits(e.speed.Load()) }

// Rewrite implements claim.Rewriter in the stores that the server has.
func (e *Engines) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	target, err := e.target(ctx, job)
	if err != nil {
		return claim.Result{}, err
	}
	pacer, stop := e.Pacer(job)
	defer stop()
	options := migratestore.Options{Resume: cursorOf(job.Resume, target.Prefix), Pacer: pacer, MaxNamed: migrationv1alpha1.MaxFailures}
	if job.Failed != nil {
		options.Failed = func(f migratestore.Failure) { job.Failed(failureOf(f, target.Prefix)) }
	}
	result, err := e.run(ctx, target, options, func(done migratestore.Report) { progress(reportOf(done, target.Prefix)) })
	return resultOf(result, target.Prefix), err
}

// enough is how many objects have to be written for a speed to mean something.
const enough = 1000

// run rewrites, and proves it.
func (e *Engines) run(ctx context.Context, target *migratestore.Target, options migratestore.Options, told func(migratestore.Report)) (migratestore.Result, error) {
	began := time.Now()
	result, err := e.store.Run(ctx, *target, options, told)
	if written := result.Rewritten - options.Resume.Progress.Rewritten; written >= enough {
		e.speed.Store(math.Float64bits(float64(written) / time.Since(began).Seconds()))
	}
	if err == nil && result.Failures == 0 {
		err = prove(ctx, e.KV, target, options.Pacer)
	}
	return result, err
}

// bounds say how a job gives way: as its migration says, and else as the server's flags do.
func (e *Engines) bounds(job claim.Job) pace.Bounds {
	b := pace.Bounds{MaxPerSecond: e.MaxObjectsPerSecond}
	added := e.MaxAddedLatency
	if job.MaxAddedLatency != nil {
		added = job.MaxAddedLatency
	}
	if added != nil {
		b.MaxAdded, b.Blind = *added, *added == 0
	}
	if job.MaxPerSecond != nil {
		b.MaxPerSecond = int(*job.MaxPerSecond)
	}
	return b
}

// Pacer returns the pacer of a job, which gives way to clients until stop is called.
func (e *Engines) Pacer(job claim.Job) (p *pace.Pacer, stop func()) {
	return pace.New(e.bounds(job), e.Clients, clock.RealClock{})
}

// position is the part of a cursor that a migration keeps.
type position struct {
	After    string                `json:"after"`
	Progress migratestore.Progress `json:"progress"`
}

// cursorOf is the cursor that was kept; the beginning if it cannot be read.
func cursorOf(kept, prefix string) migratestore.Cursor {
	var p position
	if json.Unmarshal([]byte(kept), &p) != nil || !strings.HasPrefix(p.After, prefix) {
		return migratestore.Cursor{}
	}
	return migratestore.Cursor{After: p.After, Progress: p.Progress}
}

// target returns what the engine has to do for a job.
func (e *Engines) target(ctx context.Context, job claim.Job) (*migratestore.Target, error) {
	fenceKey, ok := e.Fence.FenceKey(job.GroupResource)
	if !ok {
		return nil, errors.New("the storage of StorageVersions is not built yet")
	}
	target := &migratestore.Target{
		GroupResource: job.GroupResource, Encoding: job.Encoding.Plain(), FenceKey: fenceKey,
		FenceRevision: job.FenceRevision, Refence: job.Refence,
	}
	var err error
	if target.Transformer, err = e.Keyring.Pin(job.GroupResource, job.Encoding.Seal()); err != nil {
		return nil, err
	}
	if job.CRD.UID != "" {
		return target, e.Convert.Target(ctx, job, target)
	}
	store, ok := e.Fence.Newest(job.GroupResource)
	if !ok || store.Encoding != target.Encoding {
		return nil, fmt.Errorf("this server does not store %s in %s", job.GroupResource, target.Encoding)
	}
	target.Prefix, target.Codec, target.New = store.Prefix, store.Codec, store.New
	return target, nil
}

// targetHere is target, and nil for a resource that this server does not store.
func (e *Engines) targetHere(ctx context.Context, job claim.Job) (*migratestore.Target, error) {
	if _, stored := e.Fence.Newest(job.GroupResource); !stored && job.CRD.UID == "" {
		return nil, nil
	}
	return e.target(ctx, job)
}

// provenAPI migrates through the API, and proves it in the store where this server has that.
type provenAPI struct {
	claim.Rewriter
	kv     migratestore.Reader
	target func(context.Context, claim.Job) (*migratestore.Target, error)
	pacer  func(claim.Job) (*pace.Pacer, func())
}

// Rewrite implements claim.Rewriter.
func (a provenAPI) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	result, err := a.Rewriter.Rewrite(ctx, job, progress)
	if err != nil || result.Failed > 0 {
		return result, err
	}
	target, err := a.target(ctx, job)
	if err == nil && target != nil {
		pacer, stop := a.pacer(job)
		defer stop()
		err = prove(ctx, a.kv, target, pacer)
	}
	return result, err
}

// prove counts, after a rewrite, the values that should have been encrypted again: a key must not be called removable
// only because no value was met that needs it. The caller has to check that the agreement stood until then before the
// rewrite counts as a success.
func prove(ctx context.Context, reader migratestore.Reader, target *migratestore.Target, pacer *pace.Pacer) error {
	if target.Transformer == nil {
		return nil
	}
	left, err := migratestore.CountLeft(ctx, reader, target, migratestore.Options{Pacer: pacer})
	if err != nil {
		return fmt.Errorf("census after the rewrite: %w", err)
	}
	if left.Values > 0 {
		return fmt.Errorf("%w: %d values, the first is %s: %s", claim.ErrUnproven, left.Values, left.First.Key, left.First.Detail)
	}
	return nil
}

func progressOf(p migratestore.Progress) claim.Progress {
	progress := claim.Progress{Total: max(p.Expected, p.Total) - p.Gone, Done: p.Rewritten + p.AlreadyCurrent, Written: p.Rewritten, Failed: p.Failures, Conflicts: p.Changed}
	for reason, n := range p.ByReason.All() {
		if progress.FailedByReason == nil {
			progress.FailedByReason = map[migrationv1alpha1.MigrationFailureReason]int64{}
		}
		progress.FailedByReason[reasonOf(reason)] += n
	}
	return progress
}

// reportOf adds where a rewrite can go on. Keys and counts always have a form in JSON.
func reportOf(r migratestore.Report, prefix string) claim.Progress {
	progress := progressOf(r.Progress)
	progress.Hindered, progress.Overloaded = r.Hindered, r.Overloaded
	if kept, err := json.Marshal(position{After: r.Cursor.After, Progress: r.Cursor.Progress}); err == nil && r.Cursor.After != "" {
		progress.Checkpoint = claim.Checkpoint{Position: string(kept), Failures: failuresOf(r.Cursor.Failed, prefix)}
	}
	return progress
}

func resultOf(r migratestore.Result, prefix string) claim.Result {
	result := claim.Result{Progress: progressOf(r.Progress), Failures: failuresOf(r.Failed, prefix)}
	result.Total = r.Total - r.Gone
	return result
}

func failuresOf(failed []migratestore.Failure, prefix string) []claim.Failure {
	var failures []claim.Failure
	for _, f := range failed {
		failures = append(failures, failureOf(f, prefix))
	}
	return failures
}

func failureOf(f migratestore.Failure, prefix string) claim.Failure {
	namespace, name, namespaced := strings.Cut(strings.TrimPrefix(f.Key, prefix), "/")
	if !namespaced {
		namespace, name = "", namespace
	}
	return claim.Failure{Namespace: namespace, Name: name, Reason: reasonOf(f.Reason), Message: fmt.Sprintf("%s: %s", f.Reason, f.Detail)}
}

func reasonOf(r migratestore.Reason) migrationv1alpha1.MigrationFailureReason {
	switch r {
	case migratestore.Undecryptable, migratestore.Undecodable:
		return migrationv1alpha1.FailureDoesNotDecode
	case migratestore.Unconverted:
		return migrationv1alpha1.FailureConversionWebhook
	case migratestore.TooLarge:
		return migrationv1alpha1.FailureTooLarge
	case migratestore.LeaseLost:
		return migrationv1alpha1.FailureConflict
	default: // the decoded object cannot be stored
		return migrationv1alpha1.FailureRejected
	}
}
