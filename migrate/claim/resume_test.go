package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// half is the progress of a rewrite that is half done and has met an object that cannot be migrated.
var half = Progress{Total: 10, Done: 4, Failed: 1, Checkpoint: Checkpoint{
	Position: "half", Failures: []Failure{{Namespace: "ns", Name: "early", Message: "broken"}},
}}

// crashHalfway runs a rewrite that saves its progress; then its server ends.
func crashHalfway(w *world) {
	w.t.Helper()
	ctx, crash := context.WithCancel(context.Background())
	w.rewrite = func(ctx context.Context, _ Job, progress func(Progress)) (Result, error) {
		w.clock.Step(time.Minute)
		progress(half)
		crash()
		return Result{}, ctx.Err()
	}
	if _, err := w.c.Step(ctx, "m"); !errors.Is(err, context.Canceled) {
		w.t.Fatalf("got %v", err)
	}
	if m := w.read(); m.Status.ContinueToken == "" || len(m.Status.Failures) != 1 || m.Status.Progress.Done != 4 {
		w.t.Fatalf("status %+v", m.Status)
	}
}

// resumed runs the rewrite of the next server, and returns the position at which it began.
func resumed(w *world) (position string) {
	w.t.Helper()
	w.rewrite = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
		position = job.Resume
		w.clock.Step(time.Second)
		return Result{Progress: Progress{Total: 10, Done: 8, Failed: 2}, Failures: []Failure{{Namespace: "ns", Name: "late", Message: "broken"}}}, nil
	}
	w.step()
	return position
}

// TestResumes: the next server begins at the position that the last one saved, with the failures so far.
func TestResumes(t *testing.T) {
	for _, custom := range []bool{false, true} {
		t.Run(fmt.Sprintf("custom resource %t", custom), func(t *testing.T) {
			w := newWorld(t)
			if custom {
				w.crd("v1", 3)
			}
			w.migration(nil)
			crashHalfway(w)
			if got := resumed(w); got != "half" {
				t.Errorf("the rewrite began at %q", got)
			}
			m := w.read()
			w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed)
			if f := m.Status.Failures; len(f) != 2 || f[0].Name != "early" || f[1].Name != "late" {
				t.Errorf("failures %+v", f)
			}
			if m.Status.ContinueToken != "" {
				t.Error("an ended migration can be continued")
			}
			// Four objects were done before this server began, a second ago.
			if p := m.Status.Progress; p.Done != 8 || p.ObjectsPerSecond != 4 {
				t.Errorf("progress %+v", p)
			}
		})
	}
}

// TestResumesBehindTheCount: some objects that count as done are behind the saved position, and are met again.
// The number of done objects in the status does not go down, and the rate counts from the position on.
func TestResumesBehindTheCount(t *testing.T) {
	w := newWorld(t)
	values := metered(t, w)
	w.migration(nil)
	crashHalfway(w) // 4 done
	shown := func(done, rate int64) {
		t.Helper()
		if p := w.read().Status.Progress; p.Done != done || p.ObjectsPerSecond != rate {
			t.Errorf("progress %+v, want %d done at %d/s", p, done, rate)
		}
		if got := values()["concord_migration_objects_per_second resource=cronjobs.batch.example.com"]; got != float64(rate) {
			t.Errorf("the metric's rate is %v, want %d", got, rate)
		}
	}
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		report := func(p Progress) {
			p.Total, p.Checkpoint = 10, half.Checkpoint
			w.clock.Step(4 * time.Second)
			progress(p)
		}
		report(Progress{Done: 1})
		shown(4, 0)
		report(Progress{Done: 9})
		shown(9, 1) // 8 objects in 8 s
		return Result{Progress: Progress{Total: 10, Done: 10}}, nil
	}
	w.step()
	// Here the rewrite reports nothing before its end, and the number in the status was too high.
	w = newWorld(t)
	w.migration(nil)
	crashHalfway(w)
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		w.clock.Step(time.Second)
		return Result{Progress: Progress{Total: 2, Done: 2}}, nil
	}
	w.step()
	if p := w.read().Status.Progress; p.Done != 2 || p.ObjectsPerSecond != 0 {
		t.Errorf("progress %+v after the end", p)
	}
}

