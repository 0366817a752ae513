package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/load"
)

// fullSpeedObjects is how many objects a migration at full speed has. A rewrite reads about the
// first thousand page by page and the rest as a stream. It holds 6 MiB, which are 8,000 objects of
// 400 bytes in two forms, and 4 MiB more may be under way. So when half of all objects are
// written, the stream has not come to its end.
const fullSpeedObjects = 40_000

var (
	parcels   = schema.GroupResource{Group: widgetGroup, Resource: "parcels"}
	parcelsV1 = load.Resource{
		GroupVersionResource: parcels.WithVersion("v1"), Kind: "Parcel", Namespace: metav1.NamespaceDefault,
		Fill:   func(fields map[string]any, text string) { fields["spec"] = map[string]any{"text": text} },
		Update: func(text string) map[string]any { return map[string]any{"spec": map[string]any{"text": text}} },
	}
)

// atFullSpeed returns the same cluster with parcels, of which there are many. Its servers migrate
// as fast as they can, which is so fast that they read the parcels as streams.
func (m *migrating) atFullSpeed() *migrating {
	m.t.Helper()
	for _, s := range m.servers {
		s.Restart(cluster.Options{Args: "--migration-max-added-latency=0"})
	}
	m.c.WaitReporters(restored, m.servers...)
	createCRD(m.t, widgetLike(parcels, "v1"), m.servers...)
	m.c.WaitSettled()
	full := &migrating{t: m.t, c: m.c, servers: m.servers, resource: parcelsV1, random: m.random, version: "v1"}
	began := time.Now()
	full.store(fullSpeedObjects)
	full.loose(load.ChurnConfig{Seed: m.random.Uint64(), Every: fullSpeedObjects / 100})
	m.t.Logf("stored %d parcels in %v", fullSpeedObjects, time.Since(began).Round(time.Millisecond))
	return full
}

// prefix is the prefix of the objects' keys.
func (m *migrating) prefix() string {
	return fmt.Sprintf("%s/%s/%s/%s/", storedsets.DefaultPrefix, m.resource.Group, m.resource.Resource, m.resource.Namespace)
}

// store puts n objects into etcd, many at a time, as the first server would write them.
func (m *migrating) store(n int) {
	m.t.Helper()
	const together = 100
	group, ctx := errgroup.WithContext(m.t.Context())
	group.SetLimit(8)
	for from := 0; from < n; from += together {
		group.Go(func() error {
			var puts []clientv3.Op
			for i := from; i < min(from+together, n); i++ {
				name := fmt.Sprintf("stored-%06d", i)
				value, err := json.Marshal(map[string]any{
					"apiVersion": m.resource.GroupVersion().String(), "kind": m.resource.Kind,
					"metadata": map[string]any{
						"name": name, "namespace": m.resource.Namespace, "uid": uuid.NewUUID(), "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z",
						"annotations": map[string]any{load.WriteAnnotation: m.servers[0].Name + "/" + name},
					},
					"spec": map[string]any{"text": "stored", "padding": strings.Repeat("x", 100)},
				})
				if err != nil {
					return err
				}
				puts = append(puts, clientv3.OpPut(m.prefix()+name, string(value)))
			}
			_, err := m.c.Raw.Txn(ctx).Then(puts...).Commit()
			return err
		})
	}
	must(m.t, group.Wait())
}

// fullSpeedAttempts is how often a fault is tried until it comes during a stream. A stream takes a
// second or two, in which a busy machine may not get to anything else.
const fullSpeedAttempts = 5

// midStream changes the storage version and calls strike during the stream of the objects that are to
// be rewritten. strike is given a member of the etcd that sends a stream, which may be this one or one
// to a server's watch cache. If no object is left to rewrite after strike, all is done again. mend
// repairs the damage of a strike before the cluster has to settle, and is told whether the strike hit.
func (m *migrating) midStream(what string, strike func(sender *cluster.Etcd), mend func(hit bool)) {
	m.t.Helper()
	for range fullSpeedAttempts {
		to := otherVersion(m.version)
		var idle map[*cluster.Etcd]int
		cluster.Eventually(m.t, cluster.SettleTimeout, "the members of the etcd say what they send", func(ctx context.Context) (err error) {
			idle, err = m.streams(ctx)
			return err
		})
		m.storeIn(m.servers[0], to)
		sender := m.awaitStream(to, idle)
		before := m.left(to)
		if sender != nil {
			strike(sender)
		}
		after := m.left(to)
		m.t.Logf("%s: %d objects were left to bring to %s before, and %d after", what, before, to, after)
		hit := sender != nil && before <= fullSpeedObjects*19/20 && before >= fullSpeedObjects/2 && after > 0
		if mend != nil && sender != nil {
			mend(hit)
		}
		m.t.Logf("settled after %v", m.c.WaitSettled().Round(time.Millisecond))
		if hit {
			return
		}
		m.t.Log("that was not in the midst of a stream, and is tried again")
	}
	m.t.Fatalf("%s: of %d attempts none was in the midst of a stream, and nothing was tested", what, fullSpeedAttempts)
}

// storeIn changes the storage version of parcels.
func (m *migrating) storeIn(s *cluster.Server, version string) {
	m.t.Helper()
	storeIn(m.t, s, parcels, version)
	m.version = version
}

