package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/envelope"
	kmsv1 "k8s.io/kms/apis/v1beta1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/e2e/vault"
)

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
