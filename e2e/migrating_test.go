package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// migrating is a cluster that migrates a resource while clients update, delete and create
// its objects without end, and something goes wrong.
type migrating struct {
	t        *testing.T
	c        *cluster.Cluster
	servers  []*cluster.Server
	resource load.Resource
	churn    *load.Churn
	random   *rand.Rand
	// version is the one that parcels are stored in; others set it nowhere.
	version string
}

// seeded returns the test's random numbers and says how to have the same again.
func seeded(t *testing.T) (*rand.Rand, uint64) {
	t.Helper()
	start := *seed
	if start == 0 {
		start = rand.Uint64()
	}
	t.Logf("again: go test ./e2e -run %s -args -slow -seed %d", t.Name(), start)
	return rand.New(rand.NewPCG(start, 0)), start
}

// newMigrating fills objects of the resource in and lets clients loose on them. The
// servers run, and widgets are known where they are the resource.
func newMigrating(t *testing.T, c *cluster.Cluster, resource load.Resource, objects int, servers ...*cluster.Server) *migrating {
	t.Helper()
	return newMigratingUnder(t, c, resource, objects, load.ChurnConfig{}, servers...)
}

// newMigratingUnder does so with clients that change no more than they are told to.
func newMigratingUnder(t *testing.T, c *cluster.Cluster, resource load.Resource, objects int, clients load.ChurnConfig, servers ...*cluster.Server) *migrating {
	t.Helper()
	m := &migrating{t: t, c: c, servers: servers, resource: resource}
	m.random, clients.Seed = seeded(t)
	fill(t, servers[0], resource, objects)
	c.WaitSettled()
	m.loose(clients)
	return m
}

// loose lets clients loose on the objects.
func (m *migrating) loose(config load.ChurnConfig) {
	m.t.Helper()
	config.Resource = m.resource
	for _, s := range m.servers {
		config.Endpoints = append(config.Endpoints, load.Endpoint{Name: s.Name, Client: s.Dynamic()})
	}
	// The watch cache of many objects takes its time, in which they cannot be listed.
	cluster.Eventually(m.t, cluster.SettleTimeout, "clients list the objects", func(ctx context.Context) (err error) {
		m.churn, err = load.StartChurn(ctx, config)
		return err
	})
	m.t.Cleanup(func() { m.churn.Stop() })
}

// rewrites counts the rewrites that have reached etcd.
func (m *migrating) rewrites() (n int) {
	m.c.Audit.With(func(l *audit.Ledger) { n = l.Rewrites() })
	return n
}

// awaitRewrites waits until there are so many more rewrites.
func (m *migrating) awaitRewrites(more int) {
	m.t.Helper()
	want := m.rewrites() + more
	cluster.Eventually(m.t, cluster.SettleTimeout, fmt.Sprintf("%d more objects are rewritten", more), func(context.Context) error {
		if have := m.rewrites(); have < want {
			return fmt.Errorf("%d to go", want-have)
		}
		return nil
	})
}

// awaitChurn waits until clients have made so many more writes.
func (m *migrating) awaitChurn(more int) {
	m.t.Helper()
	want := m.churn.Result().Writes() + more
	cluster.Eventually(m.t, cluster.SettleTimeout, fmt.Sprintf("clients make %d more writes", more), func(context.Context) error {
		if have := m.churn.Result().Writes(); have < want {
			return fmt.Errorf("%d to go", want-have)
		}
		return nil
	})
}

// underWay fails the test unless there is something left to migrate to the version.
func (m *migrating) underWay(to string) {
	m.t.Helper()
	gr := m.resource.GroupResource()
	found := m.c.Encodings(gr)
	if len(found) < 2 {
		m.t.Errorf("objects of %s are stored as %v: the migration to %s is not under way, and nothing was tested", gr, found, to)
	}
}

// claimer waits until one of the running servers has claimed the live migration of the
// resource, and returns it.
func (m *migrating) claimer(but ...*cluster.Server) (claimer *cluster.Server) {
	m.t.Helper()
	cluster.Eventually(m.t, cluster.SettleTimeout, "a server claims the migration", func(ctx context.Context) (err error) {
		claimer, err = m.findClaimer(ctx, but...)
		return err
	})
	return claimer
}

