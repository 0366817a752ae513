package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/load"
)

// testPausedAndKilled: a migration at a limited rate is paused, and nothing is written then.
// Another migration, which is created by hand and goes through the API, is cancelled, and nothing
// is written after that either. The first is resumed and goes on from where it was. Its server is
// killed, and another server completes it from where it was then.
func testPausedAndKilled(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Args: "--migration-max-objects-per-second=40"}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	storeWidgetsIn(t, servers[0], "v2")

	started := waitMigration(t, servers[0], "has got somewhere", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.Status.ContinueToken != "" && m.Status.Progress.Done > 0
	})
	pauseMigration(t, servers[0], started, true)
	resting := started.DeepCopy()
	waitResting(t, servers[0], resting)
	converted := c.Encodings(widgets)[widgetEncoding("v2")]
	if left := c.Encodings(widgets)[widgetEncoding("v1")]; left == 0 || resting.Status.Progress == nil || resting.Status.Progress.Done == 0 {
		t.Errorf("it rests with %d objects to go and %+v", left, resting.Status.Progress)
	}

	writes := c.Load(load.Config{Resources: []load.Resource{load.ConfigMaps("default")}}, servers...)
	wantAtRest(t, c, resting, writes, servers)
	cancelByHand(t, c, writes, servers)
	c.CheckLoad(writes.Stop(), nil)

	pauseMigration(t, servers[0], resting, false)
	again := waitMigration(t, servers[0], "goes on", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.Annotations[migrationv1alpha1.ClaimedByAnnotation] != "" && m.Status.ContinueToken != "" && m.Status.Progress.Done > resting.Status.Progress.Done
	})
	if now := c.Encodings(widgets)[widgetEncoding("v2")]; now <= converted {
		t.Errorf("%d objects are converted after the pause, %d were before", now, converted)
	}
	claimer := again.Annotations[migrationv1alpha1.ClaimedByAnnotation]
	other := servers[0]
	for i, s := range servers {
		if id, ok := s.ID(); ok && string(id) == claimer {
			s.Kill()
			wantResumed(t, s, resting)
			other = servers[1-i]
		}
	}
	ended := waitMigration(t, other, "ends", func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) != nil
	})
	if by := ended.Annotations[migrationv1alpha1.ClaimedByAnnotation]; by == claimer {
		t.Errorf("it was ended by %s, which was killed", by)
	}
	wantResumed(t, other, again)
	// Objects that were rewritten before the pause are counted, once.
	if p := ended.Status.Progress; p == nil || p.Done != stored || p.Total != stored {
		t.Errorf("it ended with %+v", p)
	}
	t.Logf("settled after %v", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, widgets, widgetEncoding("v2"), stored)
	c.Check()
}

// wantAtRest fails if an object is written while the migration is paused and the servers do other work.
func wantAtRest(t *testing.T, c *cluster.Cluster, resting *migrationv1alpha1.StorageVersionMigration, writes *load.Load, servers []*cluster.Server) {
	t.Helper()
	wantSilence(t, c, "paused", writes, servers)
	now := waitMigration(t, servers[0], "is there", func(*migrationv1alpha1.StorageVersionMigration) bool { return true })
	if now.UID != resting.UID || now.Status.ContinueToken != resting.Status.ContinueToken || now.Status.Progress.Done != resting.Status.Progress.Done {
		t.Errorf("it rested and has become %+v, from %+v", now, resting)
	}
}

// cancelByHand creates a migration of widgets through the API, deletes it when it has written
// something, and fails if it writes any more.
func cancelByHand(t *testing.T, c *cluster.Cluster, writes *load.Load, servers []*cluster.Server) {
	t.Helper()
	before := revisionsOf(t, c, widgets)
	byHand := askForAPI(t, servers[1], widgets, "v2", func(*migrationv1alpha1.StorageVersionMigrationSpec) {})
	waitWritten(t, c, before)
	must(t, servers[0].Objects().Get(t.Context(), client.ObjectKeyFromObject(byHand), byHand))
	wantAPI(t, byHand)
	wantCancelled(t, c, byHand, writes, servers)
}

