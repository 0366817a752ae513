package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/cluster"
)

// A migration that is held to a rate is paused and rests, goes on, loses its server to
// SIGKILL, and is ended by another server from where it was.
func testPausedAndKilled(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Args: "--migration-max-objects-per-second=40"}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	storeWidgetsIn(t, servers[0], "v2")

	started := waitMigration(t, servers[0], "has got somewhere", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.Status.ContinueToken != ""
	})
	pauseMigration(t, servers[0], started, true)
	resting := waitMigration(t, servers[0], "rests", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
		return running != nil && running.Reason == migrationv1alpha1.ReasonPaused && m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == ""
	})
	converted := c.Encodings(widgets)[widgetEncoding("v2")]
	if left := c.Encodings(widgets)[widgetEncoding("v1")]; left == 0 || resting.Status.Progress == nil || resting.Status.Progress.Done == 0 {
		t.Errorf("it rests with %d objects to go and %+v", left, resting.Status.Progress)
	}

	pauseMigration(t, servers[0], resting, false)
	again := waitMigration(t, servers[0], "goes on", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.Annotations[migrationv1alpha1.ClaimedByAnnotation] != "" && m.Status.Progress.Done > resting.Status.Progress.Done
	})
	if now := c.Encodings(widgets)[widgetEncoding("v2")]; now <= converted {
		t.Errorf("%d objects are converted after the pause, %d were before", now, converted)
	}
	claimer := again.Annotations[migrationv1alpha1.ClaimedByAnnotation]
	other := servers[0]
	for i, s := range servers {
		if id, ok := s.ID(); ok && string(id) == claimer {
			s.Kill()
			other = servers[1-i]
		}
	}
	ended := waitMigration(t, other, "ends", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil
	})
	if by := ended.Annotations[migrationv1alpha1.ClaimedByAnnotation]; by == claimer {
		t.Errorf("it was ended by %s, which was killed", by)
	}
	// What was done before it went on is counted, once.
	if p := ended.Status.Progress; p == nil || p.Done != stored || p.Total != stored {
		t.Errorf("it ended with %+v", p)
	}
	t.Logf("settled after %v", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, widgets, widgetEncoding("v2"), stored)
	c.Check()
}

// waitMigration waits for the migration of widgets to v2 to be so, and returns it.
func waitMigration(t *testing.T, s *cluster.Server, what string, is func(*migrationv1alpha1.StorageVersionMigration) bool) (found *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	cluster.Eventually(t, 90*time.Second, "the migration "+what, func(ctx context.Context) error {
		var list migrationv1alpha1.StorageVersionMigrationList
		if err := s.Objects().List(ctx, &list); err != nil {
			return err
		}
		seen := errors.New("there is none")
		for i := range list.Items {
			m := &list.Items[i]
			if m.Spec.Resource.Resource != widgets.Resource || m.Annotations[migrationv1alpha1.EncodingAnnotation] != string(widgetEncoding("v2")) {
				continue
			}
			if found = m; is(m) {
				return nil
			}
			seen = fmt.Errorf("%s is %+v", m.Name, m.Status)
		}
		return seen
	})
	return found
}

func pauseMigration(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, paused bool) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var fresh migrationv1alpha1.StorageVersionMigration
		if err := s.Objects().Get(t.Context(), client.ObjectKeyFromObject(m), &fresh); err != nil {
			return err
		}
		fresh.Spec.Paused = paused
		return s.Objects().Update(t.Context(), &fresh)
	})
	if err != nil {
		t.Fatal(err)
	}
}