// findClaimer returns the running server that has claimed the live migration of the resource.
func (m *migrating) findClaimer(ctx context.Context, but ...*cluster.Server) (*cluster.Server, error) {
	asked := errors.New("no server runs that can be asked")
	for _, s := range m.servers {
		if s.Ended() || slices.Contains(but, s) {
			continue
		}
		var list migrationv1alpha1.StorageVersionMigrationList
		if asked = s.Objects().List(ctx, &list); asked != nil {
			continue
		}
		for i := range list.Items {
			live := &list.Items[i]
			if live.Spec.Resource.Resource != m.resource.Resource || migrationv1alpha1.Final(live) {
				continue
			}
			by := live.Annotations[migrationv1alpha1.ClaimedByAnnotation]
			for _, candidate := range m.servers {
				if id, ok := candidate.ID(); ok && string(id) == by && !candidate.Ended() && !slices.Contains(but, candidate) {
					return candidate, nil
				}
			}
			return nil, fmt.Errorf("%s is claimed by %q", live.Name, by)
		}
		return nil, errors.New("there is no live migration")
	}
	return nil, asked
}

// ended waits until all is over, ends the clients, and judges everything: all objects are
// in the version, and are those, with the content, that the clients were told.
func (m *migrating) ended(to string) {
	m.t.Helper()
	m.t.Logf("settled after %v", m.c.WaitSettled().Round(time.Millisecond))
	result := m.churn.Stop()
	m.t.Logf("clients: %d updates, %d deletions, %d creations, %d attempts made again; %d rewrites",
		result.Updates, result.Deletes, result.Creates, result.Again, m.rewrites())
	if result.Updates == 0 || result.Deletes == 0 || result.Creates == 0 {
		m.t.Error("clients have not updated, deleted and created anything: nothing was tested")
	}
	gr := m.resource.GroupResource()
	encoding := m.encoding(to)
	wantEncoding(m.t, m.c, gr, encoding, len(result.Want))
	standing := m.c.Standing(gr)
	if standing.Common() != encoding || !slices.Equal(standing.Stored(), []string{string(encoding)}) {
		m.t.Errorf("the agreement is %s and the stored set %v, want %s alone", standing.Common(), standing.Stored(), encoding)
	}
	if standing.StoredVersions() != nil && !slices.Equal(standing.StoredVersions(), []string{to}) {
		m.t.Errorf("storedVersions are %v, want %s alone", standing.StoredVersions(), to)
	}
	var stored map[string]string
	m.c.Ledger(func(l *audit.Ledger) { stored = l.Hashes(gr) })
	m.wantContents("etcd", result, stored)
	for _, s := range m.servers {
		if !s.Ended() {
			m.wantContents(s.Name, result, m.read(s))
		}
	}
	m.c.Check()
}

// maxTold bounds how many differences are told of one kind.
const maxTold = 10

func (m *migrating) wantContents(where string, want load.ChurnResult, found map[string]string) {
	m.t.Helper()
	differences := want.Differ(found)
	for _, d := range differences[:min(len(differences), maxTold)] {
		m.t.Errorf("in %s: %s", where, d)
	}
	if len(differences) > maxTold {
		m.t.Errorf("in %s: %d objects differ", where, len(differences))
	}
}

// read returns the hashes of all objects as a server returns them.
func (m *migrating) read(s *cluster.Server) map[string]string {
	m.t.Helper()
	list, err := s.Dynamic().Resource(m.resource.GroupVersionResource).List(m.t.Context(), metav1.ListOptions{})
	must(m.t, err)
	found := map[string]string{}
	for i := range list.Items {
		u := &list.Items[i]
		found[u.GetNamespace()+"/"+u.GetName()] = load.Hash(u.Object)
	}
	return found
}

func (m *migrating) encoding(version string) agree.Encoding {
	return agree.Encoding(m.resource.Group + "/" + version)
}