// TestLogsOfAllServers: the message of the Failed condition says that the logs of several servers name all
// failed objects, since the log of one has only those behind its position.
func TestLogsOfAllServers(t *testing.T) {
	w := newMigrating(t)
	crashHalfway(w)
	w.claimFor("a server that is gone")
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		return Result{Progress: Progress{Total: 10, Done: 7, Failed: 3}, Failures: []Failure{{Namespace: "ns", Name: "late", Message: "broken"}}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed)
	const want = "3 of 10 objects cannot be migrated; the first is ns/early: broken; the logs of the servers that migrated name all"
	if got := migrationv1alpha1.True(w.read(), migrationv1alpha1.MigrationFailed).Message; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
}

// TestBegunAnew: a rewrite that begins at the first object again meets failed objects that the status has
// already.
func TestBegunAnew(t *testing.T) {
	w := newMigrating(t)
	crashHalfway(w)
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		return Result{Progress: Progress{Total: 10, Done: 8, Failed: 2}, Failures: []Failure{{Namespace: "ns", Name: "early", Message: "broken"}, {Namespace: "ns", Name: "late", Message: "broken"}}}, nil
	}
	w.step()
	if f := w.read().Status.Failures; len(f) != 2 || f[0].Name != "early" || f[1].Name != "late" {
		t.Errorf("the failures are %+v", f)
	}
}

// TestErrorsInARow: a migration is tried again after an error, until there were some in a row. Errors are counted only as
// long as the migration makes no progress between them.
func TestErrorsInARow(t *testing.T) {
	w := newMigrating(t)
	const many = 20
	failing := func(position string) {
		t.Helper()
		w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
			w.clock.Step(time.Minute)
			progress(Progress{Total: 10, Checkpoint: Checkpoint{Position: position}})
			return Result{}, errors.New("the store is away")
		}
		_, _ = w.c.Step(context.Background(), "m")
	}
	for i := range many {
		failing(fmt.Sprint("at ", i))
	}
	w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying)
	for range attempts - 2 {
		failing(fmt.Sprint("at ", many-1))
		w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRetrying)
	}
	failing(fmt.Sprint("at ", many-1))
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonRewriteFailed)
	if message := migrationv1alpha1.True(w.read(), migrationv1alpha1.MigrationFailed).Message; !strings.Contains(message, "the store is away") {
		t.Errorf("message %q", message)
	}
}

// TestUnproven: if some objects are not in the target encoding after a rewrite, the rewrite begins anew, a
// limited number of times, though each of them makes progress.
func TestUnproven(t *testing.T) {
	w := newMigrating(t)
	crashHalfway(w)
	for i := range attempts {
		w.expectTrue(migrationv1alpha1.MigrationRunning, map[bool]string{false: migrationv1alpha1.ReasonRetrying, true: migrationv1alpha1.ReasonRewriting}[i == 0])
		w.rewrite = func(_ context.Context, job Job, progress func(Progress)) (Result, error) {
			if (job.Resume == "") != (i > 0) {
				t.Errorf("attempt %d goes on at %q", i, job.Resume)
			}
			w.clock.Step(time.Minute)
			progress(Progress{Total: 10, Done: 10, Checkpoint: Checkpoint{Position: fmt.Sprint("at ", i)}})
			return Result{}, fmt.Errorf("census: %w", ErrUnproven)
		}
		_, _ = step(w)
	}
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonRewriteFailed)
}

// TestChangedByAdmission: if admission changes objects at every write, another attempt would not prove more. The
// first attempt ends the migration.
func TestChangedByAdmission(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		progress(Progress{Total: 10, Done: 10})
		return Result{}, fmt.Errorf("%w: 3 objects", ErrChangedByAdmission)
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonChangedByAdmission)
	if view := migrationv1alpha1.ViewMigration(w.read()); view.Lasting != 1 {
		t.Errorf("it is taken for a failure that passes by itself: %+v", view)
	}
}

