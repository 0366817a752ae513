package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// restored is how long tests wait for an agreement after SIGKILL. With Leases of 4 s it takes
// some 6 s, and as much again each time that a busy machine keeps the collector from looking.
const restored = cluster.LeaseDuration + 30*time.Second

// everything returns the resources that the tests write: one whose encoding changes by an
// upgrade, one whose encoding changes by its CRD, and one whose encoding never changes.
func everything() []load.Resource {
	return []load.Resource{load.Policies(), widgetsV1, load.ConfigMaps("default")}
}

// testKill: a killed server is buried by the others, also if it was the one elected to bury.
// The others continue what it was doing, and it can come back.
func testKill(t *testing.T) {
	c := cluster.New(t)
	leader := c.Start(cluster.Options{}, "one")[0]
	waitLeader(t, leader)
	others := c.Start(cluster.Options{}, "two", "three")
	createWidgets(t, "v1", leader, others[0], others[1])
	c.WaitReporters(graceful, leader, others[0], others[1])
	writes := c.Load(load.Config{Resources: everything()}, leader, others[0], others[1])

	others[0].Kill()
	took := c.WaitReporters(restored, leader, others[1])
	t.Logf("agreement was restored %v after SIGKILL, with Leases of %v", took.Round(time.Millisecond), cluster.LeaseDuration)
	soonest := took
	others[0].Start()
	others[0].WaitReady()
	c.WaitReporters(graceful, leader, others[0], others[1])

	leader.Kill()
	took = c.WaitReporters(restored, others...)
	t.Logf("agreement was restored %v after SIGKILL of the elected server", took.Round(time.Millisecond))
	if soonest = min(soonest, took); soonest > 3*cluster.LeaseDuration {
		t.Errorf("agreement was never restored before %v, with Leases of %v", soonest, cluster.LeaseDuration)
	}
	storeWidgetsIn(t, others[0], "v2")
	c.WaitSettled()
	c.CheckLoad(writes.Stop(), load.BrokenTo("one", "two"))
	wantEncoding(t, c, widgets, widgetEncoding("v2"), 1)
	c.Check()
}

// waitLeader waits until the server runs the elected controllers.
func waitLeader(t *testing.T, s *cluster.Server) {
	t.Helper()
	cluster.Eventually(t, time.Minute, s.Name+" is elected", func(context.Context) error {
		if !strings.Contains(s.Output(), `"Successfully acquired lease" lock="kube-system/concord-controllers"`) {
			return errors.New("it is not")
		}
		return nil
	})
}

// testZombie: a server is paused in the middle of writes, for longer than its Lease, while the
// others change an encoding and migrate. When it is resumed, the writes that it was about to make
// must not reach etcd: not in the old encoding, and not at all until it has registered again.
func testZombie(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	zombie, others := servers[2], servers[:2]
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	// Clients wait for the paused server, however long that takes.
	writes := c.Load(load.Config{Resources: everything(), Workers: 6, Pause: time.Millisecond, Timeout: 5 * time.Minute}, servers...)
	var resumed []time.Time
	for _, to := range []string{"v2", "v1", "v2"} {
		before := writes.Acked(zombie.Name)
		cluster.Eventually(t, time.Minute, "the server to be paused takes writes", func(context.Context) error {
			if writes.Acked(zombie.Name) < before+50 {
				return fmt.Errorf("%d so far", writes.Acked(zombie.Name)-before)
			}
			return nil
		})
		zombie.Pause()
		c.WaitReporters(restored, others...)
		buried := c.Revision()
		storeWidgetsIn(t, others[0], to)
		// The pause does not last until all is migrated: after a minute the paused server
		// itself would give up the writes.
		cluster.Eventually(t, cluster.SettleTimeout, "the others agree on "+to, func(context.Context) error {
			if common := c.Standing(widgets).Common(); common != widgetEncoding(to) {
				return fmt.Errorf("the agreement is %q", common)
			}
			return nil
		})
		resumed = append(resumed, time.Now())
		zombie.Resume()
		zombie.WaitReady()
		c.WaitReporters(graceful, servers...)
		back := c.Revision()
		c.WaitSettled()
		wantEncoding(t, c, widgets, widgetEncoding(to), stored)
		t.Logf("buried before revision %d, back before %d", buried, back)
	}
	if ids := zombie.IDs(); len(ids) != 4 || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 4 {
		t.Errorf("the paused server registered as %v, want four different IDs", ids)
	}
	report := writes.Stop()
	for _, at := range resumed {
		if n := report.Across(zombie.Name, at); n == 0 {
			t.Error("no write was under way when the paused server went on: nothing was tested")
		} else {
			t.Logf("%d writes were under way when the paused server went on", n)
		}
	}
	c.CheckLoad(report, load.BrokenTo(zombie.Name))
	c.Check()
}

