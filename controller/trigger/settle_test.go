package trigger

import (
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

const settle = time.Minute

// settling returns a world whose trigger waits after a server that does not report, and that had
// migrated everything before one came.
func settling(t *testing.T) (*world, *Controller) {
	t.Helper()
	w, c := newWorld(t, served)
	c.cfg.Settle = settle
	w.report(v1)
	w.settle(c)
	w.end(w.migrations()[0].Name, migrationv1alpha1.MigrationSucceeded)
	w.settle(c)
	if stored := w.state().Status.PersistedEncodings; len(stored) != 1 || len(w.migrations()) != 1 {
		t.Fatalf("stored are %v, there are %d migrations", stored, len(w.migrations()))
	}
	return w, c
}

// begun counts the migrations that are under way for a target.
func (w *world) begun(c *Controller) (n int) {
	w.t.Helper()
	w.settle(c)
	for _, m := range w.migrations() {
		if !migrationv1alpha1.Final(&m) && migrationv1alpha1.TargetOf(&m).Encoding != "" {
			n++
		}
	}
	return n
}

// wantBegun checks whether a migration has begun.
func (w *world) wantBegun(c *Controller, want bool, when string) {
	w.t.Helper()
	if n := w.begun(c); (n > 0) != want {
		w.t.Errorf("%s: %d migrations have begun, want any: %t", when, n, want)
	}
}

// After a silent server has gone no migration begins for the time to settle, neither one of the
// trigger's own nor a user's, which says so; a new leader and another silent server begin it anew.
func TestSettles(t *testing.T) {
	w, c := settling(t)
	w.reportBeside(stock)
	w.wantBegun(c, false, "beside a stock server")
	w.clock.Step(2 * settle)
	w.report(v1)
	w.wantBegun(c, false, "when it has gone")
	w.clock.Step(settle - time.Second)
	w.wantBegun(c, false, "a second before the time is over")

	w.report(agree.Unknown, v1)
	w.report(v1)
	w.wantBegun(c, false, "when another has come and gone between two looks")
	w.clock.Step(settle - time.Second)
	w.wantBegun(c, false, "a second before the time after that one is over")
	leader := newController(c.cfg)
	w.wantBegun(leader, false, "on a new leader")
	w.clock.Step(settle - time.Second)
	w.wantBegun(leader, false, "a second before its time is over")
	w.clock.Step(time.Second)
	w.wantBegun(leader, true, "when it is over")
}

func TestSettlesBeforeUsersMigrations(t *testing.T) {
	w, c := settling(t)
	w.user("mine")
	w.settle(c)
	w.reportBeside(stock)
	w.settle(c)
	w.user("other")
	w.report(v1)
	result := w.step(c)
	for result.Again {
		result = w.step(c)
	}
	if result.After > settle || result.After <= 0 {
		t.Errorf("looks again after %s", result.After)
	}
	waiting := func() (n int) {
		for _, m := range w.migrations() {
			if migrationv1alpha1.Waiting(&m) != "" {
				n++
			}
		}
		return n
	}
	if waiting() == 0 {
		t.Errorf("no migration says that it waits: %v", w.migrations())
	}
	if done := w.settle(c); len(done) > 1 {
		t.Errorf("nothing has changed, and was done: %v", done)
	}
	w.clock.Step(settle)
	w.wantBegun(c, true, "when the time is over")
	if waiting() > 0 {
		t.Errorf("a migration that has begun says that it waits: %v", w.migrations())
	}
}

// Nobody waits in a new cluster, nor where a silent server was there long ago and everything was migrated.
func TestSettlesOnlyAfterSilence(t *testing.T) {
	w, c := newWorld(t, served)
	c.cfg.Settle = settle
	w.report(v1)
	w.wantBegun(c, true, "in a new cluster")

	w, c = settling(t)
	w.reportBeside(stock)
	w.settle(c)
	w.report(v1)
	w.settle(c)
	w.clock.Step(settle)
	w.wantBegun(c, true, "when the time is over")
	for _, m := range w.migrations() {
		if !migrationv1alpha1.Final(&m) {
			w.end(m.Name, migrationv1alpha1.MigrationSucceeded)
		}
	}
	w.settle(c)
	w.report(v2)
	w.wantBegun(newController(c.cfg), true, "of a new leader, for another version")
}
