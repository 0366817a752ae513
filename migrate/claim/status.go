package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// statusTries limits how often a status is written again after conflicts.
const statusTries = 5

// succeed writes the result of a complete rewrite.
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
		message += fmt.Sprintf("; the first is %s: %s", first.Object(), first.Message)
		if int64(len(failures)) < r.Failed {
			message += "; " + w.logs() + " all"
		}
	}
	return w.finish(ctx, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, message, &r)
}

// logs says whose logs name every object that failed. A server that goes on does not meet
// again those before the position.
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
		m.Status.Progress, m.Status.Failures, m.Status.ContinueToken = w.counts(r.Progress, mark{at: w.began, done: w.base}.rate(w.c.cfg.Clock.Now(), r.Progress)), w.named(r.Failures), ""
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

// progress writes the progress of the rewrite from time to time, even if nothing is new: the Running condition's time
// shows that it goes on.
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
		level := 1
		if apierrors.IsForbidden(err) && !w.forbidden { // which no condition can tell
			level, w.forbidden = 0, true
		}
		w.c.cfg.Logger.V(level).Info("Progress was not written", "migration", w.m.Name, "reason", err.Error())
	}
	return err
}

func (w *work) counts(p Progress, rate float64) *migrationv1alpha1.MigrationProgress {
	return &migrationv1alpha1.MigrationProgress{
		Total: p.Total, Done: p.Done, Failed: p.Failed, FailedByReason: p.FailedByReason, ObjectsPerSecond: int64(rate),
	}
}

// rate is how fast the rewrite under way is.
func (w *work) rate(p Progress) float64 { return w.marks.rate(w.c.cfg.Clock.Now(), p) }

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

// reread reads the migration again, except for its status, which nobody else writes. The error is errTaken if it no
// longer belongs to this server.
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

// ours says whether a newer reading of the migration still is this work.
func (w *work) ours(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m != nil && m.UID == w.uid && !migrationv1alpha1.Final(m) &&
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == string(w.self) && migrationv1alpha1.TargetOf(m) == w.target
}

func (w *work) setCondition(m *migrationv1alpha1.StorageVersionMigration, t migrationv1alpha1.MigrationConditionType, reason, message string) {
	migrationv1alpha1.SetCondition(m, t, reason, message, metav1.NewTime(w.c.cfg.Clock.Now()))
}

func (w *work) setRunning(m *migrationv1alpha1.StorageVersionMigration) {
	reason, message := migrationv1alpha1.ReasonRewriting, fmt.Sprintf("%s rewrites to %s", w.self, w.target.Encoding)
	switch {
	case w.last == nil:
	case w.last.Hindered != "":
		reason, message = migrationv1alpha1.ReasonRetrying, w.last.Hindered
	case w.last.Proving:
		reason, message = migrationv1alpha1.ReasonProving, fmt.Sprintf("%s proves that every object is in %s", w.self, w.target.Encoding)
	}
	w.setCondition(m, migrationv1alpha1.MigrationRunning, reason, message)
	if w.engine.name != "" {
		m.Status.Engine, m.Status.EngineReason = w.engine.name, w.engine.reason
	}
}

// event tells users, and the log. Errors are only logged.
func (w *work) event(ctx context.Context, kind, reason, note string) {
	w.c.cfg.Logger.Info("Migration", "event", reason, "migration", w.m.Name, "resource", w.gr.String(), "encoding", string(w.target.Encoding), "note", note)
	for _, event := range migrationv1alpha1.NewEvents(w.m, string(w.self), kind, reason, note, w.c.cfg.Clock.Now()) {
		if err := w.c.cfg.Client.Create(ctx, event); err != nil {
			w.c.cfg.Logger.V(1).Info("An event was not written", "migration", w.m.Name, "reason", err.Error())
		}
	}
}
