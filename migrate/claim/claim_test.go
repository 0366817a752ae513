package claim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

func step(w *world) (time.Duration, error) { return w.c.Step(context.Background(), "m") }

// step runs one step of the controller, which must succeed.
func (w *world) step() {
	w.t.Helper()
	_, err := step(w)
	w.must(err)
}

// wholeMigration are all calls of a migration. The CRD and the StorageVersion must not have changed, so they are read
// once more after the last write.
var wholeMigration = []string{
	"get StorageVersionMigration", "list LeaseList", "get CustomResourceDefinition", "get StorageVersion",
	"update StorageVersionMigration", "update status StorageVersionMigration", "rewrite", "get CustomResourceDefinition", "get StorageVersion",
	"update status StorageVersionMigration",
}

func TestSuccess(t *testing.T) {
	w := newMigrating(t)
	w.lease(agree.ServerID(storageversion.NewUpstreamIdentity()), "") // a Lease that is no server's
	w.Calls = nil
	w.step()
	if !slices.Equal(w.Calls, wholeMigration) {
		t.Errorf("calls:\n  %s\nwant:\n  %s", strings.Join(w.Calls, "\n  "), strings.Join(wholeMigration, "\n  "))
	}
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
	if got := w.read(); w.claimedBy() != self || got.Status.Progress == nil || got.Status.Progress.Done != 3 {
		t.Errorf("migration %+v", got)
	}
	// An Event for an end at the time of the start would have the name of the first Event, which stays.
	if got := w.events(); !slices.Contains(got, "Normal Started") {
		t.Errorf("events %v", got)
	}
}

// leftAlone are reasons for which this server leaves a migration to others.
var leftAlone = []struct {
	name    string
	arrange func(w *world)
}{
	{"it has no target", func(w *world) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) { m.Annotations = nil })
	}},
	{"it has ended", func(w *world) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, "Test", "", metav1.Now())
		})
	}},
	{"a living server has claimed it", func(w *world) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(other)
		})
	}},
	{"its epoch is over", func(w *world) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			migrationv1alpha1.SetTarget(m, evolve.Target{Ref: evolve.Ref{UID: "sv-uid", Epoch: 7}, Encoding: v1})
		})
	}},
	{"its StorageVersion is another", func(w *world) {
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			migrationv1alpha1.SetTarget(m, evolve.Target{Ref: evolve.Ref{UID: "old", Epoch: 1}, Encoding: v1})
		})
	}},
	{"servers do not agree", func(w *world) {
		w.migration(nil)
		w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v2})
	}},
	{"this server does not report the resource", func(w *world) {
		w.migration(nil)
		w.report(agree.Report{Server: other, Encoding: v1})
	}},
	{"this server is older than another", func(w *world) {
		w.migration(nil)
		w.lease(other, "1.37")
	}},
	{"another does not tell its version", func(w *world) {
		w.migration(nil)
		w.lease(other, "")
	}},
	{"a kube-apiserver without Concord has come, which the StorageVersion does not say yet", func(w *world) {
		w.migration(nil)
		w.lease("apiserver-kkqhvpzxapvqo7nmmyypiqz3ie", "")
	}},
	{"the CustomResourceDefinition stores another version", func(w *world) {
		w.migration(nil)
		w.crd("v2", 1)
	}},
}

func TestLeftAlone(t *testing.T) {
	for _, test := range leftAlone {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
				t.Error("it is migrated")
				return Result{}, nil
			}
			test.arrange(w)
			before := w.read()
			w.step()
			if got := w.read(); got.ResourceVersion != before.ResourceVersion {
				t.Errorf("it is changed: %+v", got)
			}
		})
	}
}

func TestUnregistered(t *testing.T) {
	w := newMigrating(t)
	w.c.cfg.ID = func() agree.ServerID { return "" }
	after, err := step(w)
	w.must(err)
	if after <= 0 || w.claimedBy() != "" {
		t.Errorf("looks again after %s, claimed by %q", after, w.claimedBy())
	}
}

func TestClaimRace(t *testing.T) {
	w := newMigrating(t)
	w.once("update StorageVersionMigration", 1, func() { w.claimFor(other) })
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		t.Error("two servers migrate")
		return Result{}, nil
	}
	if _, err := step(w); !apierrors.IsConflict(err) {
		t.Errorf("error %v, want a conflict", err)
	}
	if w.claimedBy() != other {
		t.Errorf("claimed by %s", w.claimedBy())
	}
}

