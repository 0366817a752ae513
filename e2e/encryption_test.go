package e2e

import (
	"bytes"
	"context"
	"crypto/aes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/secretbox"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/keyring/use"
	"github.com/concord-dev/concord/testbed/load"
)

var secrets = schema.GroupResource{Resource: "secrets"}

// loadedSecrets are Secrets with a text.
func loadedSecrets() load.Resource {
	data := func(text string) map[string]any {
		return map[string]any{"text": base64.StdEncoding.EncodeToString([]byte(text))}
	}
	return load.Resource{
		GroupVersionResource: secrets.WithVersion("v1"), Kind: "Secret", Namespace: metav1.NamespaceDefault,
		Fill:   func(fields map[string]any, text string) { fields["data"] = data(text) },
		Update: func(text string) map[string]any { return map[string]any{"data": data(text)} },
	}
}

// The tests name a key "<provider>:v1:<name>", or identity; its secret is computed from the name.
const (
	keyA     = "aescbc:v1:a"
	keyB     = "secretbox:v1:b"
	keyC     = "aesgcm:v1:c"
	identity = "identity"
)

func secretOf(key string) []byte { return []byte(strings.Repeat(key[:4]+key[len(key)-4:], 4)) }

func sealOf(t testing.TB, key string) agree.Seal {
	t.Helper()
	if key == identity {
		return ""
	}
	if strings.HasPrefix(key, kmsPrefix) {
		return kmsSeal(key)
	}
	seal, err := keyring.SealOf(key, base64.StdEncoding.EncodeToString(secretOf(key)))
	must(t, err)
	return seal
}

// openValue returns a function that decrypts stored values with the tests' keys.
func openValue(t testing.TB) func(key string, stored []byte) ([]byte, agree.Seal, error) {
	transformers, seals := map[string]value.Transformer{}, map[string]agree.Seal{}
	for _, key := range []string{keyA, keyC} {
		block, err := aes.NewCipher(secretOf(key))
		must(t, err)
		transformers[key], seals[key] = aestransformer.NewCBCTransformer(block), sealOf(t, key)
	}
	block, err := aes.NewCipher(secretOf(keyC))
	must(t, err)
	if transformers[keyC], err = aestransformer.NewGCMTransformer(block); err != nil {
		t.Fatal(err)
	}
	transformers[keyB], seals[keyB] = secretbox.NewSecretboxTransformer([32]byte(secretOf(keyB))), sealOf(t, keyB)
	return func(key string, stored []byte) ([]byte, agree.Seal, error) {
		if !bytes.HasPrefix(stored, []byte("k8s:enc:")) {
			return stored, "", nil
		}
		for name, transformer := range transformers {
			if sealed, ok := bytes.CutPrefix(stored, []byte("k8s:enc:"+name+":")); ok {
				plain, _, err := transformer.TransformFromStorage(context.Background(), sealed, value.DefaultContext(key))
				return plain, seals[name], err
			}
		}
		return nil, "", fmt.Errorf("%.40q is encrypted with a key that the test does not know", stored)
	}
}

// encrypted is a cluster whose servers have encryption configurations of their own.
type encrypted struct {
	t         *testing.T
	c         *cluster.Cluster
	resources []string
	servers   []*cluster.Server
	// also are further arguments of the servers.
	also string
	// endpoint returns the address of a server's KMS plugin.
	endpoint func(server string) string
}

const reloadInterval = 100 * time.Millisecond

// newEncrypted starts servers that have these keys and encrypt with the first one.
func newEncrypted(t *testing.T, resources []string, names []string, keys ...string) *encrypted {
	t.Helper()
	return newEncryptedWith(t, "", resources, names, keys...)
}

// newEncryptedWith is newEncrypted with further arguments of the servers.
func newEncryptedWith(t *testing.T, also string, resources []string, names []string, keys ...string) *encrypted {
	t.Helper()
	e := &encrypted{t: t, c: cluster.New(t), resources: resources, also: also}
	e.c.Audit.With(func(l *audit.Ledger) { l.Open(openValue(t)) })
	for _, name := range names {
		e.configure(name, keys...)
		e.servers = append(e.servers, e.c.Start(cluster.Options{Args: e.args(name)}, name)...)
	}
	return e
}

func (e *encrypted) args(name string) string {
	return fmt.Sprintf("--encryption-provider-config=%s --encryption-provider-config-automatic-reload --encryption-provider-config-reload-interval=%s --migration-max-added-latency=0 %s",
		e.file(name), reloadInterval, e.also)
}

func (e *encrypted) file(name string) string { return filepath.Join(e.c.Dir, name+"-encryption.json") }

