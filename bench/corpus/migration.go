package corpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/ledger"
)

const (
	migrationsPath   = "/apis/migration.k8s.io/v1alpha1/storageversionmigrations"
	migrationsPrefix = stored.DefaultPrefix + "/migration.k8s.io/storageversionmigrations/"
	// migrationLimit and objectLimit bound a migration.
	migrationLimit = 20 * time.Minute
	objectLimit    = 20 * time.Millisecond
)

// migrated fails while a migration is under way. Servers create migrations by themselves when they start on
// an empty etcd. These may wait while objects are stored, and would otherwise run during the measurement.
func (s *Servers) migrated(ctx context.Context) error {
	all, err := s.Cluster.Raw.Get(ctx, migrationsPrefix, clientv3.WithPrefix())
	if err != nil {
		return err
	}
	for _, kv := range all.Kvs {
		var m migrationv1alpha1.StorageVersionMigration
		if err := json.Unmarshal(kv.Value, &m); err != nil {
			return fmt.Errorf("%s: %w", kv.Key, err)
		}
		if !migrationv1alpha1.Final(&m) {
			return fmt.Errorf("migration %s has not ended", m.Name)
		}
	}
	return nil
}

// Migrate asks the servers for a migration of all objects and returns how long it ran: from when its
// status said Running until it said Succeeded. The next Restore checks the migrated objects.
func (s *Stored) Migrate(ctx context.Context, name string) (Span, error) {
	return s.migrate(ctx, name, Fields{})
}

// MigrateThroughAPI is like Migrate, but with spec.engine API: objects are migrated by empty patches
// through the API instead of transactions in etcd.
func (s *Stored) MigrateThroughAPI(ctx context.Context, name string) (Span, error) {
	return s.migrate(ctx, name, Fields{"engine": string(migrationv1alpha1.EngineAPI)})
}

func (s *Stored) migrate(ctx context.Context, name string, spec Fields) (Span, error) {
	ctx, cancel := context.WithTimeout(ctx, migrationLimit+time.Duration(len(s.puts))*objectLimit)
	defer cancel()
	name = s.Corpus.gr.Resource + "-" + name
	spec["resource"] = Fields{"group": s.Corpus.gr.Group, "version": s.Corpus.version, "resource": s.Corpus.gr.Resource}
	body := Marshal(Fields{
		"apiVersion": "migration.k8s.io/v1alpha1", "kind": "StorageVersionMigration",
		"metadata": Fields{"name": name}, "spec": spec,
	})
	return s.follow(ctx, migrationsPrefix+name, func() error {
		_, err := s.Servers.Clients[0].Do(ctx, http.MethodPost, migrationsPath, JSONType, body)
		return err
	})
}

// follow calls begin, and waits for the end of the migration that it begins. key is the key of that
// migration in etcd, or the prefix of all migrations; then the next migration of the resource is
// meant. The status is watched in etcd, so that the measured servers get no requests for it.
func (s *Stored) follow(ctx context.Context, key string, begin func() error) (Span, error) {
	raw := s.Servers.Cluster.Raw
	before, err := raw.Get(ctx, key)
	if err != nil {
		return Span{}, err
	}
	done, ended := Span{objects: len(s.puts)}, false
	w := ledger.NewWatch(&done, func(e ledger.Event) {
		if !ended && err == nil && (e.Key == key || key == migrationsPrefix && e.Value != nil) {
			ended, err = done.take(e, s.Corpus.gr.Resource)
		}
	})
	w.Start(raw, key, before.Header.Revision+1)
	defer w.Stop()
	if err := begin(); err != nil {
		return Span{}, err
	}
	select {
	case <-w.When(func(*Span) bool { return ended || err != nil }):
	case <-w.Done():
		return Span{}, w.Err()
	case <-ctx.Done():
		return Span{}, fmt.Errorf("migration of %s: it has not ended: %w", s.Corpus.gr.Resource, ctx.Err())
	}
	if w.Stop(); err != nil {
		return Span{}, fmt.Errorf("migration of %s: %w", s.Corpus.gr.Resource, err)
	}
	return s.seen(ctx, done)
}

// take reads a change of a migration, if it is one of the resource, and says whether the migration has succeeded.
func (d *Span) take(e ledger.Event, resource string) (ended bool, err error) {
	if e.Value == nil {
		return false, errors.New("it was deleted")
	}
	var m migrationv1alpha1.StorageVersionMigration
	if err := json.Unmarshal(e.Value, &m); err != nil || m.Spec.Resource.Resource != resource {
		return false, err
	}
	if failed := migrationv1alpha1.True(&m, migrationv1alpha1.MigrationFailed); failed != nil {
		return false, fmt.Errorf("it failed: %s: %s", failed.Reason, failed.Message)
	}
	if d.began.IsZero() && migrationv1alpha1.True(&m, migrationv1alpha1.MigrationRunning) != nil {
		d.began = e.At
	}
	if migrationv1alpha1.True(&m, migrationv1alpha1.MigrationSucceeded) == nil {
		return false, nil
	}
	if d.end = e.At; d.began.IsZero() {
		return false, errors.New("it was never seen to run")
	}
	if p := m.Status.Progress; p == nil || p.Done != int64(d.objects) {
		return false, fmt.Errorf("it says %+v of %d objects", p, d.objects)
	}
	return true, nil
}
