package kube_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/vault"
)

const kmsSecrets = 100

// Two servers with a KMS plugin each, whose key turns in the KMS, one plugin after the other: the
// stored Secrets are encrypted anew when both have turned, and not before; then the old key can go.
func testKMS(t *testing.T) {
	c, remote := newControl(t), vault.NewVault()
	start := func(name, key string) (*apiserver, *vault.Plugin) {
		plugin := vault.Start(t, remote, key)
		file := c.write("kms-"+name+".yaml", "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n"+
			"  - kms: {apiVersion: v2, name: p, endpoint: 'unix://"+plugin.Path+"', timeout: 10s}\n  - identity: {}\n")
		return c.start(ours, name, "--encryption-provider-config="+file, "--encryption-provider-config-automatic-reload"), plugin
	}
	one, first := start("one", "old")
	two, second := start("two", "old")
	one.WaitReady()
	two.WaitReady()
	resource := schema.GroupResource{Resource: "secrets"}
	before := one.agreed(time.Minute, 2)[resource]
	if !strings.HasPrefix(string(before.Seal()), "kms:v2:p:") || before.Plain() != "v1" {
		t.Fatalf("Secrets are agreed to be stored as %s", before)
	}
	for i := range kmsSecrets {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s-%d", i)}}
		if _, err := one.Kube().CoreV1().Secrets(metav1.NamespaceDefault).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	one.migrated(time.Minute)
	c.sealedByKMS(t, map[string]int{"old": kmsSecrets})

	first.Turn("new")
	c.encryptsWith(one, "new")
	c.sealedByKMS(t, map[string]int{"old": kmsSecrets, "new": 1})
	second.Turn("new")
	eventually(t, 3*time.Minute, "another key is agreed on", func(ctx context.Context) error {
		two.asksItsPlugin(ctx)
		versions, err := one.storageVersions(ctx)
		if err != nil {
			return err
		}
		if now, ok := storageversion.Agreement(versions[resource]); !ok || now == before || !now.Seal().Known() {
			return fmt.Errorf("agreed is %q", now)
		}
		return nil
	})
	one.migrated(2 * time.Minute)
	c.sealedByKMS(t, map[string]int{"new": kmsSecrets + 1})

	remote.Destroy("old")
	three, _ := start("three", "new") // knows nothing but what it is told by the plugin
	three.WaitReady()
	list, err := three.Kube().CoreV1().Secrets(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != kmsSecrets+1 {
		t.Errorf("without the old key %d Secrets can be read, error %v", len(list.Items), err)
	}
}

// encryptsWith waits until the writes of a server are encrypted with a key. Of the Secrets that are
// written for that one stays.
func (c *control) encryptsWith(s *apiserver, key string) {
	c.t.Helper()
	secrets := s.Kube().CoreV1().Secrets(metav1.NamespaceDefault)
	eventually(c.t, 3*time.Minute, s.Name+" encrypts with the key "+key, func(ctx context.Context) error {
		s.asksItsPlugin(ctx)
		made, err := secrets.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "turned-"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		found, err := c.kmsKey(ctx, made.Name)
		if err == nil && found != key {
			err = errors.Join(fmt.Errorf("the key was %s", found), secrets.Delete(ctx, made.Name, metav1.DeleteOptions{}))
		}
		return err
	})
}

// asksItsPlugin has a server ask whether its plugin is well, and so for its key.
func (s *apiserver) asksItsPlugin(ctx context.Context) { _, _, _ = s.Get(ctx, "/readyz") }

// kmsKey is the ID of the plugin's key with which a Secret in the namespace default is stored.
func (c *control) kmsKey(ctx context.Context, name string) (string, error) {
	answer, err := c.Raw.Get(ctx, registry+"secrets/"+metav1.NamespaceDefault+"/"+name)
	if err != nil {
		return "", err
	}
	if len(answer.Kvs) != 1 {
		return "", fmt.Errorf("%s is not stored", name)
	}
	return kmsKeyOf(answer.Kvs[0].Value)
}

func kmsKeyOf(stored []byte) (string, error) {
	sealed, ok := strings.CutPrefix(string(stored), "k8s:enc:kms:v2:p:")
	if !ok {
		return "", fmt.Errorf("stored is %.30q", stored)
	}
	object := &kmstypes.EncryptedObject{}
	err := proto.Unmarshal([]byte(sealed), object)
	return object.KeyID, err
}

// sealedByKMS says whether so many Secrets in the namespace default are encrypted with these keys.
func (c *control) sealedByKMS(t *testing.T, want map[string]int) {
	t.Helper()
	answer, err := c.Raw.Get(t.Context(), registry+"secrets/"+metav1.NamespaceDefault+"/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, kv := range answer.Kvs {
		key, err := kmsKeyOf(kv.Value)
		if err != nil {
			t.Fatalf("%s: %v", kv.Key, err)
		}
		found[key]++
	}
	if fmt.Sprint(found) != fmt.Sprint(want) {
		t.Errorf("Secrets are stored with the keys %v, want %v", found, want)
	}
}
