package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/e2e/vault"
	"github.com/concord-dev/concord/testbed/load"
)

// kmsKey names a key that is in the vault: that of the KMS plugin "p" with this ID.
func kmsKey(id string) string { return kmsPrefix + id }

const kmsPrefix = "kms:v2:p:"

func kmsSeal(key string) agree.Seal {
	sum := sha256.Sum256([]byte(strings.TrimPrefix(key, kmsPrefix)))
	return agree.Seal(kmsPrefix + hex.EncodeToString(sum[:8]))
}

// kmsEncrypted is a cluster whose servers encrypt with a KMS plugin each.
type kmsEncrypted struct {
	*encrypted
	vault   *vault.Vault
	plugins map[string]*vault.Plugin // by server
}

func newKMSEncrypted(t *testing.T, also string, resources []string, id string, names ...string) *kmsEncrypted {
	t.Helper()
	k := &kmsEncrypted{vault: vault.NewVault(), plugins: map[string]*vault.Plugin{}}
	k.encrypted = &encrypted{t: t, c: cluster.New(t), resources: resources, also: also, endpoint: func(name string) string {
		return "unix://" + k.plugins[name].Path
	}}
	const auditor = "auditor"
	for _, name := range append(names, auditor) {
		k.plugins[name] = vault.Start(t, k.vault, id)
	}
	k.configure(auditor, kmsKey(id), identity)
	config, err := encryptionconfig.LoadEncryptionConfig(t.Context(), k.file(auditor), false, auditor)
	must(t, err)
	k.c.Audit.With(func(l *audit.Ledger) { l.Open(openWith(config.Transformers)) })
	for _, name := range names {
		k.configure(name, kmsKey(id), identity)
		k.servers = append(k.servers, k.c.Start(cluster.Options{Args: k.args(name)}, name)...)
	}
	return k
}

// openWith returns a function that decrypts stored values of KMS plugins.
func openWith(transformers map[schema.GroupResource]value.Transformer) func(key string, stored []byte) ([]byte, agree.Seal, error) {
	return func(key string, stored []byte) ([]byte, agree.Seal, error) {
		if !strings.HasPrefix(string(stored), "k8s:enc:") {
			return stored, "", nil
		}
		plain, _, err := transformers[secrets].TransformFromStorage(context.Background(), stored, value.DefaultContext(key))
		if err != nil {
			return nil, "", err
		}
		object := &kmstypes.EncryptedObject{}
		if err := proto.Unmarshal([]byte(strings.TrimPrefix(string(stored), "k8s:enc:"+kmsPrefix)), object); err != nil {
			return nil, "", err
		}
		return plain, kmsSeal(object.KeyID), nil
	}
}

// turned waits until servers report that they encrypt with the current keys of their plugins. A
// request for readiness makes a server ask its plugin.
func (k *kmsEncrypted) turned(servers ...*cluster.Server) {
	k.t.Helper()
	for _, s := range servers {
		want := kmsSeal(k.plugins[s.Name].Current())
		took := cluster.Eventually(k.t, cluster.SettleTimeout, s.Name+" encrypts with the plugin's key", func(ctx context.Context) error {
			id, _ := s.ID()
			for _, resource := range k.resources {
				if own, ok := agree.Of(k.c.Reports(schema.ParseGroupResource(resource)), id); !ok || own.Encoding.Seal() != want {
					return fmt.Errorf("it reports %s of %s", own.Encoding, resource)
				}
			}
			return nil
		})
		k.t.Logf("%s reports the key after %v", s.Name, took.Round(time.Millisecond))
	}
}

