package server

import (
	"bytes"
	"context"
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

	"google.golang.org/protobuf/proto"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
	"k8s.io/kms/pkg/service"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/rewrite"
)

var (
	secretsResource = schema.GroupResource{Resource: "secrets"}
	widgetsResource = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// provide is a provider of an encryption configuration: "aescbc name" or "identity".
func provide(what string) string {
	provider, name, _ := strings.Cut(what, " ")
	if name == "" {
		return "      - " + provider + ": {}\n"
	}
	secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(name+provider, 32)[:32]))
	return fmt.Sprintf("      - %s: {keys: [{name: %q, secret: %s}]}\n", provider, name, secret)
}

// encryptionYAML is a configuration with an entry for each list of "resource,...: provider, ...".
func encryptionYAML(entries ...string) string {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n"
	for _, entry := range entries {
		resources, providers, _ := strings.Cut(entry, ": ")
		text += fmt.Sprintf("  - resources: [%q]\n    providers:\n", strings.ReplaceAll(resources, ",", `","`))
		for _, p := range strings.Split(providers, ", ") {
			text += provide(p)
		}
	}
	return text
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)); err != nil {
		t.Fatal(err)
	}
}

func keysFrom(t *testing.T, text string) *keys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, path, text)
	k, err := loadKeys(t.Context(), path, true, "test")
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// What a configuration says of a resource is what the library does with it.
func TestKeysOfResources(t *testing.T) {
	k := keysFrom(t, encryptionYAML("secrets: aescbc a, secretbox b", "*.example.com: aesgcm c, identity", "*.*: identity, aescbc a"))
	for gr, want := range map[schema.GroupResource]string{
		secretsResource:          "aescbc:v1:a",
		widgetsResource:          "aesgcm:v1:c",
		{Resource: "configmaps"}: "",
	} {
		out, seal, _, err := k.seal(t.Context(), gr, []byte("text"), value.DefaultContext("key"))
		if err != nil || seal != k.writes(gr) || seal.Key() != want {
			t.Fatalf("%s is sealed with %q, %q is written, want %q: %v", gr, seal, k.writes(gr), want, err)
		}
		if said, _ := rewrite.Encryption(out); said != want {
			t.Errorf("a value of %s says %q, want %q", gr, said, want)
		}
		if got := k.sealOf(gr, out); got != seal {
			t.Errorf("a value of %s is sealed with %q, and seems to be with %q", gr, seal, got)
		}
	}
	if !k.reads(secretsResource, k.of(secretsResource)[1].seal) || k.reads(secretsResource, "") || k.reads(widgetsResource, k.writes(secretsResource)) {
		t.Error("the keys of resources are mixed up")
	}
	other := keysFrom(t, strings.Replace(encryptionYAML("secrets: aescbc a"), "YWFl", "YWFm", 1))
	if a, b := k.writes(secretsResource), other.writes(secretsResource); a == b || a.Key() != b.Key() {
		t.Errorf("two secrets of one name are %s and %s", a, b)
	}
}

