package e2e

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// engineObjects is how many objects a migration has in which a test injects faults. It runs at a
// rate at which it takes long enough for a fault in the middle.
const engineObjects = 3000

func atRate(perSecond int) cluster.Options {
	return cluster.Options{Args: fmt.Sprintf("--migration-max-objects-per-second=%d", perSecond)}
}

// widgetsMigrating starts servers on an etcd and a migration of widgets at a rate.
func widgetsMigrating(t *testing.T, c *cluster.Cluster, perSecond int, names ...string) *migrating {
	t.Helper()
	servers := c.Start(atRate(perSecond), names...)
	createWidgets(t, "v1", servers...)
	m := newMigrating(t, c, widgetsV1, engineObjects, servers...)
	storeWidgetsIn(t, servers[0], "v2")
	return m
}

// testMigratorKilled: the server that migrates is killed at ten random points: before it has written
// anything, in the middle of pages, and four times after it has saved where it is. The next server goes
// on from the place that was saved last. At the end the server is killed in the middle of a stream.
func testMigratorKilled(t *testing.T) {
	const kills, objects = 10, engineObjects * 4 / 5
	c := cluster.New(t)
	// A server saves where it is after some seconds, in which it is to migrate no more than a tenth
	// of all objects. Clients change only a fifth of the objects, since otherwise they would soon
	// have written all of them anew.
	servers := c.Start(atRate(70), "one", "two", "three")
	createWidgets(t, "v1", servers...)
	m := newMigratingUnder(t, c, widgetsV1, objects, load.ChurnConfig{Every: 5}, servers...)
	storeWidgetsIn(t, servers[0], "v2")
	var untouched *bystander
	claimer := m.claimer()
	there := func(*migrationv1alpha1.StorageVersionMigration) bool { return true }
	for i := range kills {
		live := waitMigration(t, claimer, "is there", there)
		saves := i%5 == 1 || i%5 == 3
		if saves {
			live = waitSaved(t, claimer, live, claimer)
			m.awaitRewrites(1 + m.random.IntN(1+m.left("v2")/(kills-i+1)/2))
		} else if more := m.random.IntN(120); more%3 > 0 { // else at once
			m.awaitRewrites(more)
		}
		if saves && untouched == nil {
			untouched = m.standBy()
		}
		m.underWay("v2")
		killed := claimer
		killed.Kill()
		t.Logf("killed %s after %d rewrites, with %d left to do and %d saved as done, by itself: %v",
			killed.Name, m.rewrites(), m.left("v2"), saved(live), saves)
		// The new claimer is found before the killed server starts, which uses its old identity for a while.
		claimer = m.claimer()
		if saves {
			wantResumed(t, claimer, live)
		}
		killed.Start()
	}
	waitSaved(t, claimer, waitMigration(t, claimer, "is there", there), claimer)
	m.underWay("v2")
	untouched.gone()
	for _, s := range m.servers {
		s.WaitReady()
	}
	m.c.WaitReporters(restored, m.servers...)
	m.ended("v2")
	migratorKilledMidStream(m.atFullSpeed())
}

// saved is how many objects the migration's status says are done.
func saved(live *migrationv1alpha1.StorageVersionMigration) int64 {
	if live.Status.Progress == nil {
		return 0
	}
	return live.Status.Progress.Done
}

// A bystander is an object in v1 that the test itself has put into etcd, at a key before all others.
// A migration that is resumed behind it does not meet it; one that began anew would write it first.
type bystander struct {
	m        *migrating
	key      string
	revision int64
}

// standBy puts a bystander into etcd. The audit ignores it.
func (m *migrating) standBy() *bystander {
	m.t.Helper()
	b := &bystander{m: m, key: m.prefix() + "bystander"}
	m.c.Audit.With(func(l *audit.Ledger) { l.Ignore(b.key) })
	value := fmt.Sprintf(`{"apiVersion":"%s/v1","kind":"Widget","metadata":{"name":"bystander","namespace":"%s","uid":"%s","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z"},"spec":{"text":"bystander"}}`,
		m.resource.Group, m.resource.Namespace, uuid.NewUUID())
	put, err := m.c.Raw.Put(m.t.Context(), b.key, value)
	must(m.t, err)
	b.revision = put.Header.Revision
	return b
}

// gone deletes the bystander, and fails the test if it was written.
func (b *bystander) gone() {
	b.m.t.Helper()
	deleted, err := b.m.c.Raw.Delete(b.m.t.Context(), b.key, clientv3.WithPrevKV())
	must(b.m.t, err)
	if len(deleted.PrevKvs) != 1 || deleted.PrevKvs[0].ModRevision != b.revision {
		b.m.t.Errorf("what was put behind the migration's back at revision %d is %v: the migration was begun anew", b.revision, deleted.PrevKvs)
	}
}

