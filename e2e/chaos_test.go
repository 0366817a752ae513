package e2e

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

var seed = flag.Uint64("seed", 0, "the seed of the random faults; 0 takes another one each time")

// faults is how many are injected one after the other.
const faults = 16

// Random faults under load: whatever happens in whatever order, when it is over the
// cluster settles (I7), nothing acknowledged is lost, and no put has broken an invariant.
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

// last is how all servers run in the end: with different ones there is no agreement.
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

// disturb injects one fault and takes it back.
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