// configure replaces a server's encryption configuration by one with these keys.
func (e *encrypted) configure(name string, keys ...string) {
	e.t.Helper()
	var providers []any
	for _, key := range keys {
		if key == identity {
			providers = append(providers, map[string]any{identity: map[string]any{}})
			continue
		}
		parts := strings.Split(key, ":")
		if parts[0] == "kms" {
			providers = append(providers, map[string]any{"kms": map[string]any{"apiVersion": parts[1], "name": parts[2], "endpoint": e.endpoint(name)}})
			continue
		}
		providers = append(providers, map[string]any{parts[0]: map[string]any{
			"keys": []any{map[string]any{"name": parts[2], "secret": base64.StdEncoding.EncodeToString(secretOf(key))}},
		}})
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
		"resources": []any{map[string]any{"resources": e.resources, "providers": providers}},
	})
	must(e.t, err)
	next := e.file(name) + ".next"
	must(e.t, errors.Join(os.WriteFile(next, raw, 0o600), os.Rename(next, e.file(name))))
}

// load gives a server an encryption configuration with these keys, and waits until the server
// encrypts with the first one.
func (e *encrypted) load(s *cluster.Server, keys ...string) {
	e.t.Helper()
	e.configure(s.Name, keys...)
	want := sealOf(e.t, keys[0])
	raw, err := os.ReadFile(e.file(s.Name))
	must(e.t, err)
	cluster.Eventually(e.t, time.Minute, s.Name+" has loaded "+strings.Join(keys, ", "), func(ctx context.Context) error {
		id, _ := s.ID()
		if err := leaseTells(ctx, s, id, raw); err != nil {
			return err
		}
		for _, resource := range e.resources {
			gr := schema.ParseGroupResource(resource)
			if own, ok := agree.Of(e.c.Reports(gr), id); !ok || own.Encoding.Seal() != want {
				return fmt.Errorf("it reports %s of %s", own.Encoding, resource)
			}
		}
		return nil
	})
}

func (e *encrypted) encodings() map[schema.GroupResource]agree.Encoding {
	return map[schema.GroupResource]agree.Encoding{secrets: "v1", widgets: widgetEncoding("v1")}
}

// wantKey waits until everything is settled and fails unless all is encrypted with the key.
func (e *encrypted) wantKey(key string, atLeast int) {
	e.t.Helper()
	e.t.Logf("settled %v later", e.c.WaitSettled().Round(time.Millisecond))
	for _, resource := range e.resources {
		gr := schema.ParseGroupResource(resource)
		wantEncoding(e.t, e.c, gr, e.encodings()[gr].Sealed(sealOf(e.t, key)), atLeast)
	}
}

// keys returns what the command reports about a key. At the revision at which it has counted,
// the command must not call a key removable that a value uses.
func (e *encrypted) keys(key string) use.Key {
	e.t.Helper()
	result := cluster.Command(e.t, "keys", "--etcd-servers", e.c.Endpoint, "-o", "json")
	var report use.Report
	if err := json.Unmarshal([]byte(result.Stdout), &report); err != nil || result.Code != 0 {
		e.t.Fatalf("keys: exit %d: %s: %v", result.Code, result.Stderr, err)
	}
	i := slices.IndexFunc(report.Keys, func(k use.Key) bool { return k.Name == key })
	if i < 0 {
		e.t.Fatalf("nothing is said of %s: %s", key, result.Stdout)
	}
	use := report.Keys[i]
	e.c.Ledger(func(l *audit.Ledger) {
		for _, resource := range e.resources {
			for encoding := range l.StoredSince(schema.ParseGroupResource(resource), report.Revision) {
				if use.Removable && usesKey(encoding, key) {
					e.t.Errorf("%s is called removable at revision %d, when %s was still in %s: %+v", key, report.Revision, resource, encoding, use)
				}
			}
		}
	})
	return use
}

// usesKey says whether the encoding has the key that the command knows by this name.
func usesKey(encoding agree.Encoding, key string) bool {
	seal := encoding.Seal()
	return string(seal) == key || seal.Key() == key || seal == "" && key == identity
}

// wantNeeded fails if the command calls a key removable. The audit checks that no StorageState
// does so too early.
func (e *encrypted) wantNeeded(key string) {
	e.t.Helper()
	if use := e.keys(key); use.Removable {
		e.t.Errorf("%s is called removable: %+v", key, use)
	}
	result := cluster.Command(e.t, "keys", "--etcd-servers", e.c.Endpoint, key)
	if result.Code != 2 || !strings.Contains(result.Stderr, "not safe to remove") || strings.Count(result.Stderr, "\n") != 1 {
		e.t.Errorf("keys %s: exit %d: %s", key, result.Code, result.Stderr)
	}
}

