package claim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

var (
	// errMoved interrupts a rewrite to read the StorageVersion again.
	errMoved = errors.New("the StorageVersion was seen to change")
	// errRedefined interrupts a rewrite to begin again under the definition as it is now, which stores the same encoding.
	errRedefined = errors.New("the CustomResourceDefinition was seen to change")
	// errTaken ends the work on a migration that is gone, has finished, or belongs to another server.
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
	// pin is set when the CustomResourceDefinition is first read, and set again only when the rewrite begins again
	// because of its change, redefined times; it is zero if there is no definition.
	pin       *CRD
	redefined int
	// engine is chosen when the work is first permitted, and not changed after.
	engine engine
	// versions are the versions in which the resource may be served.
	versions []string
	// began is when this server began, shown when it last wrote the progress.
	began, shown time.Time
	// base is how many objects were done where it began, and done the most that were shown.
	base, done int64
	// resumed says that the work continued where an earlier run of the migration was.
	resumed bool
	// speed is that of the rewrite, and under the pin that it has, guarded by the Controller.
	speed speed
	under *CRD
	// mu is held by every part of a rewrite that changes the work: progress reports, questions for the permission, and
	// heartbeats.
	mu sync.Mutex
	// tell writes the progress when it is due; nil while nothing is rewritten.
	tell func()
	// forbidden says that a missing right to write the progress was already logged.
	forbidden bool
	// last is the newest progress; nil before there is one. hindered says that others may be done beside the migration,
	// and marks tell its rate since the rewrite under way began.
	last     *Progress
	hindered atomic.Bool
	marks    marks
	// found is Progress.Written as long as the rewrite has only found objects that are in the encoding; negative once it
	// has written.
	found int64
	// counted is the progress of this migration that the metrics have counted, with the progress
	// made before.
	counted Progress
	// failures names the objects before the position that this server's rewrites began at.
	failures []migrationv1alpha1.MigrationFailure
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
	w.marks, w.found = marks{{at: w.c.cfg.Clock.Now(), done: w.done}}, math.MaxInt64
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
	if errors.Is(err, ErrChangedByAdmission) {
		return result, &over{migrationv1alpha1.ReasonChangedByAdmission, err.Error()}
	}
	if errors.Is(err, ErrUnproven) {
		w.last, w.m.Status.ContinueToken = nil, "" // it is to go over the same objects again
		return result, err
	}
	if w.advance(); w.position() != from {
		w.c.forget(w.uid) // it got on: its errors are not in a row
	}
	if cause := context.Cause(running); errors.Is(cause, errMoved) || errors.Is(cause, errRedefined) || errors.Is(cause, errTaken) || errors.Is(cause, errPaused) || errors.Is(cause, errSpeed) {
		return result, cause
	}
	return result, err
}

// failureLog is the report of all objects that cannot be migrated: the status names only
// some, since the data in etcd may not grow with their number.
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

// reported handles a progress report of a Rewriter.
func (w *work) reported(p Progress) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.c.cfg.Clock.Now()
	if w.last == nil { // the count that was shown may have been too much
		w.marks[0].done = min(w.marks[0].done, p.Done)
	}
	w.last, w.base = &p, min(w.base, p.Done)
	if w.found >= 0 && p.Written > w.found {
		w.marks, w.found = nil, -1 // what is only found to be in the encoding is done many times as fast
	} else if w.found >= 0 {
		w.found = p.Written
	}
	w.marks = w.marks.next(now, p)
	w.hindered.Store(hindered(now, p, w.m.Spec.MaxObjectsPerSecond, w.marks))
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

// speed is the speed of a migration; negative values mean the server's flags.
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