// TestServerJoins: another server reports the same encoding, so the fence moves but the agreement stays: the rewrite
// goes on.
func TestServerJoins(t *testing.T) {
	join := agree.Report{Server: "apiserver-third", Encoding: v1}
	t.Run("the rewriter asks", func(t *testing.T) {
		w := newMigrating(t)
		calls := 0
		w.rewrite = func(ctx context.Context, job Job, _ func(Progress)) (Result, error) {
			calls++
			sv := w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1}, join)
			revision, err := job.Refence(ctx)
			if err != nil || fmt.Sprint(revision) != sv.ResourceVersion || revision == job.FenceRevision {
				t.Errorf("refenced to %d, %v; the StorageVersion is at %s", revision, err, sv.ResourceVersion)
			}
			return Result{}, nil
		}
		w.step()
		w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
		if calls != 1 {
			t.Errorf("%d rewrites", calls)
		}
	})
	// The rewriter gets the definition under which the rewrite is permitted.
	for _, definition := range []CRD{{}, {UID: "crd-uid", Generation: 7}} {
		t.Run(fmt.Sprintf("the rewriter of %+v ends", definition), func(t *testing.T) {
			w := newWorld(t)
			if definition.UID != "" {
				w.crd("v1", definition.Generation)
			}
			w.migration(nil)
			var fences []int64
			w.rewrite = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
				if fences = append(fences, job.FenceRevision); job.CRD != definition {
					t.Errorf("it is permitted by %+v", job.CRD)
				}
				if len(fences) > 1 {
					return Result{}, nil
				}
				w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1}, join)
				return Result{}, fmt.Errorf("a transaction: %w", ErrFenced)
			}
			w.step()
			w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
			if len(fences) != 2 || fences[1] <= fences[0] {
				t.Errorf("fences %v", fences)
			}
		})
	}
}

// TestDoesNotSucceed: whenever the agreement or the definition changes, the migration fails, which counts as aborted.
func TestDoesNotSucceed(t *testing.T) {
	lost := func(w *world) {
		w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v2})
	}
	toAndFro := func(w *world) { // v1 -> v2 -> v1: the agreement is the same as before
		lost(w)
		w.report(agree.Report{Server: self, Encoding: v1}, agree.Report{Server: other, Encoding: v1})
	}
	for _, test := range []struct {
		name    string
		rewrite func(w *world, job Job) error
		reason  string
	}{
		{"after the last write", func(w *world, _ Job) error { lost(w); return nil }, migrationv1alpha1.ReasonAgreementLost},
		{"to and fro after the last write", func(w *world, _ Job) error { toAndFro(w); return nil }, migrationv1alpha1.ReasonStorageVersionChanged},
		{"fenced", func(w *world, _ Job) error { lost(w); return ErrFenced }, migrationv1alpha1.ReasonAgreementLost},
		{"to and fro, fenced", func(w *world, _ Job) error { toAndFro(w); return ErrFenced }, migrationv1alpha1.ReasonStorageVersionChanged},
		{"the rewriter asks", func(w *world, job Job) error {
			toAndFro(w)
			_, err := job.Refence(context.Background())
			if !errors.Is(err, ErrFenced) {
				w.t.Errorf("refence: %v, want ErrFenced", err)
			}
			return err
		}, migrationv1alpha1.ReasonStorageVersionChanged},
		{"the CRD changes", func(w *world, _ Job) error { w.crd("v1", 2); return nil }, migrationv1alpha1.ReasonCRDChanged},
		{"the CRD stores another version, fenced", func(w *world, _ Job) error { w.crd("v2", 2); return ErrFenced }, migrationv1alpha1.ReasonCRDChanged},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.crd("v1", 1)
			w.migration(nil)
			values := metered(t, w)
			w.rewrite = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
				return Result{}, test.rewrite(w, job)
			}
			w.step()
			w.expectTrue(migrationv1alpha1.MigrationFailed, test.reason)
			const ended = "storage_migrator_core_migrator_migrations_total resource=batch.example.com/v1, Resource=cronjobs status="
			if got := values(); got[ended+"Aborted"] != 1 || got[ended+"Failed"] != 0 {
				t.Errorf("metrics %v", got)
			}
		})
	}
}

