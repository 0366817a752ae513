package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	kmsv1 "k8s.io/kms/apis/v1beta1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/e2e/vault"
	"github.com/concord-dev/concord/testbed/load"
)

// kmsKey is a key of the tests that is in the vault: of the KMS plugin "p", with this ID.
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

// openWith opens stored values of KMS plugins.
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

// turned waits until a server reports that it encrypts with its plugin's key. Being asked
// whether it is ready makes it ask the plugin.
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

// The key of a KMS plugin is rotated in the KMS, without a change of any configuration:
// the stored values become stale and are encrypted anew once all servers encrypt with the new
// key, and the old one is called removable when no value needs it. Plugins that are away, in
// the middle of that and when a server starts, delay it and lose nothing.
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

// restartWithoutPlugins kills all servers and starts them while no plugin runs: they do not
// know their keys then, agree on none, and the old one is needed. The plugins follow.
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

// keyV1 is the plugin "p" of KMS v1, whichever key it encrypts with.
const keyV1 = "kms:v1:p"

// pluginV1 is a plugin of KMS v1. Only a value that it has encrypted tells the plugin with which key.
type pluginV1 struct {
	kmsv1.UnimplementedKeyManagementServiceServer
	*vault.Plugin
}

func startPluginV1(t *testing.T, v *vault.Vault, id string) *vault.Plugin {
	t.Helper()
	p := vault.New(t, v, id)
	p.Serve = func(s *grpc.Server) { kmsv1.RegisterKeyManagementServiceServer(s, pluginV1{Plugin: p}) }
	p.Start()
	return p
}

func (p pluginV1) Version(context.Context, *kmsv1.VersionRequest) (*kmsv1.VersionResponse, error) {
	return &kmsv1.VersionResponse{Version: "v1beta1", RuntimeName: "vault", RuntimeVersion: "1"}, nil
}

func (p pluginV1) Encrypt(_ context.Context, r *kmsv1.EncryptRequest) (*kmsv1.EncryptResponse, error) {
	id := p.Current()
	key, err := p.Vault.Key(id, true)
	if err != nil {
		return nil, err
	}
	return &kmsv1.EncryptResponse{Cipher: append([]byte(id+":"), key.Seal(nil, nil, r.Plain, nil)...)}, nil
}

func (p pluginV1) Decrypt(_ context.Context, r *kmsv1.DecryptRequest) (*kmsv1.DecryptResponse, error) {
	plain, err := opener{p.Vault}.Decrypt(r.Cipher)
	return &kmsv1.DecryptResponse{Plain: plain}, err
}

// opener opens values that plugins of KMS v1 have encrypted.
type opener struct{ *vault.Vault }

// Decrypt implements envelope.Service.
func (o opener) Decrypt(sealed []byte) ([]byte, error) {
	id, sealed, _ := bytes.Cut(sealed, []byte(":"))
	key, err := o.Key(string(id), false)
	if err != nil {
		return nil, err
	}
	return key.Open(nil, nil, sealed, nil)
}

// Encrypt implements envelope.Service.
func (opener) Encrypt([]byte) ([]byte, error) { return nil, errors.New("only plugins encrypt") }

// openV1 opens also values that plugins of KMS v1 have encrypted.
func openV1(t *testing.T, v *vault.Vault) func(key string, stored []byte) ([]byte, agree.Seal, error) {
	t.Helper()
	others := openValue(t)
	transformer := envelope.NewEnvelopeTransformer(opener{v}, 0, aestransformer.NewGCMTransformer)
	return func(key string, stored []byte) ([]byte, agree.Seal, error) {
		sealed, ok := bytes.CutPrefix(stored, []byte("k8s:enc:"+keyV1+":"))
		if !ok {
			return others(key, stored)
		}
		plain, _, err := transformer.TransformFromStorage(context.Background(), sealed, value.DefaultContext(key))
		return plain, sealOf(t, keyV1), err
	}
}

