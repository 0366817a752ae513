package claim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// untilInterrupted is a rewrite that ends when its context does.
func untilInterrupted(ctx context.Context) (Result, error) {
	select {
	case <-ctx.Done():
		return Result{}, ctx.Err()
	case <-time.After(2 * time.Minute):
		return Result{}, context.DeadlineExceeded
	}
}

func TestWatchInterrupts(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		w.c.ObserveStorageVersion(w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v2}), false)
		return untilInterrupted(ctx)
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonAgreementLost)
}

// TestStaleWatch: a late watch event with an old StorageVersion does not end a migration.
func TestStaleWatch(t *testing.T) {
	w := newWorld(t)
	old := w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v2})
	sv := w.report(agree.Report{Server: self, Encoding: v2}, agree.Report{Server: other, Encoding: v2})
	w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.EpochAnnotation] = sv.Annotations["concord.dev/epoch"]
		m.Annotations[migrationv1alpha1.EncodingAnnotation] = string(v2)
	})
	calls := 0
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		if calls++; calls > 1 {
			return Result{}, nil
		}
		w.c.ObserveStorageVersion(old, false)
		return untilInterrupted(ctx)
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	if calls != 2 {
		t.Errorf("%d rewrites, want the interrupted one and another", calls)
	}
}

// TestTaken: a migration that was deleted, has ended, or is claimed by another server is left as it is.
func TestTaken(t *testing.T) {
	for _, test := range []struct {
		name string
		take func(w *world)
	}{
		{"deleted", func(w *world) {
			m := w.read()
			w.must(w.client.Delete(context.Background(), m))
			w.c.ObserveMigration(m, true)
		}},
		{"ended", func(w *world) {
			m := w.read()
			migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, "Test", "", metav1.Now())
			w.must(w.client.Status().Update(context.Background(), m))
			w.c.ObserveMigration(m, false)
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newMigrating(t)
			w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
				test.take(w)
				return untilInterrupted(ctx)
			}
			w.step()
			if m, err := w.c.get(context.Background(), "m"); err != nil || m != nil && migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed).Reason != "Test" {
				t.Errorf("migration %+v, %v", m, err)
			}
		})
	}
	t.Run("claimed by another", func(t *testing.T) {
		w := newMigrating(t)
		w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
			w.claimFor(other)
			return Result{}, nil
		}
		w.step()
		if m := w.read(); migrationv1alpha1.Final(m) || w.claimedBy() != other {
			t.Errorf("migration %+v", m)
		}
	})
}

func TestProgress(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		w.Calls = nil
		for i := range int64(50) { // 10 s of the clock
			w.clock.Step(200 * time.Millisecond)
			progress(Progress{Total: 500, Done: 10 * (i + 1)})
		}
		writes := slices.DeleteFunc(slices.Clone(w.Calls), func(c string) bool { return c != "update status StorageVersionMigration" })
		if len(writes) != 3 {
			t.Errorf("%d writes of progress in 10 s, want 3", len(writes))
		}
		got := w.read().Status.Progress
		if got == nil || got.Total != 500 || got.Done != 450 || got.ObjectsPerSecond != 50 {
			t.Errorf("progress %+v", got)
		}
		return Result{Progress: Progress{Total: 500, Done: 500}}, nil
	}
	w.step()
	if got := w.events(); !slices.Contains(got, "Normal Succeeded") {
		t.Errorf("events %v", got)
	}
}

// TestProgressWhileTheRewriterWaits: the status is written, with a lower and lower rate, also while the rewriter
// reports nothing.
func TestProgressWhileTheRewriterWaits(t *testing.T) {
	w := newWorld(t)
	values := metered(t, w)
	w.migration(nil)
	const waited, perSecond = 30, 3000
	waiting, answer := make(chan struct{}), make(chan struct{})
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		w.clock.Step(time.Second)
		progress(Progress{Total: 2 * perSecond, Done: perSecond})
		close(waiting)
		<-answer
		return Result{Progress: Progress{Total: 2 * perSecond, Done: 2 * perSecond}}, nil
	}
	runs(t, w)
	defer close(answer)
	<-waiting
	w.uncall()
	for second := int64(1); second <= waited; second++ {
		w.clock.Step(time.Second)
		if second < 10 {
			continue
		}
		w.Eventually("the progress is written", func() bool {
			m := w.read()
			running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
			// The rate is that of the last ten seconds.
			p := m.Status.Progress
			return w.clock.Since(running.LastUpdateTime.Time) <= 5*time.Second && p != nil && p.Done == perSecond && p.ObjectsPerSecond <= perSecond/(second-4)
		})
	}
	writes := slices.DeleteFunc(w.called(), func(c string) bool { return c != "update status StorageVersionMigration" })
	if most := int(waited * time.Second / w.c.cfg.ProgressPeriod); len(writes) > most {
		t.Errorf("%d writes in %d s, want at most %d", len(writes), waited, most)
	}
	rate := values()["concord_migration_objects_per_second resource=cronjobs.batch.example.com"]
	if rate != 0 {
		t.Errorf("the metric's rate is %v after a wait of %d s", rate, waited)
	}
}