// waitWritten waits until a widget has been written since the revisions in before were read.
func waitWritten(t *testing.T, c *cluster.Cluster, before map[string]int64) {
	t.Helper()
	cluster.Eventually(t, 60*time.Second, "something is written", func(context.Context) error {
		if writtenSince(t, c, widgets, before) == 0 {
			return errors.New("nothing is")
		}
		return nil
	})
}

// wantCancelled deletes a migration, and fails if it writes any more.
func wantCancelled(t *testing.T, c *cluster.Cluster, m *migrationv1alpha1.StorageVersionMigration, writes *load.Load, servers []*cluster.Server) {
	t.Helper()
	must(t, servers[0].Objects().Delete(t.Context(), m))
	wantSilence(t, c, "cancelled", writes, servers)
	if left := c.Encodings(widgets)[widgetEncoding("v1")]; left == 0 {
		t.Error("it had ended before it was cancelled: nothing was tested")
	}
}

// waitResting waits until no server works on a paused migration, and reads the migration into m.
func waitResting(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	waitFor(t, s, m, "rests", func() bool {
		running := migrationv1alpha1.True(m, migrationv1alpha1.MigrationRunning)
		return running != nil && running.Reason == migrationv1alpha1.ReasonPaused && m.Annotations[migrationv1alpha1.ClaimedByAnnotation] == ""
	})
}

// wantSilence fails if a widget is written while servers do other work: they take writes, and renew
// their Leases for longer than they take to look at a migration again.
func wantSilence(t *testing.T, c *cluster.Cluster, migration string, writes *load.Load, servers []*cluster.Server) {
	t.Helper()
	awaitRenewals(t, c, 2, servers) // requests that were under way have ended
	revisions := revisionsOf(t, c, widgets)
	cluster.Eventually(t, 60*time.Second, "the servers take writes", acked(writes, servers))
	awaitRenewals(t, c, 8, servers)
	if n := writtenSince(t, c, widgets, revisions); n > 0 {
		t.Errorf("%d objects were written after the migration was %s", n, migration)
	}
}

// awaitRenewals waits until each server has renewed its identity Lease this many times more.
func awaitRenewals(t *testing.T, c *cluster.Cluster, more int64, servers []*cluster.Server) {
	t.Helper()
	for _, s := range servers {
		id, _ := s.ID()
		began := int64(0)
		cluster.Eventually(t, 60*time.Second, s.Name+" renews its Lease", func(ctx context.Context) error {
			found, err := c.Raw.Get(ctx, storedsets.DefaultPrefix+"/leases/"+storageversion.IdentityNamespace+"/"+string(id))
			if err != nil {
				return err
			}
			if len(found.Kvs) == 0 {
				return fmt.Errorf("there is no Lease of %s", id)
			}
			version := found.Kvs[0].Version
			if began == 0 {
				began = version
			}
			if n := version - began; n < more {
				return fmt.Errorf("%d times", n)
			}
			return nil
		})
	}
}

// wantResumed fails unless the server has continued the migration from where it was, which must be
// at least as far as was saved.
func wantResumed(t *testing.T, s *cluster.Server, saved *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	id, _ := s.ID()
	told := regexp.MustCompile(`event="Resumed" migration="` + regexp.QuoteMeta(saved.Name) + `" .*note="` + regexp.QuoteMeta(string(id)) + ` rewrites [^"]*, from ([^"]*)"`)
	var from string
	cluster.Eventually(t, time.Minute, s.Name+" tells that it goes on", func(context.Context) error {
		match := told.FindStringSubmatch(s.Output())
		if match == nil {
			return errors.New("it does not")
		}
		from = match[1]
		return nil
	})
	t.Logf("%s goes on from %s", s.Name, from)
	done := int64(-1)
	if _, err := fmt.Sscanf(from, "where it was: %d of", &done); err != nil || done <= 0 || done < saved.Status.Progress.Done {
		t.Errorf("%s went on from %s, though %d objects were done", s.Name, from, saved.Status.Progress.Done)
	}
}