// pausedAttempts is how often a server is paused until, resumed, it acts on what it believed before.
// What it does first is a matter of chance.
const pausedAttempts = 6

// talkative returns the options of servers that migrate at a rate, and also log attempts that have no effect.
func talkative(perSecond int) cluster.Options {
	o := atRate(perSecond)
	o.Args += " --v=2"
	return o
}

// testMigratorPaused: the server that migrates is paused for longer than its claim lasts, and
// another one takes over. When the first is resumed, both believe that the migration is theirs, and
// the writes that the first tries are refused.
func testMigratorPaused(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(talkative(100), "one", "two", "three")
	createWidgets(t, "v1", servers...)
	m := newMigrating(t, c, widgetsV1, engineObjects, servers...)
	storeWidgetsIn(t, servers[0], "v2")
	acted := false
	for round := 0; round < 3 || !acted; round++ {
		if round == pausedAttempts {
			t.Fatalf("none of %d servers that were paused was seen to go on with the migration that was another one's: nothing was tested", round)
		}
		first := m.claimer()
		m.awaitRewrites(1 + m.random.IntN(100))
		first.Pause()
		t.Logf("paused %s after %d rewrites", first.Name, m.rewrites())
		second := m.claimer(first)
		m.awaitRewrites(50)
		m.underWay("v2")
		before := len(first.Output())
		first.Resume()
		t.Logf("resumed %s while %s migrates, after %d rewrites", first.Name, second.Name, m.rewrites())
		m.awaitRewrites(20)
		first.WaitReady()
		if refused := awaitLetGo(t, first, before); len(refused) > 0 {
			t.Logf("%s was refused: %s", first.Name, strings.Join(refused, "; "))
			acted = true
		}
		m.c.WaitReporters(graceful, m.servers...)
	}
	m.ended("v2")
}

// awaitLetGo waits until a resumed server has given up the migration of widgets that it had claimed.
// It returns the refused writes that the server's log tells of, from the position from on.
func awaitLetGo(t *testing.T, s *cluster.Server, from int) (refused []string) {
	t.Helper()
	var log string
	cluster.Eventually(t, time.Minute, s.Name+" leaves the migration to another server", func(context.Context) error {
		log = s.Output()[from:]
		if !strings.Contains(log, `"Not migrating" logger="migrate" migration="`+widgets.String()) {
			return errors.New("it does not say so")
		}
		return nil
	})
	for line := range strings.Lines(log) {
		switch {
		// Another server has changed the status since it was read.
		case strings.Contains(line, `"Progress was not written"`) && strings.Contains(line, "the migration is not this server's any more"),
			// The claim was changed, too: the server gives it back when it finds that it has no report any more.
			strings.Contains(line, `"Looking at a migration again"`) && strings.Contains(line, ": this server cannot do it") && strings.Contains(line, "the object has been modified"):
			refused = append(refused, strings.TrimSpace(line))
		}
	}
	return refused
}

// testSecondLeader: two servers believe that they are elected to start migrations and judge their
// success, while the CRD's storage version changes to and fro. The server that was elected first is
// paused during a migration and resumed during another one, until it is seen to act on what it
// believes, before it finds out.
func testSecondLeader(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(talkative(300), "one", "two", "three")
	createWidgets(t, "v1", servers...)
	m := newMigrating(t, c, widgetsV1, engineObjects, servers...)
	for attempt := 1; !m.twoLead(); attempt++ {
		if attempt == pausedAttempts {
			t.Fatalf("in %d attempts no server acted while another one had been elected: nothing was tested", attempt)
		}
		storeWidgetsIn(t, servers[0], "v1")
		c.WaitSettled()
	}
	storeWidgetsIn(t, servers[0], "v2")
	m.ended("v2")
}