func TestOwnReportVanishes(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		w.report(agree.Report{Server: other, Encoding: v1})
		return Result{}, ErrFenced
	}
	if _, err := step(w); !errors.Is(err, errNotOurs) {
		t.Errorf("error %v", err)
	}
	if m := w.read(); migrationv1alpha1.Final(m) || w.claimedBy() != "" {
		t.Errorf("another server cannot take it: %+v", m)
	}
}

func TestObjectsFail(t *testing.T) {
	w := newMigrating(t)
	kinds := map[migrationv1alpha1.MigrationFailureReason]int64{migrationv1alpha1.FailureTooLarge: 50, migrationv1alpha1.FailureDoesNotDecode: 100}
	w.rewrite = func(_ context.Context, job Job, _ func(Progress)) (Result, error) {
		r := Result{Progress: Progress{Total: 1000, Done: 850, Failed: 150, FailedByReason: kinds}}
		for i := range 150 {
			f := Failure{Name: fmt.Sprint("o", i), Reason: migrationv1alpha1.FailureDoesNotDecode, Message: "does not decode"}
			job.Failed(f)
			r.Failures = append(r.Failures, f)
		}
		return r, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed)
	m := w.read()
	message := migrationv1alpha1.True(m, migrationv1alpha1.MigrationFailed).Message
	want := "150 of 1000 objects cannot be migrated: 100 DoesNotDecode, 50 TooLarge; the first is o0: does not decode; the log of apiserver-self names all"
	if message != want {
		t.Errorf("message %q, want %q", message, want)
	}
	if len(m.Status.Failures) != migrationv1alpha1.MaxFailures || m.Status.Progress.Done != 850 || m.Status.Progress.Failed != 150 {
		t.Errorf("%d failures, progress %+v", len(m.Status.Failures), m.Status.Progress)
	}
	if f := m.Status.Failures[0]; f.Reason != migrationv1alpha1.FailureDoesNotDecode || !maps.Equal(m.Status.Progress.FailedByReason, kinds) {
		t.Errorf("failure %+v, by reason %v", f, m.Status.Progress.FailedByReason)
	}
	// The status has the first failed objects, the log has all.
	if logged := strings.Count(w.log.String(), `"Object not migrated"`); logged != 150 || !strings.Contains(w.log.String(), `"name"="o149" "reason"="DoesNotDecode"`) {
		t.Errorf("%d objects are in the log: %s", logged, w.log.String())
	}
}

// TestSpuriousFence: if the rewriter returns ErrFenced although the fence has not moved, it is not called again at once.
func TestSpuriousFence(t *testing.T) {
	w := newMigrating(t)
	calls := 0
	w.rewrite = func(context.Context, Job, func(Progress)) (Result, error) {
		calls++
		return Result{}, ErrFenced
	}
	if _, err := step(w); !errors.Is(err, ErrFenced) || calls != 1 {
		t.Errorf("error %v after %d calls", err, calls)
	}
}

func TestShutdown(t *testing.T) {
	w := newMigrating(t)
	ctx, cancel := context.WithCancel(context.Background())
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		cancel()
		<-ctx.Done()
		return Result{}, ctx.Err()
	}
	if _, err := w.c.Step(ctx, "m"); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	w.expectTrue(migrationv1alpha1.MigrationRunning, migrationv1alpha1.ReasonRewriting)
}

// TestHinderedAndProving: the Running condition has the error that keeps the rewrite waiting, until the rewrite goes on.
// It also says when everything is rewritten and is being proven.
func TestHinderedAndProving(t *testing.T) {
	w := newMigrating(t)
	w.rewrite = func(_ context.Context, _ Job, progress func(Progress)) (Result, error) {
		for _, told := range []struct {
			Progress
			reason string
		}{
			{Progress{Total: 2, Done: 1, Hindered: "the webhook is down"}, migrationv1alpha1.ReasonRetrying},
			{Progress{Total: 2, Done: 1}, migrationv1alpha1.ReasonRewriting},
			{Progress{Total: 2, Done: 2, Proving: true}, migrationv1alpha1.ReasonProving},
		} {
			w.clock.Step(w.c.cfg.ProgressPeriod)
			progress(told.Progress)
			w.expectTrue(migrationv1alpha1.MigrationRunning, told.reason)
			m := w.read()
			if c := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning); told.Hindered != "" && c.Message != told.Hindered || m.Status.Progress.Done != told.Done {
				t.Errorf("it tells %q, %+v", c.Message, m.Status.Progress)
			}
		}
		return Result{Progress: Progress{Total: 2, Done: 2}}, nil
	}
	w.step()
	w.expectTrue(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded)
}
