package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// statusTries bounds how often a status is written anew after conflicts.
const statusTries = 5

var (
	// errMoved interrupts a rewrite to read the StorageVersion again.
	errMoved = errors.New("the StorageVersion was seen to change")
	// errTaken ends the work on a migration that is gone, ended, or somebody else's.
	errTaken = errors.New("the migration is not this server's any more")
	// errSpeed interrupts a rewrite to go on at another speed.
	errSpeed = errors.New("the migration is to go on at another speed")
	// errPaused ends it until the migration is not paused any more.
	errPaused = errors.New("the migration is paused")
)

// work is one migration done by this server.
type work struct {
	c      *Controller
	m      *migrationv1alpha1.StorageVersionMigration
	uid    types.UID // m's, which never changes
	gr     schema.GroupResource
	target evolve.Target
	self   agree.ServerID

	// revision is the StorageVersion's that permitted the work, 0 before one did.
	revision int64
	// pin is set when the CustomResourceDefinition is first read, and not changed after;
	// it is zero where there is none.
	pin *CRD
	// engine is chosen when the work is first permitted, and not changed after.
	engine engine
	// versions are those in which the resource may be served.
	versions []string
	// began is when this server began, shown when it last wrote the progress.
	began, shown time.Time
	// base is how many objects were done where it began, and done the most that were shown.
	base, done int64
	// resumed says that it went on where another run of the migration was.
	resumed bool
	// speed is that of the rewrite, guarded by the Controller.
	speed speed
	// mu is held by whatever of a rewrite changes the work: it is told of progress, asked for
	// the permission, or given a beat.
	mu sync.Mutex
	// tell writes the progress when it is time to; nil while nothing is rewritten.
	tell func()
	// last is the newest progress; nil before there is one.
	last *Progress
	// counted is what the metrics have counted of this migration, with what was done before.
	counted Progress
	// failures names the objects before the position that this server's rewrites began at.
	failures []migrationv1alpha1.MigrationFailure
}

// do rewrites and says how it ended. A nil error means that nothing is left to do here.
func (w *work) do(ctx context.Context) error {
	w.began = w.c.cfg.Clock.Now()
	w.shown = w.began
	defer w.c.unregister(w)
	defer w.c.cfg.Metrics.rest(w)
	if w.revision == 0 {
		var err error
		if w.revision, err = w.permitted(ctx); err != nil {
			return w.stop(ctx, err)
		}
	}
	for {
		result, err := w.rewrite(ctx)
		if ctx.Err() != nil {
			return ctx.Err() // whoever comes next continues
		}
		if errors.Is(err, errSpeed) {
			err = w.turn(ctx)
		}
		moved := errors.Is(err, errMoved) || errors.Is(err, ErrFenced)
		if err != nil && !moved {
			return w.stop(ctx, err)
		}
		// All is written, or not permitted as it was: in both cases what counts is read
		// after the last write.
		revision, unpermitted := w.permitted(ctx)
		switch {
		case unpermitted != nil:
			return w.stop(ctx, unpermitted)
		case !moved:
			return w.succeed(ctx, result)
		case errors.Is(err, ErrFenced) && revision == w.revision:
			return w.stop(ctx, err) // it has not moved: not to be repeated at once
		}
		w.revision = revision
	}
}

// turn reads at what speed the migration is to go on; the error says whether it goes on: it
// is errMoved then.
func (w *work) turn(ctx context.Context) error {
	if err := w.reread(ctx); err != nil {
		return err
	}
	if w.m.Spec.Paused {
		return errPaused
	}
	return errMoved
}

// rewrite runs the Rewriter until it ends or is interrupted; then the error is why.
func (w *work) rewrite(ctx context.Context) (Result, error) {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	w.c.register(w, cancel)
	job := Job{
		GroupResource: w.gr, Encoding: w.target.Encoding, FenceRevision: w.revision, Refence: w.refence,
		Resume: w.position(), MaxPerSecond: w.m.Spec.MaxObjectsPerSecond, Failed: w.failureLog(), Versions: w.versions,
	}
	if latency := w.m.Spec.MaxAddedLatency; latency != nil {
		job.MaxAddedLatency = &latency.Duration
	}
	if w.pin != nil {
		job.CRD = *w.pin
	}
	from, rewriter, speed := job.Resume, w.rewriter(), speedOf(w.m)
	w.telling(func() {
		switch err := w.progress(ctx); {
		case errors.Is(err, errTaken):
			cancel(errTaken)
		case w.m.Spec.Paused:
			cancel(errPaused)
		case speedOf(w.m) != speed:
			cancel(errSpeed)
		}
	})
	result, err := rewriter.Rewrite(running, job, w.reported)
	w.telling(nil)
	w.c.cfg.Metrics.observe(w, result.Progress)
	if err == nil {
		return result, nil
	}
	if errors.Is(err, ErrUnproven) {
		w.last, w.m.Status.ContinueToken = nil, "" // what it went over it is to go over again
		return result, err
	}
	if w.advance(); w.position() != from {
		w.c.forget(w.uid) // it got on: its errors are not in a row
	}
	if cause := context.Cause(running); errors.Is(cause, errMoved) || errors.Is(cause, errTaken) || errors.Is(cause, errPaused) || errors.Is(cause, errSpeed) {
		return result, cause
	}
	return result, err
}