// twoLead makes a second server the elected one while widgets, which are stored in v1, are migrated.
// It says whether the first one acted after that.
func (m *migrating) twoLead() (acted bool) {
	m.t.Helper()
	first := m.elected()
	others := slices.DeleteFunc(slices.Clone(m.servers), func(s *cluster.Server) bool { return s == first })
	storeWidgetsIn(m.t, others[0], "v2")
	m.awaitRewrites(100)
	m.underWay("v2")
	first.Pause()
	second := m.elected(first)
	m.c.WaitReporters(restored, others...)
	storeWidgetsIn(m.t, others[1], "v1")
	m.c.WaitSettled()
	storeWidgetsIn(m.t, others[0], "v2")
	m.awaitRewrites(100)
	before := len(first.Output())
	first.Resume()
	resumed := time.Now()
	m.underWay("v2") // while the first believes that it is still elected

	// As long as the first believes that, both of them always have something to do.
	to, term := "v1", ""
	storeWidgetsIn(m.t, others[0], to)
	changes := 1
	cluster.Eventually(m.t, time.Minute, first.Name+" finds out that it leads no more", func(context.Context) error {
		var over bool
		if term, _, over = strings.Cut(first.Output()[before:], `"Failed to renew lease" lock="kube-system/concord-controllers"`); over {
			return nil
		}
		if m.c.Standing(widgets).Common() == widgetEncoding(to) {
			to = otherVersion(to)
			storeWidgetsIn(m.t, others[changes%2], to)
			changes++
		}
		return errors.New("it does not")
	})
	acts := triggered(term)
	m.t.Logf("%s believed for %v that it was elected, as %s was, while the definition changed %d times, and did of widgets: %q",
		first.Name, time.Since(resumed).Round(time.Millisecond), second.Name, changes, acts)
	first.WaitReady()
	m.c.WaitReporters(graceful, m.servers...)
	return len(acts) > 0
}

