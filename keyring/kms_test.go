package keyring

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	kmsv1 "k8s.io/kms/apis/v1beta1"
	"k8s.io/kms/pkg/service"

	"github.com/concord-dev/concord/agree"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// TestKMSNames: a KMS plugin with a name by which stored values could not be told apart is refused.
func TestKMSNames(t *testing.T) {
	for name, ok := range map[string]bool{"my-kms": true, "my kms": false, "schlüssel": false} {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		writeFile(t, path, strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", fmt.Sprintf(`kms: {apiVersion: v2, name: %q, endpoint: "unix:///nowhere/s"}`, name), 1))
		if _, err := loadKeys(t.Context(), path, false, "test"); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "the KMS plugin") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// kms is a KMS v2 plugin that does not really encrypt.
type kms struct{ key string }

func (k *kms) Status(context.Context) (*service.StatusResponse, error) {
	return &service.StatusResponse{Version: "v2", Healthz: "ok", KeyID: k.key}, nil
}

func (k *kms) Encrypt(_ context.Context, _ string, data []byte) (*service.EncryptResponse, error) {
	return &service.EncryptResponse{Ciphertext: append([]byte("c"), data...), KeyID: k.key}, nil
}

func (k *kms) Decrypt(_ context.Context, _ string, req *service.DecryptRequest) ([]byte, error) {
	return req.Ciphertext[1:], nil
}

// TestKMSKeys: the key id that a KMS v2 plugin uses is a part of the Seal of a value.
func TestKMSKeys(t *testing.T) {
	var plugins []*service.GRPCService
	load := func(key string) *Keys {
		dir, err := os.MkdirTemp("", "kms") // its path is short enough for a Unix socket
		must(t, err)
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		plugin := service.NewGRPCService(filepath.Join(dir, "s"), 5*time.Second, &kms{key: key})
		plugins = append(plugins, plugin)
		go func() { _ = plugin.ListenAndServe() }()
		t.Cleanup(plugin.Shutdown)
		for deadline := time.Now().Add(30 * time.Second); ; {
			if _, err := os.Stat(filepath.Join(dir, "s")); err == nil {
				break
			} else if time.Now().After(deadline) {
				t.Fatal(err)
			}
		}
		return keysFrom(t, strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", fmt.Sprintf("kms: {apiVersion: v2, name: p, endpoint: %q}", "unix://"+filepath.Join(dir, "s")), 1))
	}
	one, two := load("1"), load("2")
	sealed := map[*Keys][]byte{}
	for _, k := range []*Keys{one, two} {
		must(t, healthy(t.Context(), k))
		if !k.probe(t.Context()) || k.probe(t.Context()) {
			t.Error("the plugin's key is not told once")
		}
		out, seal, rotated, err := k.seal(t.Context(), secretsResource, []byte("text"), value.DefaultContext("k"))
		if err != nil || rotated || seal.Key() != "kms:v2:p" || seal != k.Writes(secretsResource) || k.SealOf(secretsResource, out) != seal {
			t.Fatalf("sealed with %q, rotated %v, %v", seal, rotated, err)
		}
		sealed[k] = out
	}
	if one.Writes(secretsResource) == two.Writes(secretsResource) {
		t.Error("two keys of a plugin have one seal")
	}
	if !one.reads(secretsResource, two.Writes(secretsResource)) {
		t.Error("a plugin's other key seems to be unreadable")
	}
	before := one.Writes(secretsResource)
	if seal, rotated := one.of(secretsResource)[0].sealed(sealed[two]); !rotated || seal == before || one.Writes(secretsResource) != two.Writes(secretsResource) {
		t.Errorf("a key that was rotated: %q, %v", seal, rotated)
	}

	// The plugin has returned to its first key, and only k8s.io/apiserver has noticed. A value with
	// that key counts as to be rewritten; a rewrite to the second key stops with
	// ErrKeysUnavailable, and no object fails.
	r := &Ring{}
	r.current.Store(one)
	second, err := r.Pin(secretsResource, two.Writes(secretsResource))
	must(t, err)
	if _, stale, err := second.TransformFromStorage(t.Context(), sealed[one], value.DefaultContext("k")); err != nil || !stale {
		t.Errorf("a value of the other key: stale %v, %v", stale, err)
	}
	if _, err := second.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); !errors.Is(err, migratestore.ErrKeysUnavailable) {
		t.Errorf("with the other key: %v", err)
	}

	// If the plugin does not answer, the error does not count against the value.
	sealedByOne := sealed[one]
	plugins[0].Close()
	for name, k := range map[string]*Keys{"gone": two, "never reached": keysFrom(t, strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", `kms: {apiVersion: v2, name: p, endpoint: "unix:///nowhere/s"}`, 1))} {
		if name == "gone" {
			plugins[1].Close()
		}
		r.current.Store(k)
		pin, err := r.Pin(secretsResource, k.Writes(secretsResource))
		must(t, err)
		if _, _, err := pin.TransformFromStorage(t.Context(), sealedByOne, value.DefaultContext("k")); !errors.Is(err, migratestore.ErrKeysUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := pin.TransformFromStorage(t.Context(), []byte("k8s:enc:kms:v2:p:nonsense"), value.DefaultContext("k")); err == nil || errors.Is(err, migratestore.ErrKeysUnavailable) {
			t.Errorf("%s: a damaged value: %v", name, err)
		}
		if known := k.Writes(secretsResource).Known(); known != (name == "gone") {
			t.Errorf("%s: its key is known: %v", name, known)
		}
	}
}

// kmsV1 is a KMS v1 plugin that does not really encrypt.
type kmsV1 struct {
	kmsv1.UnimplementedKeyManagementServiceServer
}

func (kmsV1) Version(context.Context, *kmsv1.VersionRequest) (*kmsv1.VersionResponse, error) {
	return &kmsv1.VersionResponse{Version: "v1beta1", RuntimeName: "test", RuntimeVersion: "1"}, nil
}

func (kmsV1) Encrypt(_ context.Context, r *kmsv1.EncryptRequest) (*kmsv1.EncryptResponse, error) {
	return &kmsv1.EncryptResponse{Cipher: append([]byte("c"), r.Plain...)}, nil
}

func (kmsV1) Decrypt(_ context.Context, r *kmsv1.DecryptRequest) (*kmsv1.DecryptResponse, error) {
	return &kmsv1.DecryptResponse{Plain: r.Cipher[1:]}, nil
}

// kmsV1YAML returns a configuration that encrypts secrets with a KMS v1 plugin at a socket.
func kmsV1YAML(socket string) string {
	return strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", fmt.Sprintf("kms: {apiVersion: v1, name: p, endpoint: %q, timeout: 100ms}", "unix://"+socket), 1)
}

// TestKMSv1: with the feature gate KMSv1, a KMS v1 plugin encrypts; all its keys have one name. If
// the plugin does not answer, the error does not count against the value.
func TestKMSv1(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, apiserverfeatures.KMSv1, true)
	dir, err := os.MkdirTemp("", "kms") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	must(t, err)
	plugin := grpc.NewServer()
	kmsv1.RegisterKeyManagementServiceServer(plugin, kmsV1{})
	go func() { _ = plugin.Serve(listener) }()
	t.Cleanup(plugin.Stop)

	k := keysFrom(t, kmsV1YAML(filepath.Join(dir, "s")))
	must(t, healthy(t.Context(), k))
	var out []byte
	var seal agree.Seal
	var rotated bool
	_ = wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		out, seal, rotated, err = k.seal(ctx, secretsResource, []byte("text"), value.DefaultContext("k"))
		return err == nil, nil // a busy machine may need more than the timeout of a call
	})
	if err != nil || rotated || seal != "kms:v1:p:" || seal.Key() != "kms:v1:p" || !seal.Known() || k.Writes(secretsResource) != seal || k.SealOf(secretsResource, out) != seal {
		t.Fatalf("sealed with %q, rotated %v, %v", seal, rotated, err)
	}
	if said, _ := migratestore.Encryption(out); said != seal.Key() || !k.reads(secretsResource, seal) || !k.readsKey(secretsResource, said) || k.probe(t.Context()) {
		t.Errorf("a value says %q", said)
	}
	r := &Ring{}
	r.current.Store(k)
	pin, err := r.Pin(secretsResource, seal)
	must(t, err)
	if plain, stale, err := pin.TransformFromStorage(t.Context(), out, value.DefaultContext("k")); err != nil || stale || string(plain) != "text" {
		t.Errorf("got %q, stale %v, %v", plain, stale, err)
	}

	plugin.Stop()
	for name, k := range map[string]*Keys{"gone": keysFrom(t, kmsV1YAML(filepath.Join(dir, "s"))), "gone, after it was reached": k, "never there": keysFrom(t, kmsV1YAML("/nowhere/s"))} {
		r.current.Store(k)
		pin, err := r.Pin(secretsResource, k.Writes(secretsResource))
		must(t, err)
		if _, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); !errors.Is(err, migratestore.ErrKeysUnavailable) {
			t.Errorf("%s: a write: %v", name, err)
		}
		_, _, err = pin.TransformFromStorage(t.Context(), out, value.DefaultContext("k"))
		if cached := strings.Contains(name, "reached"); cached != (err == nil) || !cached && !errors.Is(err, migratestore.ErrKeysUnavailable) {
			t.Errorf("%s: a read: %v", name, err)
		}
		if _, _, err := pin.TransformFromStorage(t.Context(), []byte("k8s:enc:kms:v1:p:nonsense"), value.DefaultContext("k")); err == nil || errors.Is(err, migratestore.ErrKeysUnavailable) {
			t.Errorf("%s: a damaged value: %v", name, err)
		}
	}
}

