package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/stored"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
)

// SettleTimeout is how long a cluster may take to settle once nothing disturbs it.
const SettleTimeout = 90 * time.Second

// Cluster is one etcd with its servers, watched by an audit from the first revision on.
type Cluster struct {
	*testbed.Cluster
	T     testing.TB
	Audit *audit.Watch
	// Etcd is the process of etcd, nil if a server embeds it. Members are the processes of a replicated etcd.
	Etcd    *Etcd
	Members []*Etcd

	embedded bool
	servers  []*Server
}

func newCluster(t testing.TB) *Cluster { return &Cluster{Cluster: testbed.In(t.TempDir()), T: t} }

// New starts an etcd and its audit. Check tells what the audit has found.
func New(t testing.TB) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.Etcd = StartEtcd(t, c.Path("etcd-data"), c.Dir)
	c.connect(c.Etcd.Endpoint)
	return c
}

// NewEmbedded returns a cluster whose etcd will be the one in the server "one".
func NewEmbedded(t testing.TB) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.embedded = true
	c.connect(Endpoint(t, c.Path(embedding)))
	return c
}

// NewExternal returns a cluster on an etcd that the caller runs. It has no audit.
func NewExternal(t testing.TB, endpoint string) *Cluster {
	t.Helper()
	c := newCluster(t)
	c.Endpoint = endpoint
	return c
}

// embedding is the name of the server that has the etcd in it, in a cluster of NewEmbedded.
const embedding = "one"

// connect connects to the etcd, and begins the audit.
func (c *Cluster) connect(endpoints ...string) {
	c.T.Helper()
	if err := c.Connect(endpoints...); err != nil {
		c.T.Fatal(err)
	}
	closeLater(c.T, c.Raw)
	c.Audit = audit.Start(c.Raw, stored.DefaultPrefix, storageversion.Unfenced().UnsortedList()...)
	c.T.Cleanup(c.Audit.Stop)
}

// Ledger calls f with the audit's record, once that has all that was in etcd at the time of the call.
func (c *Cluster) Ledger(f func(*audit.Ledger)) {
	c.T.Helper()
	Eventually(c.T, 30*time.Second, "the audit catches up", c.Audit.CatchUp)
	c.Audit.With(f)
}

// Encodings returns how many objects of the resource etcd holds in each encoding.
func (c *Cluster) Encodings(gr schema.GroupResource) (found map[agree.Encoding]int) {
	c.T.Helper()
	c.Ledger(func(l *audit.Ledger) { found = l.Encodings(gr) })
	return found
}

// Reports returns the reports of the resource that etcd holds.
func (c *Cluster) Reports(gr schema.GroupResource) (found []agree.Report) {
	c.T.Helper()
	c.Ledger(func(l *audit.Ledger) { found = slices.Clone(l.Of(gr).Reports()) })
	return found
}

// Standing returns what etcd holds about the resource.
func (c *Cluster) Standing(gr schema.GroupResource) (found *ledger.Resource) {
	c.T.Helper()
	c.Ledger(func(l *audit.Ledger) { found = l.Standing(gr) })
	return found
}

// Revision returns etcd's revision.
func (c *Cluster) Revision() (revision int64) {
	c.T.Helper()
	c.Ledger(func(l *audit.Ledger) { revision = l.Revision })
	return revision
}

// Start starts servers with the same options, all at once, and waits until they are ready.
func (c *Cluster) Start(o Options, names ...string) []*Server {
	c.T.Helper()
	var started []*Server
	for _, name := range names {
		s := c.NewServer(name, o)
		s.Start()
		started = append(started, s)
	}
	for _, s := range started {
		s.WaitReady()
	}
	return started
}

// IDs returns the IDs under which each server has registered.
func (c *Cluster) IDs() map[string][]agree.ServerID {
	ids := map[string][]agree.ServerID{}
	for _, s := range c.servers {
		ids[s.Name] = s.IDs()
	}
	return ids
}

// WaitSettled waits for I7: every resource, except those in but, has an agreement and a stored set of it alone.
func (c *Cluster) WaitSettled(but ...schema.GroupResource) time.Duration {
	c.T.Helper()
	return Eventually(c.T, SettleTimeout, "the cluster settles", func(ctx context.Context) error {
		if err := c.Audit.CatchUp(ctx); err != nil {
			return err
		}
		var missing []string
		c.Audit.With(func(l *audit.Ledger) { missing = l.Unsettled(but...) })
		if len(missing) > 0 {
			return errors.New(strings.Join(missing, "; "))
		}
		return nil
	})
}

// WaitReporters waits until exactly these servers have reports, each under the ID that it has registered last.
func (c *Cluster) WaitReporters(timeout time.Duration, servers ...*Server) time.Duration {
	c.T.Helper()
	return Eventually(c.T, timeout, "exactly the running servers report", func(ctx context.Context) error {
		if err := c.Audit.CatchUp(ctx); err != nil {
			return err
		}
		var want, got []agree.ServerID
		for _, s := range servers {
			id, ok := s.ID()
			if !ok {
				return fmt.Errorf("%s is not registered", s.Name)
			}
			want = append(want, id)
		}
		c.Audit.With(func(l *audit.Ledger) { got = l.Reported().UnsortedList() })
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(want, got) {
			return fmt.Errorf("reports are by %v, want %v", got, want)
		}
		return nil
	})
}

// Load writes to the resources through all the servers until the load is stopped.
func (c *Cluster) Load(config load.Config, servers ...*Server) *load.Load {
	c.T.Helper()
	for _, s := range servers {
		config.Endpoints = append(config.Endpoints, load.Endpoint{Name: s.Name, Client: s.Dynamic()})
	}
	l := load.Start(config)
	c.T.Cleanup(sync.OnceFunc(func() { l.Stop() }))
	return l
}

// Check fails the test for every violation of the invariants so far, and for every write that reached etcd
// through a server which had no right to it.
func (c *Cluster) Check() {
	c.T.Helper()
	ids := c.IDs()
	c.Ledger(func(l *audit.Ledger) {
		for _, violation := range append(l.Violations(), l.Strangers(ids)...) {
			c.T.Error(violation)
		}
	})
}

// CheckLoad fails the test for every acknowledged write that is not in etcd at the
// revision acknowledged, and for every error that is neither "try again" nor excused.
func (c *Cluster) CheckLoad(report load.Report, excused func(load.Failure) bool) {
	c.T.Helper()
	c.T.Logf("load: %d writes acknowledged, %d conflicts, %d errors, longest write %v",
		len(report.Acks), report.Conflicts, len(report.Failures), report.LongestWrite.Round(time.Millisecond))
	for _, f := range report.Unexpected(excused) {
		c.T.Errorf("a write failed: %v", f)
	}
	lost := 0
	c.Ledger(func(l *audit.Ledger) {
		for _, ack := range report.Acks {
			w, ok := l.Write(ack.Write)
			if ok && fmt.Sprint(w.Revision) == ack.ResourceVersion {
				continue
			}
			if lost++; lost <= 10 {
				c.T.Errorf("write %s was acknowledged at revision %s but etcd has %+v", ack.Write, ack.ResourceVersion, w)
			}
		}
	})
	if lost > 10 {
		c.T.Errorf("%d acknowledged writes are lost", lost)
	}
	if len(report.Acks) == 0 {
		c.T.Error("the load wrote nothing")
	}
}