// A plugin of KMS v1 encrypts where the feature KMSv1 is on, also objects that are stored already,
// even if it is away for a time meanwhile; the values that it has encrypted are brought to another
// key, after which it can go. Where the feature is off it is refused, with its name.
func testKMSv1(t *testing.T) {
	const objects, gate = 1500, " --feature-gates=KMSv1=true --migration-max-objects-per-second=300"
	v := vault.NewVault()
	plugins := map[string]*vault.Plugin{}
	e := &encrypted{t: t, c: cluster.New(t), resources: []string{secrets.Resource, widgets.String()}, also: gate, endpoint: func(name string) string {
		return "unix://" + cmp.Or(plugins[name], plugins["one"]).Path
	}}
	e.c.Audit.With(func(l *audit.Ledger) { l.Open(openV1(t, v)) })
	for _, name := range []string{"one", "two"} {
		plugins[name] = startPluginV1(t, v, "first")
		e.configure(name, identity, keyV1)
		e.servers = append(e.servers, e.c.Start(cluster.Options{Args: e.args(name)}, name)...)
	}
	createWidgets(t, "v1", e.servers...)
	fill(t, e.servers[0], loadedSecrets(), objects)
	fill(t, e.servers[1], widgetsV1, stored)

	before := e.rewrites()
	for _, s := range e.servers {
		e.load(s, keyV1, identity)
	}
	e.awaitRewrites(before, 200)
	for _, p := range plugins {
		p.Stop()
	}
	for _, s := range e.servers {
		s.WaitUnready(time.Minute)
	}
	away := e.c.Encodings(secrets)
	for _, p := range plugins {
		p.Turn("second") // which nobody can see
		p.Start()
	}
	if len(away) != 2 {
		t.Errorf("secrets were stored as %v while the plugins were away: nothing was tested", away)
	}
	for _, s := range e.servers {
		s.WaitReady()
	}
	e.wantKey(keyV1, stored)
	e.wantNeeded(keyV1)
	for _, s := range e.servers {
		if strings.Contains(s.Output(), "Object not migrated") {
			t.Errorf("objects failed on %s for a plugin that was away", s.Name)
		}
	}

	for _, s := range e.servers {
		e.load(s, keyV1, keyB)
	}
	for _, s := range e.servers {
		e.load(s, keyB, keyV1)
	}
	e.wantKey(keyB, stored)
	e.wantRemovable(keyV1)
	for _, s := range e.servers {
		e.load(s, keyB)
	}
	v.Destroy("first")
	v.Destroy("second")
	e.also = ""
	for _, s := range e.servers {
		s.Restart(cluster.Options{Args: e.args(s.Name)})
	}
	e.wantReadable(stored)
	e.refusesV1(e.servers[0])
	e.c.WaitSettled()
	e.c.Check()
}

// refusesV1 has a server whose feature is off load a plugin of KMS v1, and start with it.
func (e *encrypted) refusesV1(s *cluster.Server) {
	e.t.Helper()
	const refusal = `the KMS plugin "p" is of apiVersion v1`
	good, err := os.ReadFile(e.file(s.Name))
	must(e.t, err)
	e.configure(s.Name, keyB, keyV1)
	cluster.Eventually(e.t, time.Minute, "the configuration is refused", func(context.Context) error {
		if out := s.Output(); !strings.Contains(out, "The encryption configuration was not loaded") || !strings.Contains(out, `the KMS plugin \"p\" is of apiVersion v1`) {
			return errors.New("nothing is said of it")
		}
		return nil
	})
	id, _ := s.ID()
	if err := leaseTells(e.t.Context(), s, id, good); err != nil {
		e.t.Error(err)
	}
	e.configure("off", keyB, keyV1)
	off := e.c.NewServer("off", cluster.Options{Args: e.args("off")})
	off.Start()
	result, ended := off.Wait(60 * time.Second)
	if !ended || result.Code != 1 || !strings.Contains(result.Stderr, refusal) || !strings.Contains(result.Stderr, filepath.Base(e.file("off"))) {
		e.t.Errorf("a start: exit %d, ended %v: %s", result.Code, ended, result.Stderr)
	}
	e.configure(s.Name, keyB)
}