// failureLog is the report of all objects that cannot be migrated: the status names only
// some, since what is in etcd may not grow with their number.
func (w *work) failureLog() func(Failure) {
	logger := w.c.cfg.Logger.WithValues("migration", w.m.Name, "resource", w.gr.String())
	return func(f Failure) {
		logger.Info("Object not migrated", "namespace", f.Namespace, "name", f.Name, "reason", f.Reason, "message", f.Message)
	}
}

// telling sets how progress is written from now on; nil: not at all.
func (w *work) telling(tell func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.tell = tell
}

// reported is told what a Rewriter reports.
func (w *work) reported(p Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last, w.base = &p, min(w.base, p.Done)
	w.c.cfg.Metrics.observe(w, p)
	w.tell()
}

// beat shows that a rewrite goes on, and at what rate by now, that has had nothing to report
// for a while.
func (w *work) beat() {
	if !w.mu.TryLock() {
		return // it has
	}
	defer w.mu.Unlock()
	if w.tell == nil {
		return
	}
	if w.last != nil {
		w.c.cfg.Metrics.observe(w, *w.last)
	}
	w.tell()
}

func (w *work) refence(ctx context.Context) (int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	revision, err := w.permitted(ctx)
	var end *over
	if errors.As(err, &end) || errors.Is(err, errNotOurs) {
		return 0, fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return revision, err
}

// stop ends the work for now, or for good if the error says so or is one too many.
func (w *work) stop(ctx context.Context, err error) error {
	var end *over
	switch {
	case errors.Is(err, errTaken):
		w.c.forget(w.uid)
		return nil
	case errors.Is(err, errPaused):
		return w.pause(ctx)
	case errors.As(err, &end):
	case errors.Is(err, errNotOurs):
		return errors.Join(err, w.release(ctx))
	case w.c.failed(w.uid):
		end = &over{migrationv1alpha1.ReasonRewriteFailed, err.Error()}
	default:
		told := w.update(ctx, func(m *migrationv1alpha1.StorageVersionMigration) {
			w.setCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying, err.Error())
			w.show(m)
		})
		if errors.Is(told, errTaken) {
			return nil
		}
		return err
	}
	return w.finish(ctx, migrationv1alpha1.MigrationFailed, end.reason, end.message, nil)
}

// release lets another server claim the migration.
func (w *work) release(ctx context.Context) error {
	delete(w.m.Annotations, migrationv1alpha1.ClaimedByAnnotation)
	return w.c.cfg.Client.Update(ctx, w.m)
}

// succeed tells the result of a rewrite that is complete.
func (w *work) succeed(ctx context.Context, r Result) error {
	if r.Failed == 0 {
		message := fmt.Sprintf("%d objects are in %s", r.Done, w.target.Encoding)
		return w.finish(ctx, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, message, &r)
	}
	message := fmt.Sprintf("%d of %d objects cannot be migrated", r.Failed, r.Failed+r.Done)
	if len(r.FailedByReason) > 0 {
		message += ": " + reasons(r.FailedByReason)
	}
	if failures := w.named(r.Failures); len(failures) > 0 {
		first := failures[0]
		message += fmt.Sprintf("; the first is %s: %s", types.NamespacedName{Namespace: first.Namespace, Name: first.Name}, first.Message)
		if int64(len(failures)) < r.Failed {
			message += "; " + w.logs() + " all"
		}
	}
	return w.finish(ctx, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, message, &r)
}

// logs says whose logs name every object that failed. Whoever goes on does not meet again
// those before the position.
func (w *work) logs() string {
	if w.resumed {
		return "the logs of the servers that migrated name"
	}
	return fmt.Sprintf("the log of %s names", w.self)
}

// reasons are the numbers of failed objects, the highest first.
func reasons(failed map[migrationv1alpha1.MigrationFailureReason]int64) string {
	var parts []string
	for _, r := range slices.SortedFunc(maps.Keys(failed), func(a, b migrationv1alpha1.MigrationFailureReason) int {
		return cmp.Or(cmp.Compare(failed[b], failed[a]), cmp.Compare(a, b))
	}) {
		parts = append(parts, fmt.Sprintf("%d %s", failed[r], r))
	}
	return strings.Join(parts, ", ")
}

