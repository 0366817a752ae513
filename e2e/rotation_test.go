package e2e

import (
	"context"
	"crypto/sha256"
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

var three = []string{"one", "two", "three"}

// leaseTells returns nil if the server's identity Lease says that the server has loaded the file.
func leaseTells(ctx context.Context, s *cluster.Server, id agree.ServerID, file []byte) error {
	lease := &coordinationv1.Lease{}
	if err := s.Objects().Get(ctx, client.ObjectKey{Namespace: storageversion.IdentityNamespace, Name: string(id)}, lease); err != nil {
		return err
	}
	want := fmt.Sprintf("sha256:%x", sha256.Sum256(file))
	if got := lease.Annotations[storageversion.EncryptionConfigAnnotation]; got != want {
		return fmt.Errorf("its Lease tells of configuration %q, not %q", got, want)
	}
	return nil
}

// awaitRewrites waits until more objects have been rewritten than before.
func (e *encrypted) awaitRewrites(before, more int) {
	e.t.Helper()
	cluster.Eventually(e.t, 60*time.Second, "a migration is under way", func(context.Context) error {
		if n := e.rewrites() - before; n < more {
			return fmt.Errorf("%d objects are rewritten", n)
		}
		return nil
	})
}

func (e *encrypted) rewrites() (n int) {
	e.c.Audit.With(func(l *audit.Ledger) { n = l.Rewrites() })
	return n
}

// testRotationKilled: distributions of Kubernetes have stopped re-encrypting at 8,105 of 10,000
// Secrets, called it complete and deleted the old key. Here the migrating server is killed in the
// middle, clients write all the time, and one server loads the configuration late. At no moment is
// the old key called removable while a value needs it; in the end it is, and can be removed.
func testRotationKilled(t *testing.T) {
	const objects = 10_000
	e := newEncrypted(t, []string{secrets.Resource}, three, keyA, identity)
	one, late := e.servers[0], e.servers[2]
	fill(t, one, loadedSecrets(), objects)
	e.wantKey(keyA, objects)
	writes := e.c.Load(load.Config{Resources: []load.Resource{loadedSecrets()}, Pause: 20 * time.Millisecond}, e.servers...)
	for _, s := range e.servers {
		e.load(s, keyA, keyB, identity)
	}
	before := e.rewrites()
	for _, s := range e.servers[:2] {
		e.load(s, keyB, keyA, identity)
	}
	e.wantNeeded(keyA)
	cluster.Eventually(t, time.Minute, "all servers take writes", acked(writes, e.servers))
	if n := e.rewrites() - before; n > 0 {
		t.Errorf("%d objects were rewritten before all servers had the new key", n)
	}
	e.load(late, keyB, keyA, identity)
	e.awaitRewrites(before, 200)
	killed := (&migrating{t: t, c: e.c, servers: e.servers, resource: loadedSecrets()}).claimer()
	killed.Kill()
	e.wantNeeded(keyA)
	t.Logf("%s was killed after %d rewrites; left with the old key: %d", killed.Name, e.rewrites()-before, e.c.Encodings(secrets)[agree.Encoding("v1").Sealed(sealOf(t, keyA))])
	killed.Start()
	killed.WaitReady()

	// The command runs again and again, while values are rewritten, until it calls the key removable.
	cluster.Eventually(t, cluster.SettleTimeout, "the old key is called removable", func(context.Context) error {
		if use := e.keys(keyA); !use.Removable {
			return fmt.Errorf("%+v", use)
		}
		return nil
	})
	e.wantKey(keyB, objects)
	e.wantRemovable(keyA)
	for _, s := range e.servers {
		e.load(s, keyB)
	}
	cluster.Eventually(t, time.Minute, "all servers take writes", acked(writes, e.servers))
	e.c.CheckLoad(writes.Stop(), disturbed)
	e.wantReadable(objects)
	e.c.Check()
}

// testEncryptAndDecrypt: objects that were stored unencrypted are encrypted, survive a restart of
// all servers, and are decrypted again.
func testEncryptAndDecrypt(t *testing.T) {
	e := newEncrypted(t, []string{secrets.Resource, widgets.String()}, three, identity)
	createWidgets(t, "v1", e.servers...)
	for _, r := range []load.Resource{loadedSecrets(), widgetsV1} {
		fill(t, e.servers[0], r, stored)
	}
	e.wantKey(identity, stored)
	writes := e.c.Load(load.Config{Resources: []load.Resource{loadedSecrets(), widgetsV1}, Pause: 50 * time.Millisecond}, e.servers...)
	for _, keys := range [][]string{{identity, keyC}, {keyC, identity}} {
		for _, s := range e.servers {
			e.load(s, keys...)
		}
	}
	e.wantKey(keyC, stored)
	e.wantRemovable(identity)
	wantNoFailures(t, e.c, writes)
	for _, s := range e.servers {
		s.Kill()
	}
	for _, s := range e.servers {
		s.Start()
	}
	for _, s := range e.servers {
		s.WaitReady()
	}
	e.wantReadable(stored)
	e.wantKey(keyC, stored)
	for _, s := range e.servers {
		e.load(s, identity, keyC)
	}
	e.wantKey(identity, stored)
	e.wantRemovable(keyC)
	for _, s := range e.servers {
		e.load(s, identity)
	}
	e.wantReadable(stored)
	e.c.Check()
}

// testRotationRolledBack: a rotation is rolled back while the migration is under way. The migration
// is aborted, and the objects that have the new key by then get the old one again.
func testRotationRolledBack(t *testing.T) {
	const objects = 3000
	e := newEncrypted(t, []string{secrets.Resource}, three, keyA, identity)
	fill(t, e.servers[0], loadedSecrets(), objects)
	e.wantKey(keyA, objects)
	writes := e.c.Load(load.Config{Resources: []load.Resource{loadedSecrets()}, Pause: 20 * time.Millisecond}, e.servers...)
	for _, keys := range [][]string{{keyA, keyB, identity}, {keyB, keyA, identity}} {
		before := e.rewrites()
		for _, s := range e.servers {
			e.load(s, keys...)
		}
		if keys[0] == keyB {
			e.awaitRewrites(before, 200)
		}
	}
	e.load(e.servers[1], keyA, keyB, identity)
	e.wantNeeded(keyA)
	e.wantNeeded(keyB)
	for _, s := range []*cluster.Server{e.servers[0], e.servers[2]} {
		e.load(s, keyA, keyB, identity)
	}
	e.wantKey(keyA, objects)
	e.wantRemovable(keyB)
	e.wantNoneLost(writes, objects)
}

// testAPIRotation: a key is rotated by a migration through the API. The migration is created before
// servers change the key, and paused, so that no other one is made. Each patch has to encrypt an
// object that it does not change.
func testAPIRotation(t *testing.T) {
	const objects = 1000
	e := newEncrypted(t, []string{secrets.Resource}, []string{"one", "two"}, keyA, identity)
	sealed := func(key string) agree.Encoding { return agree.Encoding("v1").Sealed(sealOf(t, key)) }
	fill(t, e.servers[0], loadedSecrets(), objects)
	e.wantKey(keyA, objects)
	writes := e.c.Load(load.Config{Prefix: loadPrefix, Resources: []load.Resource{loadedSecrets()}, Pause: 20 * time.Millisecond}, e.servers...)
	for _, s := range e.servers {
		e.load(s, keyA, keyB, identity)
	}
	m := askForAPI(t, e.servers[0], secrets, "v1", func(spec *migrationv1alpha1.StorageVersionMigrationSpec) { spec.Paused = true })
	for _, s := range e.servers {
		e.load(s, keyB, keyA, identity)
	}
	waitTarget(t, e.servers[1], m, sealed(keyB))
	cluster.Eventually(t, time.Minute, "both servers take writes", acked(writes, e.servers))
	if left := e.c.Encodings(secrets)[sealed(keyA)]; left < objects {
		t.Errorf("%d objects are encrypted with the old key before the migration begins, want %d", left, objects)
	}
	e.wantNeeded(keyA)

	before := e.rewrites()
	pauseMigration(t, e.servers[0], m, false)
	m = waitEnded(t, e.servers[1], m)
	wantAPI(t, m)
	if p := m.Status.Progress; migrationv1alpha1.True(m, migrationv1alpha1.MigrationSucceeded) == nil || p.Done < objects || p.Failed > 0 {
		t.Errorf("it ended with %+v", m.Status)
	}
	e.wantKey(keyB, objects)
	e.wantOnly(m)
	if n := e.rewrites() - before; n < objects {
		t.Errorf("%d objects were rewritten, there are %d that no client writes", n, objects)
	}
	e.wantRemovable(keyA)
	for _, s := range e.servers {
		e.load(s, keyB)
	}
	cluster.Eventually(t, time.Minute, "both servers take writes", acked(writes, e.servers))
	e.wantNoneLost(writes, objects)
}

// wantOnly fails if there was another migration of secrets to the same encoding.
func (e *encrypted) wantOnly(m *migrationv1alpha1.StorageVersionMigration) {
	e.t.Helper()
	all, err := migrationsOf(e.t.Context(), e.servers[0], secrets)
	must(e.t, err)
	for _, other := range all {
		if other.UID != m.UID && migrationv1alpha1.TargetOf(other) == migrationv1alpha1.TargetOf(m) {
			e.t.Errorf("%s was made as well, and is %+v", other.Name, other.Status)
		}
	}
}