// wantRemovable waits until the command and every StorageState call the key removable.
func (e *encrypted) wantRemovable(key string) {
	e.t.Helper()
	seal := string(sealOf(e.t, key))
	if key == identity {
		seal = identity
	}
	name := key // this name does not contain the key's secret
	if strings.HasPrefix(key, kmsPrefix) {
		name = seal // the command does not print the ID of a plugin's key
	}
	cluster.Eventually(e.t, 60*time.Second, key+" is removable", func(ctx context.Context) error {
		if use := e.keys(name); !use.Removable {
			return fmt.Errorf("%+v", use)
		}
		for _, resource := range e.resources {
			state := &migrationv1alpha1.StorageState{}
			if err := e.servers[0].Objects().Get(ctx, client.ObjectKey{Name: migrationv1alpha1.StateName(schema.ParseGroupResource(resource))}, state); err != nil {
				return err
			}
			if state.Status.Encryption == nil || !slices.Contains(state.Status.Encryption.RemovableKeys, seal) {
				return fmt.Errorf("the state of %s says %+v", resource, state.Status.Encryption)
			}
		}
		return nil
	})
	if result := cluster.Command(e.t, "keys", "--etcd-servers", e.c.Endpoint, name); result.Code != 0 {
		e.t.Errorf("keys %s: exit %d: %s", key, result.Code, result.Stderr)
	}
}

// wantNoneLost stops clients, none of whose writes may have failed, and checks the stored values.
func (e *encrypted) wantNoneLost(writes *load.Load, atLeast int) {
	e.t.Helper()
	wantNoFailures(e.t, e.c, writes)
	e.wantReadable(atLeast)
	e.c.Check()
}

// wantReadable lists all resources, from etcd, through every server.
func (e *encrypted) wantReadable(atLeast int) {
	e.t.Helper()
	for _, s := range e.servers {
		for _, resource := range e.resources {
			list, err := s.Dynamic().Resource(schema.ParseGroupResource(resource).WithVersion("v1")).List(e.t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) < atLeast {
				e.t.Errorf("%s lists %d of %s: %v", s.Name, len(list.Items), resource, err)
			}
		}
	}
}

// TestKeyRotation: a key is rotated on one server after the other while clients write: it is added behind
// the old one on all servers, then put first, and at last the old one is removed. No client sees an error.
func TestKeyRotation(t *testing.T) {
	resources := []string{secrets.Resource, widgets.String()}
	// A server that cannot renew its Lease in time refuses writes, which a busy machine must not lead to here.
	e := newEncryptedWith(t, "--identity-lease-duration=15s", resources, []string{"one", "two"}, keyA, identity)
	createWidgets(t, "v1", e.servers...)
	for _, r := range []load.Resource{loadedSecrets(), widgetsV1} {
		fill(t, e.servers[0], r, stored)
	}
	e.wantKey(keyA, stored)
	writes := e.c.Load(load.Config{Resources: []load.Resource{loadedSecrets(), widgetsV1}, Pause: 50 * time.Millisecond}, e.servers...)
	for _, s := range e.servers {
		e.load(s, keyA, keyB, identity)
	}
	e.load(e.servers[0], keyB, keyA, identity)
	e.wantNeeded(keyA)
	cluster.Eventually(t, time.Minute, "both servers take writes", acked(writes, e.servers))
	e.wantNeeded(keyA)
	e.load(e.servers[1], keyB, keyA, identity)
	e.wantKey(keyB, stored)
	e.wantRemovable(keyA)
	for _, s := range e.servers {
		e.load(s, keyB)
	}
	cluster.Eventually(t, time.Minute, "both servers take writes", acked(writes, e.servers))
	e.wantNoneLost(writes, stored)

	// A server that starts with an old configuration would write values that no other server
	// can read any more, and so would a server that changes to a key before the others have it.
	e.configure("stale", keyA, keyB)
	stale := e.c.NewServer("stale", cluster.Options{Args: e.args("stale")})
	stale.Start()
	if result, ended := stale.Wait(60 * time.Second); !ended || result.Code != 1 || !strings.Contains(result.Stderr, "cannot read secrets that are encrypted with "+keyA) {
		t.Errorf("a stale configuration: exit %d, ended %v: %s", result.Code, ended, result.Stderr)
	}
	e.configure("two", keyC, keyB)
	cluster.Eventually(t, time.Minute, "a hasty configuration is refused", func(context.Context) error {
		if !strings.Contains(e.servers[1].Output(), "that are encrypted with "+keyC+": have every server load the key behind its first one") {
			return errors.New("nothing is said of it")
		}
		return nil
	})
	e.load(e.servers[1], keyB) // otherwise it would change to key C as soon as it is alone

	// A configuration that would make objects unreadable, here one without their key, is
	// refused by a server that runs and by one that starts.
	e.configure("one", identity, keyC)
	cluster.Eventually(t, time.Minute, "the configuration is refused", func(context.Context) error {
		if !strings.Contains(e.servers[0].Output(), "The encryption configuration was not loaded") {
			return errors.New("nothing is said of it")
		}
		return nil
	})
	e.wantReadable(stored)
	e.servers[0].Terminate()
	e.servers[0].Start()
	result, ended := e.servers[0].Wait(60 * time.Second)
	if !ended || result.Code != 1 || !strings.Contains(result.Stderr, "secrets encrypted with "+keyB) || !strings.Contains(result.Stderr, widgets.String()+" encrypted with "+keyB) {
		t.Errorf("exit %d, ended %v: %s", result.Code, ended, result.Stderr)
	}
}