// testKMS: the key of a KMS plugin is rotated in the KMS, without a change of any
// configuration. The stored values become stale and are encrypted again once all servers
// encrypt with the new key, and the old key is called removable when no value needs it. Plugins
// that are down, in the middle of that and when a server starts, delay it, and nothing is lost.
func testKMS(t *testing.T) {
	const objects = 1500
	k := newKMSEncrypted(t, "--migration-max-objects-per-second=300", []string{secrets.Resource, widgets.String()}, "first", "one", "two")
	one, two := k.servers[0], k.servers[1]
	createWidgets(t, "v1", k.servers...)
	fill(t, one, loadedSecrets(), objects)
	fill(t, two, widgetsV1, stored)
	k.wantKey(kmsKey("first"), stored)
	writes := k.c.Load(load.Config{Resources: []load.Resource{loadedSecrets(), widgetsV1}, Pause: 50 * time.Millisecond}, k.servers...)

	before := k.rewrites()
	k.plugins["one"].Turn("second")
	k.turned(one)
	k.wantNeeded(string(kmsSeal("first")))
	cluster.Eventually(t, time.Minute, "both servers take writes", acked(writes, k.servers))
	if n := k.rewrites() - before; n > 0 {
		t.Errorf("%d objects were rewritten before all servers had the new key", n)
	}
	k.plugins["two"].Turn("second")
	k.turned(two)
	k.awaitRewrites(before, 200)
	for _, p := range k.plugins {
		p.Stop()
	}
	k.awaitRewrites(before, 400) // with the keys that servers have
	t.Logf("all servers are killed after %d rewrites", k.rewrites()-before)
	k.restartWithoutPlugins("first")
	for _, s := range k.servers {
		s.WaitReady()
	}
	k.turned(k.servers...)
	k.wantKey(kmsKey("second"), stored)
	if found := k.c.Encodings(secrets); len(found) != 1 || found[agree.Encoding("v1").Sealed(kmsSeal("second"))] < objects {
		t.Errorf("secrets are stored as %v", found)
	}
	for _, s := range k.servers {
		if _, lost, failed := strings.Cut(s.Output(), "Object not migrated"); failed {
			t.Errorf("objects failed for a plugin that was away: %.1000s", lost)
		}
	}
	k.wantRemovable(kmsKey("first"))
	for _, s := range k.servers {
		raw, err := os.ReadFile(k.file(s.Name))
		must(t, err)
		id, _ := s.ID()
		if err := leaseTells(t.Context(), s, id, raw); err != nil {
			t.Errorf("%s, whose configuration has not changed: %v", s.Name, err)
		}
	}
	if result := cluster.Command(t, "keys", "--etcd-servers", k.c.Endpoint, "kms:v2:p"); result.Code != 2 || !strings.Contains(result.Stderr, string(kmsSeal("second"))) {
		t.Errorf("keys of the plugin: exit %d: %s", result.Code, result.Stderr)
	}
	k.c.CheckLoad(writes.Stop(), disturbed)
	if use, found := k.keys(string(kmsSeal("second"))), k.c.Encodings(secrets); int(use.Resources[secrets.String()]) != found[agree.Encoding("v1").Sealed(kmsSeal("second"))] {
		t.Errorf("the keys command counts %+v, and secrets are stored as %v", use, found)
	}

	k.vault.Destroy("first")
	for _, s := range k.servers {
		s.Restart(s.Options())
	}
	k.wantReadable(stored)
	k.c.WaitSettled()
	k.c.Check()
}

// restartWithoutPlugins kills all servers and starts them while no plugin runs. The servers do not know
// their keys then and agree on none, so the old key is needed. The plugins are started afterwards.
func (k *kmsEncrypted) restartWithoutPlugins(old string) {
	k.t.Helper()
	for _, s := range k.servers {
		s.Kill()
	}
	k.wantNeeded(string(kmsSeal(old)))
	for _, s := range k.servers {
		s.Start()
	}
	for _, s := range k.servers {
		cluster.Eventually(k.t, time.Minute, s.Name+" is not ready without its plugin", func(ctx context.Context) error {
			err := s.Ready(ctx)
			if err == nil {
				k.t.Fatalf("%s says that it is ready without its plugin", s.Name)
			}
			if !strings.Contains(err.Error(), "[-]kms-providers failed") {
				return err
			}
			return nil
		})
	}
	cluster.Eventually(k.t, time.Minute, "both report that they do not know their key", func(context.Context) error {
		for _, s := range k.servers {
			id, _ := s.ID()
			if own, ok := agree.Of(k.c.Reports(secrets), id); !ok || own.Encoding.Seal().Known() {
				return fmt.Errorf("%s reports %s", s.Name, own.Encoding)
			}
		}
		return nil
	})
	if standing := k.c.Standing(secrets); standing.Common() != "" {
		k.t.Errorf("they agree on %s", standing.Common())
	}
	k.wantNeeded(string(kmsSeal(old)))
	for _, name := range []string{"auditor", "one", "two"} {
		k.plugins[name].Start()
	}
}
