package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	// fewLeft is how many objects are left when a migrating server is led to its end by the
	// hand, one moment after the other.
	fewLeft = 20
	// moment is for how long it runs then: much less than it takes from the last write to the
	// end of the migration.
	moment = 2 * time.Millisecond
)

// The migrating server is killed between its last write and the end of the migration, when
// all objects are in the new encoding and nobody has proved it: while it counts the values
// that it has encrypted anew, or reads once more what it was permitted by. Nothing is claimed
// then. Another server proves it, and ends the migration.
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
	// A machine that is busy may not stop the server in time: then all is done once more.
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

// turn has every server load a configuration.
func (e *encrypted) turn(keys ...string) {
	e.t.Helper()
	for _, s := range e.servers {
		e.load(s, keys...)
	}
}

// stopAfterTheLast leaves the migrating server paused when all objects are in the encoding,
// and says whether that was before the end of the migration.
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

// live says whether the resource's migration has not ended.
func (m *migrating) live(but *cluster.Server) (live bool) {
	m.t.Helper()
	cluster.Eventually(m.t, time.Minute, "migrations are listed", func(ctx context.Context) error {
		i := slices.IndexFunc(m.servers, func(s *cluster.Server) bool { return s != but && !s.Ended() })
		var list migrationv1alpha1.StorageVersionMigrationList
		if err := m.servers[i].Objects().List(ctx, &list); err != nil {
			return err
		}
		live = slices.ContainsFunc(list.Items, func(item migrationv1alpha1.StorageVersionMigration) bool {
			return item.Spec.Resource.Resource == m.resource.Resource && !migrationv1alpha1.Final(&item)
		})
		return nil
	})
	return live
}