// A configuration that is wrong is refused with one line.
func TestBadEncryptionConfig(t *testing.T) {
	for name, text := range map[string]string{
		"":                           "",
		"empty":                      "\n\n",
		"not YAML":                   "a: b: c\n\t- d",
		"another kind":               "apiVersion: v1\nkind: ConfigMap\n",
		"an unknown field":           encryptionYAML("secrets: aescbc a") + "extra: 1\n",
		"no provider":                "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: [{resources: [secrets], providers: []}]\n",
		"a short secret":             strings.Replace(encryptionYAML("secrets: aescbc a"), "secret: ", "secret: YQ== #", 1),
		"a masked resource":          encryptionYAML("*.*: aescbc a", "secrets: identity"),
		"a name with a colon":        encryptionYAML("secrets: aescbc a:b"),
		"a name with a comma":        encryptionYAML("secrets: aescbc a,b"),
		"two secrets with one name":  encryptionYAML("secrets: aescbc a") + strings.Replace(provide("aescbc a"), "YWFl", "YWFm", 1),
		"one name in two resources'": encryptionYAML("secrets: aescbc a") + strings.Replace(strings.Split(encryptionYAML("configmaps: aescbc a"), "resources:\n")[1], "YWFl", "YWFm", 1),
	} {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		if name != "" {
			writeFile(t, path, text)
		}
		o := NewOptions()
		o.Etcd.EncryptionProviderConfigFilepath = path
		if _, err := newKeyring(t.Context(), o); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "--encryption-provider-config "+path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// reloading is a keyring with key a for secrets, the file that it follows, and its options.
func reloading(t *testing.T) (*keyring, string, *Options) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, path, encryptionYAML("secrets: aescbc a"))
	o := NewOptions()
	o.Etcd.EncryptionProviderConfigFilepath, o.Etcd.EncryptionProviderConfigAutomaticReload = path, true
	r, err := newKeyring(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r, path, o
}

// A changed file is loaded and told; one that is wrong, or refused, leaves all as it was.
func TestReload(t *testing.T) {
	r, path, _ := reloading(t)
	var told []string
	r.listen(func(e member.Encryption) {
		for gr := range unfenced {
			if e.Seal(gr) != "" {
				t.Errorf("%s is said to be encrypted", gr)
			}
		}
		told = append(told, e.Seal(secretsResource).Key())
	})
	transformer := r.TransformerForResource(secretsResource)
	sealed, err := transformer.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k"))
	if err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("refused")
	for _, step := range []struct {
		text    string
		check   error
		changed bool
		fails   bool
	}{
		{text: encryptionYAML("secrets: aescbc a")},
		{text: encryptionYAML("secrets: secretbox b, aescbc a"), check: refusal, fails: true},
		{text: "nonsense", fails: true},
		{text: encryptionYAML("secrets: secretbox b, aescbc a"), changed: true},
		{text: encryptionYAML("secrets: secretbox b, aescbc a")},
	} {
		writeFile(t, path, step.text)
		before := r.keys()
		r.check = func(context.Context, *keys, *keys) error { return step.check }
		changed, err := r.follow(t.Context())
		if changed != step.changed || (err != nil) != step.fails || (r.keys() != before) != step.changed {
			t.Errorf("%q: changed %v, %v", step.text, changed, err)
		}
	}
	if got := strings.Join(told, " "); got != "aescbc:v1:a secretbox:v1:b" {
		t.Errorf("told %s", got)
	}
	plain, stale, err := transformer.TransformFromStorage(t.Context(), sealed, value.DefaultContext("k"))
	if err != nil || string(plain) != "text" || !stale {
		t.Errorf("got %q, stale %v, %v", plain, stale, err)
	}
	if _, err := r.pin(secretsResource, before(t, "aescbc a")); err == nil {
		t.Error("a rewrite with the old key is possible")
	}
	pin, err := r.pin(secretsResource, r.keys().writes(secretsResource))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); err != nil || !bytes.HasPrefix(out, []byte("k8s:enc:secretbox:v1:b:")) {
		t.Errorf("got %q, %v", out, err)
	}
}

// A rewrite that began before a configuration was loaded goes on with that, since what the one
// before runs is ended.
func TestPinAcrossReload(t *testing.T) {
	r := &keyring{}
	r.current.Store(keysFrom(t, encryptionYAML("secrets: secretbox b, aescbc a")))
	pin, err := r.pin(secretsResource, r.keys().writes(secretsResource))
	if err != nil {
		t.Fatal(err)
	}
	r.keys().transformers = nil // whoever asks it panics
	r.current.Store(keysFrom(t, encryptionYAML("secrets: secretbox b, aescbc a", "configmaps: aescbc a")))
	sealed, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k"))
	if err != nil {
		t.Fatal(err)
	}
	if plain, stale, err := pin.TransformFromStorage(t.Context(), sealed, value.DefaultContext("k")); err != nil || stale || string(plain) != "text" {
		t.Errorf("got %q, stale %v, %v", plain, stale, err)
	}
	r.current.Store(keysFrom(t, encryptionYAML("secrets: identity, secretbox b")))
	if _, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); !errors.Is(err, rewrite.ErrKeysUnavailable) {
		t.Errorf("another key writes: %v", err)
	}
}