// TestVoidTokens: everything is done again if something has changed because of which objects may be left in
// another encoding, or were converted by another definition.
func TestVoidTokens(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"another epoch": func(w *world) {
			w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v2})
			sv := w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1})
			w.edit(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Annotations[migrationv1alpha1.EpochAnnotation] = sv.Annotations["concord.dev/epoch"]
			})
		},
		"another StorageVersion": func(w *world) {
			w.edit(func(m *migrationv1alpha1.StorageVersionMigration) {
				migrationv1alpha1.SetTarget(m, evolve.Target{Ref: evolve.Ref{UID: "new-uid", Epoch: 1}, Encoding: v1})
			})
			sv := w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1})
			w.must(w.client.Delete(context.Background(), sv))
			sv.UID, sv.ResourceVersion = "new-uid", ""
			status := sv.Status
			w.must(w.client.Create(context.Background(), sv))
			sv.Status = status
			w.must(w.client.Status().Update(context.Background(), sv))
		},
		"another definition": func(w *world) { w.crd("v1", 4) },
		"no definition": func(w *world) {
			m := w.read()
			saved, _ := parseToken(m.Status.ContinueToken)
			saved.CRD = CRD{}
			m.Status.ContinueToken = saved.String()
			w.must(w.client.Status().Update(context.Background(), m))
		},
		"no token": func(w *world) {
			m := w.read()
			m.Status.ContinueToken = "rubbish"
			w.must(w.client.Status().Update(context.Background(), m))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 3)
			w.migration(nil)
			crashHalfway(w)
			change(w)
			if got := resumed(w); got != "" {
				t.Errorf("the rewrite began at %q", got)
			}
			if m := w.read(); len(m.Status.Failures) != 1 || m.Status.Failures[0].Name != "late" || m.Status.Progress.ObjectsPerSecond != 8 {
				t.Errorf("status %+v", m.Status)
			}
		})
	}
}

// TestInterruptedRewritesGoOn: the next attempt of the same server begins where the last one ended, also if that
// position was not saved.
func TestInterruptedRewritesGoOn(t *testing.T) {
	w := newMigrating(t)
	var began []string
	w.rewrite = func(_ context.Context, job Job, progress func(Progress)) (Result, error) {
		if began = append(began, job.Resume); len(began) == 1 {
			progress(half)
			w.report(agree.Report{Server: self, Encoding: v1})
			return Result{}, ErrFenced
		}
		return Result{Progress: Progress{Total: 10, Done: 9, Failed: 1}}, nil
	}
	w.step()
	if len(began) != 2 || began[0] != "" || began[1] != "half" {
		t.Errorf("the rewrites began at %q", began)
	}
	if f := w.read().Status.Failures; len(f) != 1 || f[0].Name != "early" {
		t.Errorf("failures %+v", f)
	}
}

func setPaused(w *world, paused bool) *migrationv1alpha1.StorageVersionMigration {
	w.t.Helper()
	return w.edit(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Paused = paused })
}

// TestPause: a paused migration stops, has no claim any more, and goes on at its position when the pause ends.
func TestPause(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(ctx context.Context, _ Job, progress func(Progress)) (Result, error) {
		progress(half)
		w.c.ObserveMigration(setPaused(w, true), false)
		return untilInterrupted(ctx)
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused)
	if m := w.read(); w.claimedBy() != "" || m.Status.Progress == nil || m.Status.Progress.Done != 4 {
		t.Errorf("migration %+v", m)
	}

	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		t.Error("it does not rest")
		return Result{}, nil
	}
	before := w.read().ResourceVersion
	w.step()
	if after := w.read().ResourceVersion; after != before {
		t.Error("a resting migration was written")
	}

	setPaused(w, false)
	if got := resumed(w); got != "half" {
		t.Errorf("the rewrite began at %q", got)
	}
}

