package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// Step looks at one migration; if this server can do it, claims it and does it to its
// end. It starts no goroutine and returns when to look again even if nothing changes (0:
// never). After an error the look has to be repeated, with back-off.
func (c *Controller) Step(ctx context.Context, name string) (time.Duration, error) {
	m, err := c.get(ctx, name)
	if err != nil || m == nil || migrationv1alpha1.Final(m) {
		return 0, err
	}
	target := migrationv1alpha1.TargetOf(m)
	if target == (evolve.Target{}) {
		return 0, nil
	}
	w := &work{c: c, m: m, uid: m.UID, gr: migrationv1alpha1.Resource(m), target: target, self: c.cfg.ID()}
	if m.Spec.Paused {
		return w.rest(ctx)
	}
	why, err := w.refused(ctx)
	if err != nil {
		return 0, fmt.Errorf("look at migration %s: %w", name, err)
	}
	if why != "" {
		c.cfg.Logger.V(2).Info("Not migrating", "migration", name, "reason", why)
		if w.self != "" && m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == string(w.self) {
			err = w.release(ctx)
		}
		return poll, err
	}
	if err := w.claim(ctx); err != nil {
		return 0, fmt.Errorf("claim migration %s: %w", name, err)
	}
	w.resume()
	if err := w.do(ctx); err != nil {
		return 0, fmt.Errorf("migration %s: %w", name, err)
	}
	return 0, nil
}

// state is where a server is with a migration that it has claimed:
//
//	permitting ──► rewriting ──► confirming ──► succeeding
//	     ▲           │    │
//	     │     moved │    │ another speed
//	     └───────────┴────┴──► turning ──► permitting
//
// From each an error leads to one of the states in which its work ends (next).
type state string

const (
	// permitting reads whether the StorageVersion and the CustomResourceDefinition permit the
	// rewrite, and at which revision.
	permitting state = "permitting"
	// rewriting: the Rewriter writes every object that is not in the encoding.
	rewriting state = "rewriting"
	// confirming reads after the last write whether the rewrite counts.
	confirming state = "confirming"
	// turning: the migration is read again, to continue at another speed.
	turning state = "turning"

	// succeeding writes the result, which may name objects that cannot be migrated.
	succeeding state = "succeeding"
	// failing writes that the migration has ended, and why.
	failing state = "failing"
	// retrying writes what went wrong; the work begins again, after a while.
	retrying state = "retrying"
	// pausing writes that the migration rests, and gives the claim up.
	pausing state = "pausing"
	// releasing gives the claim up, to a server that can do the migration.
	releasing state = "releasing"
	// leaving: nothing is left to do, because the migration is gone, has finished, or belongs to another server.
	leaving state = "leaving"
)

// next decides on the state that follows a state, by the error that came of it.
func next(at state, err error) state {
	if at == rewriting {
		switch {
		case errors.Is(err, errSpeed):
			return turning
		case errors.Is(err, errMoved), errors.Is(err, errRedefined), errors.Is(err, ErrFenced):
			return permitting
		}
	}
	var end *over
	switch {
	case errors.Is(err, errTaken):
		return leaving
	case errors.Is(err, errPaused):
		return pausing
	case errors.As(err, &end):
		return failing
	case errors.Is(err, errNotOurs):
		return releasing
	case err != nil:
		return retrying
	case at == permitting:
		return rewriting
	case at == rewriting:
		return confirming
	case at == confirming:
		return succeeding
	}
	return permitting
}

// outcome is how a state ended.
type outcome struct {
	// result is that of the last rewrite.
	result Result
	err    error
}

// do does a claimed migration until its work here ends. A nil error means that nothing is left
// to do here.
func (w *work) do(ctx context.Context) error {
	w.began = w.c.cfg.Clock.Now()
	w.shown = w.began
	defer w.c.unregister(w)
	defer w.c.cfg.Metrics.rest(w)
	at, last := permitting, outcome{}
	if w.revision != 0 {
		at = rewriting // it was permitted when it was claimed
	}
	for {
		switch at {
		case permitting:
			last.err = w.permit(ctx, last.err)
		case rewriting:
			last.result, last.err = w.rewrite(ctx)
		case confirming:
			_, last.err = w.permitted(ctx)
		case turning:
			last.err = w.turn(ctx)
		default:
			return w.end(ctx, at, last)
		}
		if ctx.Err() != nil {
			return ctx.Err() // the next server that claims it continues
		}
		at = next(at, last.err)
	}
}

