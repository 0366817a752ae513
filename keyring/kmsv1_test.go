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

	"google.golang.org/grpc"
	apiserverfeatures "k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	kmsv1 "k8s.io/kms/apis/v1beta1"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// kmsV1 is a plugin of KMS v1 whose key does nothing.
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

// kmsV1YAML is a configuration with a plugin of KMS v1 at a socket, for secrets.
func kmsV1YAML(socket string) string {
	return strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", fmt.Sprintf("kms: {apiVersion: v1, name: p, endpoint: %q, timeout: 100ms}", "unix://"+socket), 1)
}

// With the feature KMSv1 a plugin of KMS v1 encrypts, all its keys under one name. The error of
// a plugin that is away says nothing of the value.
func TestKMSv1(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, apiserverfeatures.KMSv1, true)
	dir, err := os.MkdirTemp("", "kms") // short enough for a socket
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
	out, seal, rotated, err := k.seal(t.Context(), secretsResource, []byte("text"), value.DefaultContext("k"))
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

// Values of two plugins of one name would not tell which plugin they need.
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

// Without the feature a plugin of KMS v1 is refused by its name, at a start and at a reload.
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
			if err == nil || !strings.Contains(err.Error(), `KMS plugin "p"`) || !strings.Contains(err.Error(), "apiVersion v2") ||
				!strings.Contains(err.Error(), "--feature-gates=KMSv1=true") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: got %v", name, err)
			}
		}
	}
}