// TestRest: a paused migration that has begun gets the reason Paused, by any server if its own is gone or has
// given up the claim. A migration that has not begun, or has a live server, is left alone.
func TestRest(t *testing.T) {
	for name, tc := range map[string]struct {
		claimer   agree.ServerID
		began     bool
		rests     bool
		lookAgain bool
	}{
		"its server is gone":               {claimer: "apiserver-gone", began: true, rests: true},
		"its server is gone, at the start": {claimer: "apiserver-gone", rests: true},
		"its server has let go of it":      {began: true, rests: true},
		"its server is there":              {claimer: other, began: true, lookAgain: true},
		"it did not begin":                 {},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Spec.Paused = true
				if tc.claimer != "" {
					m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(tc.claimer)
				}
			})
			m := w.read()
			if tc.began {
				migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting, "", metav1.NewTime(w.clock.Now()))
				w.must(w.client.Status().Update(context.Background(), m))
			}
			before := w.read()
			after, err := step(w)
			w.must(err)
			if (after > 0) != tc.lookAgain {
				t.Errorf("to look again after %v", after)
			}
			m = w.read()
			if !tc.rests {
				if m.ResourceVersion != before.ResourceVersion {
					t.Errorf("it was written: %+v", m)
				}
				return
			}
			w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused)
			if told := w.events(); w.claimedBy() != "" || !slices.Equal(told, []string{"Normal Paused"}) {
				t.Errorf("it is claimed by %q, events %q", w.claimedBy(), told)
			}
			before = m
			after, err = step(w)
			w.must(err)
			if after != 0 || w.read().ResourceVersion != before.ResourceVersion {
				t.Error("once it rests it was not left alone")
			}
		})
	}
}

// TestRateOfWhatIsWritten: objects that a rewrite finds to be in the encoding before it writes one do not count for its
// rate from then on.
func TestRateOfWhatIsWritten(t *testing.T) {
	w := newMigrating(t)
	values := metered(t, w)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		for _, report := range []struct {
			done, written int64
			want          float64
		}{{1000, 500, 500}, {3000, 500, 750}, {3010, 510, 0}, {3050, 550, 20}, {3110, 560, 25}} {
			w.clock.Step(2 * time.Second)
			progress(Progress{Total: 9000, Done: report.done, Written: report.written})
			if got := values()["concord_migration_objects_per_second resource=cronjobs.batch.example.com"]; got != report.want {
				t.Errorf("with %d done, %d of them written, the rate is %v, want %v", report.done, report.written, got, report.want)
			}
		}
		return Result{Progress: Progress{Total: 9000, Done: 9000}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
}

// TestSpeedChanges: if the limit of a migration changes, its rewrite goes on at its position with the new limit.
// The server learns of that from the watch or from the next write of progress. If the migration is paused, too,
// it stops.
func TestSpeedChanges(t *testing.T) {
	for _, watch := range []bool{true, false} {
		for _, pauses := range []bool{false, true} {
			t.Run(fmt.Sprintf("watch %t, paused %t", watch, pauses), func(t *testing.T) {
				w := newMigrating(t)
				values := metered(t, w)
				var jobs []Job
				w.rewrite = func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
					if jobs = append(jobs, job); len(jobs) > 1 {
						w.clock.Step(2 * time.Second)
						progress(Progress{Total: 10, Done: half.Done + 4})
						if got := values()["concord_migration_objects_per_second resource=cronjobs.batch.example.com"]; got != 2 {
							t.Errorf("4 objects in 2 s at the new speed are a rate of %v", got)
						}
						return Result{Progress: Progress{Total: 10, Done: 10}}, nil
					}
					progress(half)
					m := w.edit(func(m *migrationv1alpha1.StorageVersionMigration) {
						m.Spec.MaxObjectsPerSecond, m.Spec.MaxAddedLatency = ptr.To[int64](7), &metav1.Duration{}
					})
					if watch {
						w.c.ObserveMigration(m, false)
					}
					if pauses {
						setPaused(w, true)
					}
					if !watch {
						w.clock.Step(time.Minute)
						progress(half)
					}
					return untilInterrupted(ctx)
				}
				w.step()
				if pauses {
					w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonPaused)
					if len(jobs) != 1 {
						t.Errorf("jobs %+v", jobs)
					}
					return
				}
				w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
				if len(jobs) != 2 || jobs[0].MaxPerSecond != nil || *jobs[1].MaxPerSecond != 7 || *jobs[1].MaxAddedLatency != 0 || jobs[1].Resume != "half" {
					t.Errorf("jobs %+v", jobs)
				}
			})
		}
	}
}