// testEtcdOutage: etcd is killed, or paused, for longer than the Leases. The servers become
// unready and refuse writes. When etcd is back they go on, and no server was buried because of
// renewals that could not be made.
func testEtcdOutage(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	c.WaitReporters(graceful, servers...)
	before := c.IDs()
	writes := c.Load(load.Config{Resources: everything(), Pause: 50 * time.Millisecond}, servers...)
	for _, fault := range []struct {
		name       string
		begin, end func()
		lasts      time.Duration
	}{
		{"killed", c.Etcd.Kill, func() { c.Etcd.Start(); c.Etcd.WaitReady() }, 30 * time.Second},
		{"paused", c.Etcd.Pause, c.Etcd.Resume, 3 * cluster.LeaseDuration},
	} {
		cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
		fault.begin()
		began := time.Now()
		for _, s := range servers {
			s.WaitUnready(time.Minute)
		}
		unready := time.Since(began)
		outlast(t, began, fault.lasts, servers)
		fault.end()
		back := time.Now()
		for _, s := range servers {
			s.WaitReady()
		}
		t.Logf("etcd %s: unready after %v, ready again %v after its return", fault.name, unready.Round(time.Millisecond), time.Since(back).Round(time.Millisecond))
		cluster.Eventually(t, 60*time.Second, "every server takes writes again", acked(writes, servers))
		c.WaitReporters(graceful, servers...)
		c.WaitSettled()
	}
	for name, ids := range c.IDs() {
		if !slices.Equal(ids, before[name]) {
			t.Errorf("%s had to register again: it was %v and is %v", name, before[name], ids)
		}
	}
	c.CheckLoad(writes.Stop(), disturbed)
	c.Check()
}

// acked returns a check that each of the servers has acknowledged further writes.
func acked(writes *load.Load, servers []*cluster.Server) func(context.Context) error {
	before := map[string]int{}
	for _, s := range servers {
		before[s.Name] = writes.Acked(s.Name)
	}
	return func(context.Context) error {
		for _, s := range servers {
			if writes.Acked(s.Name) < before[s.Name]+5 {
				return fmt.Errorf("%s has taken %d", s.Name, writes.Acked(s.Name)-before[s.Name])
			}
		}
		return nil
	}
}

// outlast waits until an outage has lasted for the duration. In that time no server may say that it is ready.
func outlast(t *testing.T, began time.Time, duration time.Duration, servers []*cluster.Server) {
	t.Helper()
	cluster.Eventually(t, duration+time.Minute, "the outage lasts", func(ctx context.Context) error {
		for _, s := range servers {
			if s.Ready(ctx) == nil {
				t.Errorf("%s says that it is ready while etcd does not answer", s.Name)
			}
		}
		if rest := duration - time.Since(began); rest > 0 {
			return fmt.Errorf("%v to go", rest)
		}
		return nil
	})
}

// testKillAll: all servers, one of them with the etcd in it, are killed in the middle of a
// migration. When they are started again, the migration is completed.
func testKillAll(t *testing.T) {
	const objects = 3000
	c := cluster.NewEmbedded(t)
	first := c.Start(cluster.Options{}, "one")[0]
	servers := append([]*cluster.Server{first}, c.Start(cluster.Options{}, "two", "three")...)
	createWidgets(t, "v1", servers...)
	fill(t, servers[1], widgetsV1, objects)
	c.WaitSettled()
	storeWidgetsIn(t, servers[1], "v2")
	var rewritten int
	cluster.Eventually(t, time.Minute, "the migration begins", func(context.Context) error {
		if c.Audit.With(func(l *audit.Ledger) { rewritten = l.Rewrites() }); rewritten == 0 {
			return errors.New("nothing is rewritten")
		}
		return nil
	})
	for _, s := range servers {
		s.Kill()
	}
	t.Logf("killed after %d of %d objects were rewritten", rewritten, objects)
	for _, s := range servers {
		s.Start()
	}
	for _, s := range servers {
		s.WaitReady()
	}
	c.WaitReporters(restored, servers...)
	t.Logf("settled %v after the restart", c.WaitSettled().Round(time.Millisecond))
	wantEncoding(t, c, widgets, widgetEncoding("v2"), objects)
	c.Check()
}

var seed = flag.Uint64("seed", 0, "the seed of the random faults; 0 takes another one each time")