// TestPauseWhileTheRewriterWaits: without a watch event, the next periodic write of the status finds the pause.
func TestPauseWhileTheRewriterWaits(t *testing.T) {
	w := newMigrating(t)
	done := make(chan error)
	waiting := make(chan struct{})
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		close(waiting)
		return untilInterrupted(ctx)
	}
	go func() {
		_, err := step(w)
		done <- err
	}()
	<-waiting
	setPaused(w, true)
	w.clock.Step(time.Minute)
	for _, work := range w.c.works() {
		work.beat()
	}
	w.must(<-done)
	w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused)
}

// TestProgressConflict: changes that others make to the migration at the same time are kept.
func TestProgressConflict(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		w.edit(func(m *migrationv1alpha1.StorageVersionMigration) { m.Labels = map[string]string{"mine": "yes"} })
		w.clock.Step(time.Minute)
		progress(Progress{Total: 2, Done: 1})
		return Result{Progress: Progress{Total: 2, Done: 2}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	if w.read().Labels["mine"] != "yes" {
		t.Error("the label is lost")
	}
}

// TestForbiddenProgress: if the status may not be written, that is logged, once, since no condition can tell it.
func TestForbiddenProgress(t *testing.T) {
	w := newMigrating(t)
	set := func(err error) {
		w.Mu.Lock()
		defer w.Mu.Unlock()
		w.broken = map[string]error{"update status StorageVersionMigration": err}
	}
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		set(apierrors.NewForbidden(schema.GroupResource{Resource: "storageversionmigrations"}, "m", errors.New("no right")))
		for done := range int64(3) {
			w.clock.Step(time.Minute)
			progress(Progress{Total: 3, Done: done})
		}
		set(nil)
		return Result{Progress: Progress{Total: 3, Done: 3}}, nil
	}
	w.step()
	w.Mu.Lock()
	defer w.Mu.Unlock()
	if log := w.log.String(); strings.Count(log, "no right") != 1 {
		t.Errorf("it logged %s", log)
	}
}

// TestRun: a new migration is done, and the migration of a server that is gone is taken over.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(other)
	})
	runs(t, w)
	w.must(client.IgnoreNotFound(w.client.Delete(t.Context(), leaseObject(t, w, other))))
	w.Eventually("succeeded", func() bool {
		w.clock.Step(time.Second) // only the poll finds that the Lease is deleted
		m, err := w.c.get(t.Context(), "m")
		return err == nil && migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil
	})
}

// TestSpare: if as many migrations as run at a time (Workers) wait or are slow, another one runs all the same.
func TestSpare(t *testing.T) {
	t.Run("hang", func(t *testing.T) { spare(t, nil, Progress{Total: 3, Hindered: "the webhook does not answer"}) })
	t.Run("throttled", func(t *testing.T) { spare(t, ptr.To[int64](1), Progress{Total: 3}) })
}

// spare starts Workers migrations, which report this progress and do not end, and expects another one to be done.
func spare(t *testing.T, perSecond *int64, reported Progress) {
	w := newWorld(t)
	for _, name := range []string{"m", "hangs", "goes-on"} {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name, m.UID, m.Spec.MaxObjectsPerSecond = name, types.UID(name), perSecond
		})
	}
	var mu sync.Mutex
	begun := 0
	both := make(chan struct{})
	w.rewrite = func(ctx context.Context, _ Job, progress func(Progress)) (Result, error) {
		mu.Lock()
		begun++
		hangs := begun <= w.c.cfg.Workers
		if begun == w.c.cfg.Workers {
			close(both)
		}
		mu.Unlock()
		if hangs {
			<-both // until all Workers are used
			progress(reported)
			return untilInterrupted(ctx)
		}
		return Result{Progress: Progress{Total: 3, Done: 3}}, nil
	}
	runs(t, w)
	w.Eventually("another one is done", func() bool {
		w.clock.Step(time.Second)
		done := 0
		for _, name := range []string{"m", "hangs", "goes-on"} {
			m, err := w.c.get(t.Context(), name)
			if err == nil && migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil {
				done++
			}
		}
		return done == 1
	})
}