// waitMigration waits until the migration of widgets to v2 is as is says, and returns the migration.
func waitMigration(t *testing.T, s *cluster.Server, what string, is func(*migrationv1alpha1.StorageVersionMigration) bool) (found *migrationv1alpha1.StorageVersionMigration) {
	t.Helper()
	cluster.Eventually(t, 90*time.Second, "the migration "+what, func(ctx context.Context) error {
		all, err := migrationsOf(ctx, s, widgets)
		if err != nil {
			return err
		}
		seen := errors.New("there is none")
		for _, m := range all {
			if migrationv1alpha1.TargetOf(m).Encoding != widgetEncoding("v2") {
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
	editMigration(t, s, m, func(spec *migrationv1alpha1.StorageVersionMigrationSpec) { spec.Paused = paused })
}

func editMigration(t *testing.T, s *cluster.Server, m *migrationv1alpha1.StorageVersionMigration, edit func(*migrationv1alpha1.StorageVersionMigrationSpec)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var fresh migrationv1alpha1.StorageVersionMigration
		if err := s.Objects().Get(t.Context(), client.ObjectKeyFromObject(m), &fresh); err != nil {
			return err
		}
		edit(&fresh.Spec)
		return s.Objects().Update(t.Context(), &fresh)
	})
	must(t, err)
}

const (
	// fewLeft is how many objects are left when the test begins to let a migrating server run for
	// one moment after the other, until the last object is written.
	fewLeft = 20
	// moment is how long the server runs each time: much less than it takes from the last write to
	// the end of the migration.
	moment = 2 * time.Millisecond
)

// testKilledBeforeProof: the migrating server is killed between its last write and the end of the
// migration, when all objects are in the new encoding and no server has proved that yet: while it counts
// the values that it has encrypted again, or reads the reports that permitted the migration once more.
// Nothing says then that the migration has succeeded. Another server proves it, and ends the migration.
func testKilledBeforeProof(t *testing.T) {
	e := newEncryptedWith(t, "--migration-max-objects-per-second=300", []string{secrets.Resource}, three, keyA, keyB, identity)
	createWidgets(t, "v1", e.servers...)
	writes := e.c.Load(load.Config{Resources: []load.Resource{loadedSecrets(), widgetsV1}, Pause: 100 * time.Millisecond}, e.servers...)
	sealed := func(key string) agree.Encoding { return agree.Encoding("v1").Sealed(sealOf(t, key)) }
	between, filled := map[schema.GroupResource]int{}, map[schema.GroupResource]int{}
	rounds := []struct {
		resource load.Resource
		objects  int
		to       agree.Encoding
		change   func()
	}{
		{widgetsV1, 100, widgetEncoding("v2"), func() { storeWidgetsIn(t, e.servers[0], "v2") }},
		{loadedSecrets(), 100, sealed(keyB), func() { e.turn(keyB, keyA, identity) }},
		{widgetsV1, 500, widgetEncoding("v1"), func() { storeWidgetsIn(t, e.servers[1], "v1") }},
		{loadedSecrets(), 700, sealed(keyA), func() { e.turn(keyA, keyB, identity) }},
	}
	// A busy machine may not stop the server in time: then all is done once more.
	for turn := 0; turn == 0 || turn < 3 && (between[widgets] == 0 || between[secrets] == 0); turn++ {
		for _, round := range rounds {
			gr := round.resource.GroupResource()
			must(t, load.Fill(t.Context(), load.Endpoint{Name: "one", Client: e.servers[0].Dynamic()}, round.resource, fmt.Sprintf("fill-%d-%d", turn, round.objects), round.objects))
			filled[gr] += round.objects
			e.c.WaitSettled()
			round.change()
			m := &migrating{t: t, c: e.c, servers: e.servers, resource: round.resource}
			claimer := m.claimer()
			inTime := m.stopAfterTheLast(claimer, round.to)
			if inTime {
				between[gr]++
			}
			if standing := e.c.Standing(gr); inTime && slices.Equal(standing.Stored(), []string{string(round.to)}) {
				t.Errorf("the stored set is %v while the migration is not at its end", standing.Stored())
			}
			claimer.Kill()
			settled := e.c.WaitSettled()
			t.Logf("%s killed with all %d of %s in %s, before the end: %v; settled %v later", claimer.Name, filled[gr], gr, round.to, inTime, settled.Round(time.Millisecond))
			wantEncoding(t, e.c, gr, round.to, filled[gr])
			claimer.Start()
			claimer.WaitReady()
		}
	}
	for _, gr := range []schema.GroupResource{widgets, secrets} {
		if between[gr] == 0 {
			t.Errorf("no server was killed between the last write of %s and the end: nothing was tested", gr)
		}
	}
	e.wantRemovable(keyB)
	e.c.CheckLoad(writes.Stop(), disturbed)
	e.wantReadable(filled[secrets])
	if counted, found := censusOf(t, e.c, widgets), e.c.Encodings(widgets); !maps.Equal(counted, found) {
		t.Errorf("the census counts %v of widgets, want %v", counted, found)
	}
	if use, found := e.keys(keyA), e.c.Encodings(secrets); int(use.Values) != found[sealed(keyA)] {
		t.Errorf("the keys command counts %+v, and secrets are stored as %v", use, found)
	}
	e.c.Check()
}

// turn makes every server load an encryption configuration with these keys.
func (e *encrypted) turn(keys ...string) {
	e.t.Helper()
	for _, s := range e.servers {
		e.load(s, keys...)
	}
}

// stopAfterTheLast pauses the migrating server when all objects are in the encoding, and says
// whether that was before the end of the migration.
func (m *migrating) stopAfterTheLast(claimer *cluster.Server, to agree.Encoding) bool {
	m.t.Helper()
	gr := m.resource.GroupResource()
	left := func(l *audit.Ledger) (n int) {
		for encoding, objects := range l.Encodings(gr) {
			if encoding != to {
				n += objects
			}
		}
		return n
	}
	deadline := time.NewTimer(cluster.SettleTimeout)
	defer deadline.Stop()
	select {
	case <-m.c.Audit.When(func(l *audit.Ledger) bool { return left(l) <= fewLeft }):
	case <-deadline.C:
		m.t.Fatalf("objects of %s are stored as %v", gr, m.c.Encodings(gr))
	}
	claimer.Pause()
	cluster.Eventually(m.t, cluster.SettleTimeout, "the last object is written", func(context.Context) error {
		for range 20 {
			rest := 0
			if m.c.Ledger(func(l *audit.Ledger) { rest = left(l) }); rest == 0 {
				return nil
			}
			claimer.Resume()
			timer := time.NewTimer(moment)
			<-timer.C
			claimer.Pause()
		}
		return errors.New("objects are left")
	})
	return m.live(claimer)
}

// live says whether there is a migration of the resource that has not ended. It does not ask the server but.
func (m *migrating) live(but *cluster.Server) (live bool) {
	m.t.Helper()
	cluster.Eventually(m.t, time.Minute, "migrations are listed", func(ctx context.Context) error {
		i := slices.IndexFunc(m.servers, func(s *cluster.Server) bool { return s != but && !s.Ended() })
		all, err := migrationsOf(ctx, m.servers[i], m.resource.GroupResource())
		live = slices.ContainsFunc(all, func(item *migrationv1alpha1.StorageVersionMigration) bool { return !migrationv1alpha1.Final(item) })
		return err
	})
	return live
}