// finish writes the last condition.
func (w *work) finish(ctx context.Context, t migrationv1alpha1.MigrationConditionType, reason, message string, r *Result) error {
	err := w.update(ctx, func(m *migrationv1alpha1.StorageVersionMigration) {
		w.setCondition(m, t, reason, message)
		if r == nil {
			return
		}
		m.Status.Progress, m.Status.Failures, m.Status.ContinueToken = w.counts(r.Progress), w.named(r.Failures), ""
	})
	if err != nil && !errors.Is(err, errTaken) {
		return err
	}
	w.c.forget(w.uid)
	if err == nil {
		kind := corev1.EventTypeNormal
		if t == migrationv1alpha1.MigrationFailed {
			kind = corev1.EventTypeWarning
		}
		w.event(ctx, kind, reason, message)
		w.c.cfg.Metrics.Ended(w.m, string(t))
	}
	return nil
}

// progress writes how far the rewrite is, from time to time; also where that is nothing new:
// the Running condition's time tells that it goes on.
func (w *work) progress(ctx context.Context) error {
	now := w.c.cfg.Clock.Now()
	if now.Sub(w.shown) < w.c.cfg.ProgressPeriod {
		return nil
	}
	w.shown = now
	err := w.update(ctx, func(m *migrationv1alpha1.StorageVersionMigration) {
		w.setRunning(m)
		w.show(m)
	})
	if err != nil {
		w.c.cfg.Logger.V(1).Info("Progress was not written", "migration", w.m.Name, "reason", err.Error())
	}
	return err
}

func (w *work) counts(p Progress) *migrationv1alpha1.MigrationProgress {
	counts := &migrationv1alpha1.MigrationProgress{Total: p.Total, Done: p.Done, Failed: p.Failed, FailedByReason: p.FailedByReason}
	if elapsed := w.c.cfg.Clock.Since(w.began).Seconds(); elapsed > 0 {
		counts.ObjectsPerSecond = int64(float64(max(0, p.Done-w.base)) / elapsed)
	}
	return counts
}

// update changes the status of the migration, as long as it is this server's. The error
// is errTaken if it is not.
func (w *work) update(ctx context.Context, change func(*migrationv1alpha1.StorageVersionMigration)) error {
	var err error
	for range statusTries {
		next := w.m.DeepCopy()
		change(next)
		if err = w.c.cfg.Client.Status().Update(ctx, next); err == nil {
			w.m = next
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("write the status: %w", err)
		}
		if err := w.reread(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("write the status: %w", err)
}

// reread reads the migration anew, but for its status, which nobody else writes. The error is
// errTaken if it is not this server's any more.
func (w *work) reread(ctx context.Context) error {
	fresh, err := w.c.get(ctx, w.m.Name)
	if err != nil {
		return err
	}
	if !w.ours(fresh) {
		return errTaken
	}
	fresh.Status = w.m.Status
	w.m = fresh
	return nil
}

// speed is at what speed a migration is to be done; negative: as the server's flags say.
type speed struct {
	perSecond int64
	latency   time.Duration
}

func speedOf(m *migrationv1alpha1.StorageVersionMigration) speed {
	s := speed{perSecond: ptr.Deref(m.Spec.MaxObjectsPerSecond, -1), latency: -1}
	if latency := m.Spec.MaxAddedLatency; latency != nil {
		s.latency = latency.Duration
	}
	return s
}

// ours says whether a newer reading of the migration still is this work.
func (w *work) ours(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m != nil && m.UID == w.uid && !migrationv1alpha1.Final(m) &&
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == string(w.self) && migrationv1alpha1.TargetOf(m) == w.target
}

func (w *work) setCondition(m *migrationv1alpha1.StorageVersionMigration, t migrationv1alpha1.MigrationConditionType, reason, message string) {
	migrationv1alpha1.SetCondition(m, t, reason, message, metav1.NewTime(w.c.cfg.Clock.Now()))
}

func (w *work) setRunning(m *migrationv1alpha1.StorageVersionMigration) {
	w.setCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, fmt.Sprintf("%s rewrites to %s", w.self, w.target.Encoding))
	if w.engine.name != "" {
		m.Status.Engine, m.Status.EngineReason = w.engine.name, w.engine.reason
	}
}

// event tells users, and the log. It is a courtesy: an error is only logged.
func (w *work) event(ctx context.Context, kind, reason, note string) {
	w.c.cfg.Logger.Info("Migration", "event", reason, "migration", w.m.Name, "resource", w.gr.String(), "encoding", string(w.target.Encoding), "note", note)
	for _, event := range migrationv1alpha1.NewEvents(w.m, string(w.self), kind, reason, note, w.c.cfg.Clock.Now()) {
		if err := w.c.cfg.Client.Create(ctx, event); err != nil {
			w.c.cfg.Logger.V(1).Info("An event was not written", "migration", w.m.Name, "reason", err.Error())
		}
	}
}