// A refusal for which much was read is not looked at again at once, but a changed file is, and
// so is one that was not refused.
func TestLongCheck(t *testing.T) {
	r, path, _ := reloading(t)
	now, checks := time.Now(), 0
	r.now = func() time.Time { return now }
	r.check = func(context.Context, *keys, *keys) error {
		checks++
		now = now.Add(longCheck)
		return errors.New("refused")
	}
	for i, step := range []struct {
		text    string
		after   time.Duration
		checked bool
	}{
		{"secrets: secretbox b", 0, true},
		{"secrets: secretbox b", (checkRest - 1) * longCheck, false},
		{"secrets: identity", 0, true},
		{"secrets: identity", checkRest * longCheck, true},
	} {
		now = now.Add(step.after)
		writeFile(t, path, encryptionYAML(step.text))
		before := checks
		if changed, err := r.follow(t.Context()); changed || (err != nil) != step.checked || (checks > before) != step.checked {
			t.Errorf("look %d: changed %v, %v, %d checks", i, changed, err, checks-before)
		}
	}
	took := longCheck // the first time
	r.check = func(context.Context, *keys, *keys) error {
		now, took = now.Add(took), 0
		return nil
	}
	for _, text := range []string{"secrets: secretbox b, aescbc a", "secrets: aescbc a, secretbox b", "secrets: secretbox b, aescbc a"} {
		writeFile(t, path, encryptionYAML(text))
		if changed, err := r.follow(t.Context()); !changed || err != nil {
			t.Errorf("%s: changed %v, %v", text, changed, err)
		}
	}
}