// TestKMSv1Names: two plugins with one name are refused, since a stored value would not say which
// of them it needs.
func TestKMSv1Names(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, apiserverfeatures.KMSv1, true)
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	for endpoint, same := range map[string]bool{"/nowhere/s": true, "/nowhere/else": false} {
		_, other, _ := strings.Cut(strings.Replace(kmsV1YAML(endpoint), "secrets", "configmaps", 1), "resources:\n")
		writeFile(t, path, kmsV1YAML("/nowhere/s")+other)
		_, err := loadKeys(t.Context(), path, false, "test")
		if refused := err != nil && strings.Contains(err.Error(), `two KMS plugins have the name "p"`); same != (err == nil) || !same && !refused {
			t.Errorf("at %s: %v", endpoint, err)
		}
	}
}

// TestKMSv1Off: without the feature gate, a KMS v1 plugin is refused at a start and at a reload,
// and the error names the gate.
func TestKMSv1Off(t *testing.T) {
	plugin := kmsV1YAML("/nowhere/s")
	running, path, c := reloading(t)
	before := running.Keys()
	for name, text := range map[string]string{
		"first":         plugin,
		"behind":        strings.Replace(encryptionYAML("secrets: aescbc a, identity"), "identity: {}", "kms: {apiVersion: v1, name: p, endpoint: \"unix:///nowhere/s\"}", 1),
		"of no version": strings.Replace(plugin, "apiVersion: v1, name", "name", 1),
	} {
		writeFile(t, path, text)
		_, starting := New(t.Context(), c)
		changed, reloading := running.Reload(t.Context())
		if changed || running.Keys() != before {
			t.Errorf("%s: it was loaded", name)
		}
		for _, err := range []error{starting, reloading} {
			if err == nil || !strings.Contains(err.Error(), "--feature-gates=KMSv1=true") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}