// elected waits until a server, which is none of these, has the Lease of the controllers that start
// migrations, and returns the server.
func (m *migrating) elected(but ...*cluster.Server) (elected *cluster.Server) {
	m.t.Helper()
	asked := m.servers[slices.IndexFunc(m.servers, func(s *cluster.Server) bool { return !slices.Contains(but, s) })]
	cluster.Eventually(m.t, cluster.SettleTimeout, "a server is elected", func(ctx context.Context) error {
		lease, err := asked.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(ctx, "concord-controllers", metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		for _, s := range m.servers {
			if strings.Contains(holder, fmt.Sprintf(":%d_", s.Port)) && !slices.Contains(but, s) {
				elected = s
				return nil
			}
		}
		return fmt.Errorf("it is %q", holder)
	})
	return elected
}

// triggered returns the writes for widgets that the log of an elected controller tells of, also
// those that came too late.
func triggered(log string) (acts []string) {
	told := regexp.MustCompile(`"(Done|Looking again)" logger="trigger" resource="` + regexp.QuoteMeta(widgets.String()) + `" (?:action|reason)="(.*)"`)
	for _, match := range told.FindAllStringSubmatch(log, -1) {
		// To wait is not a write, nor is a read that failed.
		if act := match[2]; !strings.HasPrefix(act, "wait ") && !strings.HasPrefix(act, "look at ") {
			acts = append(acts, match[1]+": "+act)
		}
	}
	return acts
}

// testEtcdLeaderLost: an etcd of three members loses its leader while objects are rewritten: the
// leader hands over, is killed, is paused; then all members are killed at once.
func testEtcdLeaderLost(t *testing.T) {
	m := widgetsMigrating(t, cluster.NewReplicated(t, 3), 150, "one", "two")
	m.loseLeaders()
	m.ended("v2")
	membersLostMidStream(m.atFullSpeed())
}

// loseLeaders lets the leader hand over, kills it, pauses it, and kills all members, each while
// there are objects left to bring to v2.
func (m *migrating) loseLeaders() {
	m.t.Helper()
	c := m.c
	for _, fault := range []struct {
		name string
		run  func()
	}{
		{"the leader handed over", c.MoveLeader},
		{"the leader was killed", func() {
			leader := c.Members[c.Leader()]
			leader.Kill()
			c.Leader()
			m.awaitRewrites(100)
			leader.Start()
			leader.WaitReady()
		}},
		{"the leader was paused", func() {
			leader := c.Members[c.Leader()]
			leader.Pause()
			c.Leader(leader)
			paused := time.Now()
			m.awaitRewrites(50) // which takes until servers notice that this member does not answer
			m.t.Logf("objects were rewritten %v after the leader was paused", time.Since(paused).Round(time.Millisecond))
			leader.Resume()
			leader.WaitReady()
		}},
		{"all members were killed", m.killMembers},
		{"the leader handed over again", c.MoveLeader},
	} {
		m.awaitRewrites(1 + m.random.IntN(200))
		m.underWay("v2")
		fault.run()
		m.t.Logf("%s, after %d rewrites", fault.name, m.rewrites())
	}
	for _, s := range m.servers {
		s.WaitReady()
	}
}

// killMembers kills all members of the etcd and starts them again.
func (m *migrating) killMembers() {
	m.t.Helper()
	for _, e := range m.c.Members {
		e.Kill()
	}
	for _, e := range m.c.Members {
		e.Start()
	}
	for _, e := range m.c.Members {
		e.WaitReady()
	}
}

// testOldServerJoins: a server of an older release joins while a built-in resource is migrated. The
// migration is aborted at the next transaction, since the old server writes the old encoding. It is
// done when the old server has gone, in an orderly way or by SIGKILL.
func testOldServerJoins(t *testing.T) {
	c := cluster.New(t)
	old := cluster.Options{Emulation: "1.36"}
	servers := c.Start(old, "one", "two")
	m := newMigrating(t, c, load.Policies(), engineObjects, servers...)
	for _, s := range servers {
		s.Restart(atRate(40))
	}
	joiner := c.NewServer("joiner", old)
	for i, leave := range []struct {
		name string
		do   func()
	}{{"left", joiner.Terminate}, {"was killed", joiner.Kill}} {
		m.awaitRewrites(20)
		joiner.Start()
		cluster.Eventually(t, cluster.SettleTimeout, "the old server reports policies", func(context.Context) error {
			id, _ := joiner.ID()
			if own, ok := agree.Of(c.Reports(policies), id); !ok || own.Encoding != policyV1beta1 {
				return errors.New("it does not")
			}
			return nil
		})
		rewritten := m.rewrites()
		m.underWay("v1")
		if standing := c.Standing(policies); standing.Common() != "" {
			t.Errorf("with an old server they agree on %s", standing.Common())
		}
		joiner.WaitReady()
		// This takes long enough for hundreds of rewrites, if the migration were not aborted.
		m.awaitChurn(200)
		// The audit would report a rewrite without an agreement.
		if now := m.rewrites(); now > rewritten {
			t.Errorf("%d objects were rewritten while an old server took part", now-rewritten)
		}
		m.underWay("v1")
		awaitAborted(t, servers[0], policies, i+1)
		leave.do()
		t.Logf("the old server %s after %d rewrites", leave.name, m.rewrites())
	}
	m.awaitRewrites(20)
	for _, s := range servers {
		s.Restart(atRate(0)) // no limit for the objects that are left
	}
	m.ended("v1")
}

// awaitAborted waits until Events say of this many migrations of a resource that they were aborted:
// by the server that did them, or by the controller that deleted them before that server noticed.
func awaitAborted(t *testing.T, s *cluster.Server, gr schema.GroupResource, want int) {
	t.Helper()
	cluster.Eventually(t, time.Minute, "the migration is told to be given up", func(ctx context.Context) error {
		events, err := s.Kube().CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		told := sets.New[types.UID]()
		for _, e := range events.Items {
			givenUp := e.Reason == migrationv1alpha1.EventAborted || e.Reason == migrationv1alpha1.ReasonAgreementLost
			if givenUp && strings.HasPrefix(e.InvolvedObject.Name, gr.String()) {
				told.Insert(e.InvolvedObject.UID)
			}
		}
		if told.Len() < want {
			return fmt.Errorf("%d of %d are", told.Len(), want)
		}
		return nil
	})
}

// testCompactedAndTurned: etcd is compacted every second, to its newest revision, while objects are rewritten.
// At full speed it is compacted in the middle of a stream, and the CRD's storage version is changed back.
func testCompactedAndTurned(t *testing.T) {
	m := widgetsMigrating(t, cluster.New(t), 200, "one", "two")
	m.awaitRewrites(1)
	compacted := m.compactEverySecond(t.Errorf)
	m.awaitRewrites(engineObjects / 4)
	m.underWay("v2")
	m.c.WaitSettled()
	if n := compacted(); n < 5 {
		t.Errorf("%d compactions are too few to test anything", n)
	}
	m.ended("v2")
	compactedAndTurnedMidStream(m.atFullSpeed())
}

// compactEverySecond compacts etcd every second until stop is called, which returns how often that
// was done. failed is called for each attempt that fails.
func (m *migrating) compactEverySecond(failed func(format string, args ...any)) (stop func() int) {
	compactions := 0
	stopped := make(chan struct{})
	var compacting sync.WaitGroup
	compacting.Go(func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-stopped:
				return
			}
			if err := compact(m.c); err != nil {
				failed("compact: %v", err)
				continue
			}
			compactions++
		}
	})
	stop = sync.OnceValue(func() int {
		close(stopped)
		compacting.Wait()
		m.t.Logf("%d compactions", compactions)
		return compactions
	})
	m.t.Cleanup(func() { stop() })
	return stop
}

// compact compacts etcd to the revision that is newest at the call, once the audit has seen all changes up to it.
func compact(c *cluster.Cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	newest, err := c.Raw.Get(ctx, "revision")
	if err != nil {
		return err
	}
	if err := c.Audit.CatchUp(ctx); err != nil {
		return err
	}
	_, err = c.Raw.Compact(ctx, newest.Header.Revision)
	return err
}