// A plugin's name has to be one that stored values can be told by.
func TestKMSNames(t *testing.T) {
	for name, ok := range map[string]bool{"my-kms": true, "my kms": false, "schlüssel": false} {
		path := filepath.Join(t.TempDir(), "encryption.yaml")
		writeFile(t, path, strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", fmt.Sprintf(`kms: {apiVersion: v2, name: %q, endpoint: "unix:///nowhere/s"}`, name), 1))
		if _, err := loadKeys(t.Context(), path, false, "test"); (err == nil) != ok || err != nil && !strings.Contains(err.Error(), "the KMS plugin") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func before(t *testing.T, provider string) agree.Seal {
	t.Helper()
	return keysFrom(t, encryptionYAML("secrets: "+provider)).writes(secretsResource)
}

// kms is a plugin whose key does nothing.
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

// The key that a KMS plugin uses is a part of what a value is sealed with.
func TestKMSKeys(t *testing.T) {
	var plugins []*service.GRPCService
	load := func(key string) *keys {
		dir, err := os.MkdirTemp("", "kms") // short enough for a socket
		if err != nil {
			t.Fatal(err)
		}
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
	sealed := map[*keys][]byte{}
	for _, k := range []*keys{one, two} {
		if err := healthy(t.Context(), k); err != nil {
			t.Fatal(err)
		}
		if !k.probe(t.Context()) || k.probe(t.Context()) {
			t.Error("the plugin's key is not told once")
		}
		out, seal, rotated, err := k.seal(t.Context(), secretsResource, []byte("text"), value.DefaultContext("k"))
		if err != nil || rotated || seal.Key() != "kms:v2:p" || seal != k.writes(secretsResource) || k.sealOf(secretsResource, out) != seal {
			t.Fatalf("sealed with %q, rotated %v, %v", seal, rotated, err)
		}
		sealed[k] = out
	}
	if one.writes(secretsResource) == two.writes(secretsResource) {
		t.Error("two keys of a plugin have one seal")
	}
	if !one.reads(secretsResource, two.writes(secretsResource)) {
		t.Error("a plugin's other key seems to be unreadable")
	}
	before := one.writes(secretsResource)
	if seal, rotated := one.of(secretsResource)[0].sealed(sealed[two]); !rotated || seal == before || one.writes(secretsResource) != two.writes(secretsResource) {
		t.Errorf("a key that was rotated: %q, %v", seal, rotated)
	}

	// A plugin that has turned back to its first key, which only the library has noticed: no value
	// of that key is what a rewrite to the second one makes, and none is at fault.
	r := &keyring{}
	r.current.Store(one)
	second, err := r.pin(secretsResource, two.writes(secretsResource))
	if err != nil {
		t.Fatal(err)
	}
	if _, stale, err := second.TransformFromStorage(t.Context(), sealed[one], value.DefaultContext("k")); err != nil || !stale {
		t.Errorf("a value of the other key: stale %v, %v", stale, err)
	}
	if _, err := second.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); !errors.Is(err, rewrite.ErrKeysUnavailable) {
		t.Errorf("with the other key: %v", err)
	}

	// What an error says of a plugin that is away says nothing of the value.
	sealedByOne := sealed[one]
	plugins[0].Close()
	for name, k := range map[string]*keys{"gone": two, "never reached": keysFrom(t, strings.Replace(encryptionYAML("secrets: identity"), "identity: {}", `kms: {apiVersion: v2, name: p, endpoint: "unix:///nowhere/s"}`, 1))} {
		if name == "gone" {
			plugins[1].Close()
		}
		r.current.Store(k)
		pin, err := r.pin(secretsResource, k.writes(secretsResource))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := pin.TransformFromStorage(t.Context(), sealedByOne, value.DefaultContext("k")); !errors.Is(err, rewrite.ErrKeysUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		if _, _, err := pin.TransformFromStorage(t.Context(), []byte("k8s:enc:kms:v2:p:nonsense"), value.DefaultContext("k")); err == nil || errors.Is(err, rewrite.ErrKeysUnavailable) {
			t.Errorf("%s: a damaged value: %v", name, err)
		}
		if known := k.writes(secretsResource).Known(); known != (name == "gone") {
			t.Errorf("%s: its key is known: %v", name, known)
		}
	}
}

// A server does not start, or reload, with keys that do not open what is stored.
func TestUnreadableStorage(t *testing.T) {
	etcd := startStored(t)
	old := before(t, "aescbc a")
	inOld := agree.Encoding("v1").Sealed(old)
	values := func(stored ...agree.Encoding) map[string]string {
		v := agreed(t)
		v[stateKey(secretsResource)] = stateOf(t, secretsResource, 1, stored...)
		v[versionKey(secretsResource)] = versionOf(t, secretsResource, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{stored[0]: 1}})
		return v
	}
	const sealedA, plain = "k8s:enc:aescbc:v1:a:xxxx", `{"apiVersion":"v1","kind":"Secret"}`
	for name, test := range map[string]struct {
		stored  []agree.Encoding
		value   string
		config  string
		refused string
	}{
		"the key is there":          {[]agree.Encoding{inOld}, sealedA, "secrets: secretbox b, aescbc a", ""},
		"the key is missing":        {[]agree.Encoding{inOld}, sealedA, "secrets: secretbox b", "1 of secrets encrypted with aescbc:v1:a"},
		"missing, identity first":   {[]agree.Encoding{inOld}, sealedA, "secrets: identity, secretbox b", "1 of secrets encrypted with aescbc:v1:a"},
		"there is no configuration": {[]agree.Encoding{inOld}, sealedA, "", "1 of secrets encrypted with aescbc:v1:a"},
		"no value needs the key":    {[]agree.Encoding{inOld}, "", "secrets: secretbox b", ""},
		"plain and no identity":     {[]agree.Encoding{"v1"}, plain, "secrets: aescbc a", "1 of secrets not encrypted"},
		"plain and identity":        {[]agree.Encoding{"v1"}, plain, "secrets: aescbc a, identity", ""},
		"unknown":                   {[]agree.Encoding{evolve.Unknown}, sealedA, "secrets: identity", "1 of secrets encrypted with aescbc:v1:a"},
		"an unnamed key":            {[]agree.Encoding{evolve.Unknown}, "k8s:enc:kms:v1:my kms:xxxx", "secrets: identity", "1 of secrets encrypted with ?"},
		"a secret of its name":      {[]agree.Encoding{agree.Encoding("v1").Sealed(old + "0")}, sealedA, "secrets: aescbc a", "1 of secrets encrypted with aescbc:v1:a"},
	} {
		t.Run(name, func(t *testing.T) {
			v := values(test.stored...)
			if test.value != "" {
				v["secrets/default/x"] = test.value
			}
			prefix, k := etcd.fill(t, v), &keys{}
			if test.config != "" {
				k = keysFrom(t, encryptionYAML(test.config))
			}
			err := checkStorage(t.Context(), rewrite.NewEtcd(etcd.Client), prefix, testPlan(t), k, false)
			if (err != nil) != (test.refused != "") || err != nil && (!strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// A configuration that opens all that the present one opens takes its place whatever is stored;
// another one only if all values could be read to find out that none needs what it lacks.
func TestCheckReload(t *testing.T) {
	etcd := startStored(t)
	reader := rewrite.NewEtcd(etcd.Client)
	present := keysFrom(t, encryptionYAML("secrets: aescbc a, identity"))
	const sealedA, sealedLost = "k8s:enc:aescbc:v1:a:xxxx", "k8s:enc:aescbc:v1:lost:xxxx"
	for name, test := range map[string]struct {
		value, config, refused string
		slow                   bool
	}{
		"it has a key more":               {sealedA, "secrets: aescbc a, secretbox b, identity", "", false},
		"it has a key more, slowly":       {sealedA, "secrets: aescbc a, secretbox b, identity", "", true},
		"it lacks one that is needed":     {sealedLost + " " + sealedA, "secrets: identity, secretbox b", "a", false},
		"it lacks what nothing needs":     {sealedA, "secrets: aescbc a", "", false},
		"it lacks something, slowly":      {sealedA, "secrets: aescbc a", "could not all be read", true},
		"what is lost already stays lost": {sealedLost, "secrets: aescbc a", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := agreed(t)
			v[stateKey(secretsResource)] = stateOf(t, secretsResource, 1, evolve.Unknown)
			v[versionKey(secretsResource)] = versionOf(t, secretsResource, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{evolve.Unknown: 1}})
			for i, text := range strings.Fields(test.value) {
				v[fmt.Sprint("secrets/default/", i)] = text
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			prefix := etcd.fill(t, v)
			var r rewrite.Reader = reader
			if test.slow {
				r = endless{Reader: reader, under: ResourcePrefix(prefix, secretsResource, false), cancel: cancel}
			}
			err := checkReload(ctx, r, prefix, testPlan(t).Target().Resources(), keysFrom(t, encryptionYAML(test.config)), present)
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// endless gives no values under a prefix for as long as anybody waits.
type endless struct {
	rewrite.Reader
	under  string
	cancel context.CancelFunc
}

// Range implements rewrite.Reader.
func (r endless) Range(ctx context.Context, start, end string, limit, revision int64) (rewrite.Page, error) {
	if strings.HasPrefix(start, r.under) {
		r.cancel()
		return rewrite.Page{}, context.Cause(ctx)
	}
	return r.Reader.Range(ctx, start, end, limit, revision)
}

// A key is removable only if no value has it, nobody reports it and everybody reports.
func TestJudgeKeys(t *testing.T) {
	etcd := startStored(t)
	a, b := agree.Encoding("v1").Sealed("aescbc:v1:a:1"), agree.Encoding("v1").Sealed("aescbc:v1:b:2")
	history := agree.History{Epoch: 2, Last: map[agree.Encoding]int64{a: 1, b: 2}}
	for name, test := range map[string]struct {
		add  map[string]string
		want string // of key a
	}{
		"no value":       {nil, ""},
		"a value":        {map[string]string{"secrets/default/x": "k8s:enc:aescbc:v1:a:xx"}, "1 values still use it: 1 of secrets"},
		"another's":      {map[string]string{"configmaps/default/x": "k8s:enc:aescbc:v1:a:xx"}, "1 values still use it: 1 of configmaps"},
		"an unnamed key": {map[string]string{"configmaps/default/x": "k8s:enc:kms:v1:my kms:xx"}, "nobody can tell: 1 of configmaps are encrypted and do not tell with what"},
		"damaged report": {map[string]string{versionKey(widgetsResource): "nonsense"}, "nobody can tell: the StorageVersion of widgets.example.com cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			v := agreed(t)
			v[versionKey(secretsResource)] = versionOf(t, secretsResource, history)
			v["secrets/default/y"] = "k8s:enc:aescbc:v1:b:xx"
			for key, text := range test.add {
				v[key] = text
			}
			report, err := ReadKeys(t.Context(), rewrite.NewEtcd(etcd.Client), etcd.fill(t, v))
			report.Keys = slices.DeleteFunc(report.Keys, func(u KeyUse) bool { return u.Key == rewrite.Unnamed && !u.Removable })
			if err != nil || len(report.Keys) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			if got := report.Keys[0]; got.Key != "aescbc:v1:a" || got.Removable != (test.want == "") || test.want != "" && got.Reason != test.want {
				t.Errorf("got %+v, want %q", got, test.want)
			}
			if report.Keys[1].Removable {
				t.Errorf("got %+v", report.Keys[1])
			}
		})
	}
}

// Of a KMS plugin each of its keys is judged by itself. While a server does not know which
// one it uses, none is removable.
func TestJudgeKMSKeys(t *testing.T) {
	etcd := startStored(t)
	sealed := func(id string) string {
		raw, err := proto.Marshal(&kmstypes.EncryptedObject{EncryptedData: []byte("x"), KeyID: id})
		if err != nil {
			t.Fatal(err)
		}
		return "k8s:enc:kms:v2:p:" + string(raw)
	}
	of := func(id string) agree.Encoding {
		name, _ := rewrite.Encryption([]byte(sealed(id)))
		return agree.Encoding("v1").Sealed(agree.Seal(name))
	}
	old, now, unknown := of("old"), of("now"), agree.Encoding("v1").Sealed("kms:v2:p:"+agree.UnknownKey)
	history := agree.History{Epoch: 3, Last: map[agree.Encoding]int64{old: 1, now: 3, unknown: 2}}
	report := func(server agree.ServerID, e agree.Encoding) agree.Report {
		return agree.Report{Server: server, Encoding: e, Decodable: []string{"v1"}}
	}
	const key = "secrets/default/x"
	for name, test := range map[string]struct {
		value   string
		reports []agree.Report
		want    string
	}{
		"no value":       {sealed("now"), []agree.Report{report("a", now), report("b", now)}, ""},
		"a value":        {sealed("old"), []agree.Report{report("a", now), report("b", now)}, "1 values still use it: 1 of secrets"},
		"a writer":       {sealed("now"), []agree.Report{report("a", now), report("b", old)}, "no value uses it, and 1 servers write with it"},
		"no answer":      {sealed("now"), []agree.Report{report("a", now), report("b", unknown)}, "nobody can tell: b has not learned from its KMS plugin with which key it encrypts secrets"},
		"no answer, all": {sealed("now"), []agree.Report{report("a", unknown), report("b", unknown)}, "nobody can tell: a has not learned from its KMS plugin with which key it encrypts secrets"},
	} {
		t.Run(name, func(t *testing.T) {
			v := agreed(t)
			v[versionKey(secretsResource)] = versionOf(t, secretsResource, history, test.reports...)
			v[key] = test.value
			report, err := ReadKeys(t.Context(), rewrite.NewEtcd(etcd.Client), etcd.fill(t, v))
			if err != nil || len(report.Keys) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			i := slices.IndexFunc(report.Keys, func(k KeyUse) bool { return k.Key == string(old.Seal()) })
			if i < 0 || report.Keys[i].Removable != (test.want == "") || test.want != "" && report.Keys[i].Reason != test.want {
				t.Errorf("got %+v, want %q", report.Keys, test.want)
			}
			if now := report.Keys[1-i]; now.Removable {
				t.Errorf("got %+v", now)
			}
		})
	}
}

// A key is not put first before every server that lives reads it.
func TestUnreadableByOthers(t *testing.T) {
	etcd := startStored(t)
	a := keysFrom(t, encryptionYAML("secrets: aescbc a, identity", "*.example.com: secretbox b"))
	lease := func(name, reads string) string {
		l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
		l.Name, l.Namespace = name, storageversion.IdentityNamespace
		l.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
		if reads != "" {
			l.Annotations = map[string]string{storageversion.EncryptionKeysAnnotation: reads}
		}
		l.Spec.LeaseDurationSeconds = new(int32)
		*l.Spec.LeaseDurationSeconds = 1
		raw, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	behind := keysFrom(t, encryptionYAML("secrets: identity, aescbc a", "widgets.example.com: identity, secretbox b", "*.example.com: secretbox b"))
	for name, test := range map[string]struct {
		keys    *keys
		reads   string
		refused string
	}{
		"the same":            {a, a.reading(), ""},
		"behind another":      {a, behind.reading(), ""},
		"without":             {a, "", "secrets that are encrypted with aescbc:v1:a"},
		"another secret":      {a, strings.ReplaceAll(a.reading(), string(a.writes(secretsResource)), "aescbc:v1:a:0"), "secrets that are encrypted with aescbc:v1:a"},
		"unreadable":          {a, "{", "s1 cannot read "},
		"plain":               {&keys{}, "", ""},
		"plain without":       {&keys{}, keysFrom(t, encryptionYAML("secrets: aescbc a")).reading(), "secrets that are not encrypted"},
		"a plugin's next key": {&keys{providers: map[schema.GroupResource][]*provider{secretsResource: {{seal: "kms:v2:p:1"}}}}, `{"secrets":["kms:v2:p:"]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := etcd.fill(t, map[string]string{"leases/kube-system/s1": lease("s1", test.reads), "leases/kube-system/other": `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`})
			known := testPlan(t).Target().Resources()
			check := func(self agree.ServerID, poll time.Duration) error {
				return refuseUnreadableByOthers(t.Context(), rewrite.NewEtcd(etcd.Client), prefix, known, test.keys, self, poll)
			}
			if err := check("", 0); (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), "s1 cannot read") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
			if err := check("s1", 0); err != nil {
				t.Errorf("it is its own: %v", err)
			}
			// A server that does not renew its Lease while that lasts is dead.
			if err := check("", 20*time.Millisecond); err != nil {
				t.Errorf("a Lease that nobody renews: %v", err)
			}
		})
	}
}