// streams returns how many streams each member of the etcd is sending.
func (m *migrating) streams(ctx context.Context) (map[*cluster.Etcd]int, error) {
	members := m.c.Members
	if m.c.Etcd != nil {
		members = []*cluster.Etcd{m.c.Etcd}
	}
	sending := map[*cluster.Etcd]int{}
	for _, e := range members {
		n, err := e.Streams(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
		sending[e] = n
	}
	return sending, nil
}

// awaitStream waits until objects have been rewritten and a member sends more streams than before,
// and returns this member; or nil, if all objects are rewritten before any member is seen to do so.
func (m *migrating) awaitStream(to string, before map[*cluster.Etcd]int) (sender *cluster.Etcd) {
	m.t.Helper()
	cluster.Eventually(m.t, cluster.SettleTimeout, "objects are rewritten from a stream", func(ctx context.Context) error {
		var found map[agree.Encoding]int
		m.c.Audit.With(func(l *audit.Ledger) { found = l.Encodings(parcels) })
		if found[m.encoding(to)] < fullSpeedObjects/20 {
			return fmt.Errorf("objects are stored as %v", found)
		}
		sending, err := m.streams(ctx)
		if err != nil {
			return err
		}
		for e, n := range sending {
			if n > before[e] {
				m.t.Logf("objects are stored as %v, and %s is sending %d streams, %d more than before", found, e.Name, n, n-before[e])
				sender = e
				return nil
			}
		}
		if len(found) == 1 {
			return nil
		}
		return errors.New("no stream is under way")
	})
	return sender
}

// left counts the objects that are not stored in the version, by reading etcd.
func (m *migrating) left(to string) (n int) {
	m.t.Helper()
	var all *clientv3.GetResponse
	cluster.Eventually(m.t, cluster.SettleTimeout, "etcd lists the objects", func(ctx context.Context) (err error) {
		all, err = m.c.Raw.Get(ctx, m.prefix(), clientv3.WithPrefix())
		return err
	})
	for _, kv := range all.Kvs {
		if encoding, _, _ := migratestore.Envelope(kv.Value); encoding != m.encoding(to) {
			n++
		}
	}
	return n
}

// migratorKilledMidStream kills the server that migrates, and starts it again when another one has
// completed the migration.
func migratorKilledMidStream(m *migrating) {
	m.t.Helper()
	for range 2 {
		var killed *cluster.Server
		m.midStream("the migrating server was killed", func(*cluster.Etcd) {
			killed = nil
			if migrates, err := m.findClaimer(m.t.Context()); err != nil {
				m.t.Logf("nobody is killed: %v", err)
			} else {
				killed = migrates
				killed.Kill()
			}
		}, func(hit bool) {
			if killed == nil {
				return
			}
			if hit {
				m.endedByAnother(m.version, killed)
			}
			killed.Start()
			killed.WaitReady()
		})
		if killed == nil {
			m.t.Error("no server was killed: nothing was tested")
		}
	}
	m.c.WaitReporters(restored, m.servers...)
	m.ended(m.version)
}

// endedByAnother fails unless the migration to the version has succeeded by another server than but.
func (m *migrating) endedByAnother(to string, but *cluster.Server) {
	m.t.Helper()
	id, _ := but.ID()
	epoch := m.c.Standing(m.resource.GroupResource()).Ref().Epoch
	i := slices.IndexFunc(m.servers, func(s *cluster.Server) bool { return s != but })
	cluster.Eventually(m.t, cluster.SettleTimeout, "the migration is another server's, and has succeeded", func(ctx context.Context) error {
		all, err := migrationsOf(ctx, m.servers[i], m.resource.GroupResource())
		if err != nil {
			return err
		}
		for _, item := range all {
			target := migrationv1alpha1.TargetOf(item)
			if target.Encoding != m.encoding(to) || target.Epoch != epoch || migrationv1alpha1.True(item, migrationv1alpha1.MigrationSucceeded) == nil {
				continue
			}
			by := item.Annotations[migrationv1alpha1.ClaimedByAnnotation]
			if by == string(id) {
				m.t.Errorf("migration %s was ended by %s, which was killed", item.Name, but.Name)
			}
			m.t.Logf("migration %s was ended by %s: %+v", item.Name, by, item.Status.Progress)
			return nil
		}
		return errors.New("it has not")
	})
}

// membersLostMidStream takes members away from a replicated etcd while one of them sends a stream.
func membersLostMidStream(m *migrating) {
	m.t.Helper()
	m.midStream("the leader handed over", func(*cluster.Etcd) { m.c.MoveLeader() }, nil)
	var killed *cluster.Etcd
	m.midStream("a member that sent was killed", func(sender *cluster.Etcd) {
		killed = sender
		killed.Kill()
	}, func(bool) {
		m.c.Leader()
		killed.Start()
		killed.WaitReady()
	})
	m.midStream("all members were killed", func(*cluster.Etcd) { m.killMembers() }, nil)
	m.ended(m.version)
}

// compactedAndTurnedMidStream compacts etcd again and again during a stream. Then it ends the agreement:
// it changes the CRD's storage version back. The objects rewritten by then are brought back, and the
// audit reports every object that is rewritten to an encoding on which servers do not agree any more.
func compactedAndTurnedMidStream(m *migrating) {
	m.t.Helper()
	m.midStream("the store was compacted three times", func(*cluster.Etcd) {
		for range 3 {
			if err := compact(m.c); err != nil {
				m.t.Fatalf("compact: %v", err)
			}
		}
	}, nil)
	m.midStream("the definition was changed back", func(*cluster.Etcd) { m.storeIn(m.servers[1], otherVersion(m.version)) }, nil)
	m.ended(m.version)
}

// otherVersion returns v2 for v1, and v1 for v2.
func otherVersion(version string) string { return map[string]string{"v1": "v2", "v2": "v1"}[version] }