// permit reads the revision at which the rewrite is permitted. If the rewrite ran into the fence (why) although
// nothing has changed, it must not be repeated at once: then why is the error.
func (w *work) permit(ctx context.Context, why error) error {
	again := errors.Is(why, errRedefined) && w.redefined < attempts // somebody may change it all the time
	if again {
		w.pin = nil
		w.redefined++
	}
	revision, err := w.permitted(ctx)
	switch {
	case err != nil:
		return err
	case again:
		w.resume() // no position counts under another definition
		w.began = w.c.cfg.Clock.Now()
	case errors.Is(why, ErrFenced) && revision == w.revision:
		return why
	}
	w.revision = revision
	return nil
}

// turn reads at what speed the migration is to go on; the error says why it does not.
func (w *work) turn(ctx context.Context) error {
	if err := w.reread(ctx); err != nil {
		return err
	}
	if w.m.Spec.Paused {
		return errPaused
	}
	return nil
}

// end does the work of a state in which the work ends.
func (w *work) end(ctx context.Context, at state, last outcome) error {
	switch at {
	case succeeding:
		return w.succeed(ctx, last.result)
	case failing:
		var end *over
		errors.As(last.err, &end)
		return w.fail(ctx, end)
	case pausing:
		return w.pause(ctx)
	case releasing:
		return errors.Join(last.err, w.release(ctx))
	case leaving:
		w.c.forget(w.uid)
		return nil
	}
	return w.retry(ctx, last.err)
}

// retry makes the work begin again, unless this error is one too many.
func (w *work) retry(ctx context.Context, why error) error {
	if w.c.failed(w.uid) {
		return w.fail(ctx, &over{migrationv1alpha1.ReasonRewriteFailed, why.Error()})
	}
	told := w.update(ctx, func(m *migrationv1alpha1.StorageVersionMigration) {
		w.setCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying, why.Error())
		w.show(m)
	})
	if errors.Is(told, errTaken) {
		return nil
	}
	return why
}

func (w *work) fail(ctx context.Context, end *over) error {
	return w.finish(ctx, migrationv1alpha1.MigrationFailed, end.reason, end.message, nil)
}

// release lets another server claim the migration.
func (w *work) release(ctx context.Context) error {
	delete(w.m.Annotations, migrationv1alpha1.ClaimedByAnnotation)
	return w.c.cfg.Client.Update(ctx, w.m)
}

// pause writes that the migration is paused, and lets any server resume it later.
func (w *work) pause(ctx context.Context) error {
	if !paused(w.m) {
		status := w.m.Status.DeepCopy()
		err := w.update(ctx, func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status = *status
			w.setPaused(m)
		})
		if err != nil {
			return err
		}
		w.tellPaused(ctx)
	}
	return w.release(ctx)
}

// rest has a paused migration that began say that it rests. The server at work on it does
// so itself; where that server is gone, or has let go of it, any server does. Nobody claims it.
func (w *work) rest(ctx context.Context) (time.Duration, error) {
	claimer := agree.ServerID(w.m.Annotations[migrationv1alpha1.ClaimedByAnnotation])
	switch {
	case claimer != "" && claimer == w.self:
		return 0, w.pause(ctx)
	case claimer == "" && (paused(w.m) || migrationv1alpha1.True(w.m, migrationv1alpha1.MigrationRunning) == nil):
		return 0, nil
	case w.self == "":
		return poll, nil // this server is not registered: it leaves this to those that are
	case claimer != "":
		leases, err := w.leases(ctx)
		if err != nil {
			return 0, fmt.Errorf("look at migration %s: %w", w.m.Name, err)
		}
		if leaseOf(leases, claimer) != nil {
			return poll, nil
		}
	}
	if !paused(w.m) {
		w.setPaused(w.m)
		if err := w.c.cfg.Client.Status().Update(ctx, w.m); err != nil {
			return 0, err
		}
		w.tellPaused(ctx)
	}
	if claimer == "" {
		return 0, nil
	}
	return 0, w.release(ctx)
}

func paused(m *migrationv1alpha1.StorageVersionMigration) bool {
	c := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
	return c != nil && c.Reason == migrationv1alpha1.ReasonPaused
}

const pausedNote = "spec.paused is set"

func (w *work) setPaused(m *migrationv1alpha1.StorageVersionMigration) {
	w.setCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused, pausedNote)
}

func (w *work) tellPaused(ctx context.Context) {
	w.event(ctx, corev1.EventTypeNormal, migrationv1alpha1.ReasonPaused, pausedNote)
}