// TestRunPausesAndGoesOn: with watch events alone, a migration pauses, goes on, and is cancelled by its
// deletion.
func TestRunPausesAndGoesOn(t *testing.T) {
	w := newMigrating(t)
	running := make(chan string)
	w.rewrite = func(ctx context.Context, job Job, progress func(Progress)) (Result, error) {
		progress(half)
		select {
		case running <- job.Resume:
		case <-ctx.Done(): // a late event of the pause interrupts it
		}
		return untilInterrupted(ctx)
	}
	runs(t, w)
	reason := func(want string) {
		t.Helper()
		w.Eventually(want, func() bool {
			m := w.read()
			c := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
			return c != nil && c.Reason == want && (m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == "") == m.Spec.Paused
		})
	}
	change := func(paused bool) {
		t.Helper()
		w.Eventually("changed", func() bool {
			m := w.read()
			m.Spec.Paused = paused
			return w.client.Update(t.Context(), m) == nil
		})
	}
	if at := <-running; at != "" {
		t.Errorf("began at %q", at)
	}
	change(true)
	reason(migrationv1alpha1.ReasonPaused)
	change(false)
	if at := <-running; at != "half" {
		t.Errorf("went on at %q", at)
	}
	reason(migrationv1alpha1.ReasonRewriting)
	w.must(client.IgnoreNotFound(w.client.Delete(t.Context(), w.read())))
	w.Eventually("interrupted", func() bool {
		w.c.mu.Lock()
		defer w.c.mu.Unlock()
		return len(w.c.running) == 0
	})
}

// TestEvents: there is one Event each for a migration's start, a pause, the end of the pause, another server
// that goes on, and the end. The original of a copy has all of them, too.
func TestEvents(t *testing.T) {
	w := newWorld(t)
	original := metav1.OwnerReference{
		APIVersion: "storagemigration.k8s.io/v1beta1", Kind: migrationv1alpha1.MigrationKind, Name: "original", UID: "original-uid", Controller: ptr.To(true),
	}
	w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.OwnerReferences = []metav1.OwnerReference{original}
	})
	change := func(change func(*migrationv1alpha1.StorageVersionMigration)) {
		t.Helper()
		w.clock.Step(time.Second)
		w.edit(change)
	}
	crashHalfway(w)
	change(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Paused = true })
	w.step()
	change(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Paused = false })
	ctx, crash := context.WithCancel(context.Background())
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		crash()
		return Result{}, ctx.Err()
	}
	if _, err := w.c.Step(ctx, "m"); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	change(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = "a server that is gone"
	})
	resumed(w)
	told := map[corev1.ObjectReference][]string{}
	var list corev1.EventList
	w.must(w.client.List(context.Background(), &list))
	for _, e := range list.Items {
		about := e.InvolvedObject
		about.ResourceVersion = ""
		told[about] = append(told[about], e.Type+" "+e.Reason)
		if e.Reason == migrationv1alpha1.EventResumed && !strings.Contains(e.Message, "from where it was: 4 of 10 objects are done") {
			t.Errorf("note %q", e.Message)
		}
	}
	want := []string{"Normal Started", "Normal Paused", "Normal Resumed", "Normal Resumed", "Warning ObjectsFailed"}
	for _, about := range []corev1.ObjectReference{
		{APIVersion: migrationv1alpha1.SchemeGroupVersion.String(), Kind: migrationv1alpha1.MigrationKind, Name: "m", UID: "m-uid"},
		{APIVersion: original.APIVersion, Kind: original.Kind, Name: original.Name, UID: original.UID},
	} {
		if got := told[about]; !slices.Equal(got, want) {
			t.Errorf("events about %s: %q, want %q", about.Name, got, want)
		}
	}
	if len(told) != 2 {
		t.Errorf("events %+v", told)
	}
}
