package kube_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/ledger"
)

// writeTimeout is how long a write may be tried again. A server that ends answers 503, or not at all.
const writeTimeout = 30 * time.Second

// patience is how long a client waits for an answer.
const patience = 5 * time.Second

// write starts four clients that change the first n widgets. Each write goes to one of the servers and, if it fails,
// to the others. answer is the time that a client waits for an answer.
func write(t *testing.T, answer time.Duration, n int, servers ...*cluster.APIServer) *beside.Traffic {
	clients := make([]beside.Written, 4)
	for i := range n {
		c := &clients[i%len(clients)]
		c.Resource, c.Namespace, c.Names = widgets.WithVersion("v1"), metav1.NamespaceDefault, append(c.Names, fmt.Sprintf("w-%d", i))
	}
	return beside.StartTraffic(t, answer, writeTimeout, clients, servers...)
}

// readable asserts that the server lists all widgets.
func (s *apiserver) readable(n int) {
	s.t.Helper()
	list, err := s.widgets().List(s.t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != n {
		s.t.Errorf("%s lists %d widgets, error %v", s.Name, len(list.Items), err)
	}
	if _, err := s.Kube().CoreV1().Namespaces().List(s.t.Context(), metav1.ListOptions{}); err != nil {
		s.t.Errorf("%s: %v", s.Name, err)
	}
}

// testOwnUpgrade upgrades Concord from its last release, server by server, rolls it back and upgrades it again.
// Servers of both releases agree, and migrate, whichever of them is elected.
func testOwnUpgrade(t *testing.T) {
	c := newControl(t)
	servers := []*apiserver{c.ready(earlier, "a-0"), c.ready(earlier, "b-0")}
	const n = 50
	servers[0].createWidgets(n)
	servers[0].migrated(time.Minute)
	w := write(t, patience, n, servers[0].APIServer, servers[1].APIServer)
	for i, step := range []struct {
		server int
		role   string
	}{{0, ours}, {1, ours}, {0, earlier}, {1, earlier}, {1, ours}, {0, ours}} {
		stays := servers[1-step.server]
		w.Through(stays.APIServer)
		servers[step.server].stop() // the earlier program may leave its address
		s := c.ready(step.role, fmt.Sprintf("%c-%d", 'a'+step.server, i+1))
		servers[step.server] = s
		w.Through(servers[0].APIServer, servers[1].APIServer)
		s.agreed(time.Minute, 2)
		version := fmt.Sprintf("v%d", 2-i%2)
		s.flip(version)
		stays.storedVersions(time.Minute, version)
		if found := c.encodings(); len(found) != 1 || found[agree.Encoding("example.com/"+version)] != n {
			t.Errorf("step %d, %s in place of server %d: in etcd are %v", i+1, step.role, step.server, found)
		}
		stays.readable(n)
		s.readable(n)
	}
	if written := w.Stop(); written < n {
		t.Errorf("%d writes", written)
	}
}

// testPaused: a server is paused in the middle of writes, while the storage version changes and the other server
// migrates. When it is resumed, it writes no old value, although clients still wait for the writes that it had begun.
// Meanwhile, the etcd loses one of its three members.
func testPaused(t *testing.T) {
	c, etcd := newReplicated(t)
	one, two := c.ready(ours, "one"), c.ready(ours, "two")
	one.createWidgets(50)
	one.migrated(time.Minute)
	w := write(t, 5*time.Minute, 50, two.APIServer)
	eventually(t, time.Minute, "writes are under way", func(context.Context) error {
		if n := w.Taken(); n < 100 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	var paused time.Time
	eventually(t, time.Minute, "a server is paused while a write is under way in it", func(context.Context) error {
		two.Pause()
		paused = time.Now()
		w.Through(one.APIServer)
		one.readable(50) // gives the clients time to read answers that were sent before the pause
		if w.UnderWay(two.APIServer, paused, time.Now()) > 0 {
			return nil
		}
		w.Through(two.APIServer)
		two.Resume()
		return errors.New("it had answered all of them")
	})
	one.flip("v2")
	etcd.KillLeader()
	one.storedVersions(2*time.Minute, "v2")
	puts := c.follow("example.com/widgets")
	w.Through(two.APIServer, one.APIServer)
	resumed := time.Now()
	two.Resume()
	one.agreed(time.Minute, 2)
	before := w.Taken()
	eventually(t, time.Minute, "both servers write again", func(context.Context) error {
		if n := w.Taken(); n < before+100 {
			return fmt.Errorf("%d", n-before)
		}
		return nil
	})
	w.Stop()
	if n := w.UnderWay(two.APIServer, paused, resumed); n == 0 {
		t.Error("no write was under way while the server was paused: nothing was tested")
	} else {
		t.Logf("%d writes were under way while the server was paused", n)
	}
	if found := puts(); found["example.com/v2"] < 100 || len(found) != 1 {
		t.Errorf("written since are %v", found)
	}
	if found := c.encodings(); len(found) != 1 {
		t.Errorf("in etcd are %v", found)
	}
}

// follow records the encodings of all puts of a resource, until the function that it returns is called.
func (c *control) follow(resource string) func() map[agree.Encoding]int {
	c.t.Helper()
	stop, err := ledger.Record(c.t.Context(), c.Raw, registry+resource+"/")
	must(c.t, err)
	return func() map[agree.Encoding]int {
		events, err := stop(c.t.Context())
		must(c.t, err)
		found := map[agree.Encoding]int{}
		for _, e := range events {
			encoding, _, _ := migratestore.Envelope(e.Value)
			found[encoding]++
		}
		return found
	}
}

// newReplicated starts an etcd with three members, over TLS.
func newReplicated(t *testing.T) (*control, *cluster.ReplicatedEtcd) {
	t.Helper()
	c := newFiles(t)
	etcd := cluster.StartReplicatedEtcd(t, c.Dir)
	c.etcd, c.Raw = etcd.Flags, etcd.Raw
	c.prepare()
	return c, etcd
}