// faults is how many faults are injected, one after the other.
const faults = 16

// testRandomFaults: random faults under load. Whatever happens in whatever order, when it is over
// the cluster settles (I7), nothing acknowledged is lost, and no put has broken an invariant.
func testRandomFaults(t *testing.T) {
	start := *seed
	if start == 0 {
		start = rand.Uint64()
	}
	t.Logf("again: go test ./e2e -slow -run TestSlow/RandomFaults -seed %d", start)
	c := cluster.New(t)
	d := &disturber{
		t: t, cluster: c, storage: "v1",
		random:  rand.New(rand.NewPCG(start, 0)),
		servers: c.Start(cluster.Options{Emulation: "1.36"}, "one", "two", "three"),
	}
	createWidgets(t, d.storage, d.servers...)
	fill(t, d.servers[0], widgetsV1, stored)
	d.writes = c.Load(load.Config{Resources: everything(), Pause: 30 * time.Millisecond, Timeout: 10 * time.Second}, d.servers...)
	for range faults {
		d.disturb()
	}
	for _, s := range d.servers {
		if s.WaitReady(); s.Options() != last {
			s.Restart(last)
		}
	}
	c.WaitReporters(restored, d.servers...)
	t.Logf("settled %v after the last fault", c.WaitSettled().Round(time.Millisecond))
	report := d.writes.Stop()
	wantEncoding(t, c, widgets, widgetEncoding(d.storage), stored)
	c.CheckLoad(report, disturbed)
	c.Check()
}

// last are the options with which all servers run at the end; servers with different ones would not agree.
var last = cluster.Options{Emulation: "1.37"}

// disturbed excuses the failures that a client sees when servers and etcds come and go. An
// etcd that falls silent in the middle of a write leaves its outcome unknown.
func disturbed(f load.Failure) bool { return f.Broken() || f.Unknown() }

type disturber struct {
	t       *testing.T
	cluster *cluster.Cluster
	servers []*cluster.Server
	writes  *load.Load
	random  *rand.Rand
	storage string
}

// disturb injects one fault and repairs it.
func (d *disturber) disturb() {
	d.t.Helper()
	i := d.random.IntN(len(d.servers))
	s, others := d.servers[i], slices.Delete(slices.Clone(d.servers), i, i+1)
	s.WaitReady()
	switch d.random.IntN(7) {
	case 0:
		d.t.Logf("kill %s", s.Name)
		s.Kill()
		d.progress(others)
		s.Start()
	case 1:
		d.t.Logf("pause %s", s.Name)
		s.Pause()
		d.progress(others)
		if d.random.IntN(2) == 0 {
			d.flip(others[0])
			d.progress(others)
		}
		s.Resume()
	case 2:
		to := fmt.Sprintf("1.%d", 36+d.random.IntN(2))
		d.t.Logf("restart %s as %s", s.Name, to)
		s.Restart(cluster.Options{Emulation: to})
	case 3:
		d.flip(s)
	case 4:
		d.flip(s)
		d.t.Logf("kill %s", s.Name)
		s.Kill()
		s.Start()
	case 5:
		d.t.Log("kill etcd")
		d.cluster.Etcd.Kill()
		s.WaitUnready(time.Minute)
		d.cluster.Etcd.Start()
		d.cluster.Etcd.WaitReady()
	case 6:
		d.t.Logf("kill all but %s", s.Name)
		for _, other := range others {
			other.Kill()
		}
		d.progress([]*cluster.Server{s})
		for _, other := range others {
			other.Start()
		}
	}
	d.progress([]*cluster.Server{s})
}

// flip changes the storage version of widgets through a server.
func (d *disturber) flip(s *cluster.Server) {
	d.t.Helper()
	d.storage = otherVersion(d.storage)
	d.t.Logf("store widgets in %s", d.storage)
	s.WaitReady()
	storeWidgetsIn(d.t, s, d.storage)
}

// progress waits until the servers have acknowledged a random number of writes, which
// takes anything from no time to several Lease durations.
func (d *disturber) progress(servers []*cluster.Server) {
	d.t.Helper()
	count := func() (n int) {
		for _, s := range servers {
			n += d.writes.Acked(s.Name)
		}
		return n
	}
	want := count() + 1 + d.random.IntN(400*len(servers))
	cluster.Eventually(d.t, 90*time.Second, fmt.Sprintf("there are %d more writes", want-count()), func(context.Context) error {
		if have := count(); have < want {
			return fmt.Errorf("%d to go", want-have)
		}
		return nil
	})
}
