package keyring

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/member"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/stored/storedtest"
)

var (
	secretsResource = schema.GroupResource{Resource: "secrets"}
	widgetsResource = schema.GroupResource{Group: "example.com", Resource: "widgets"}
)

// provide returns the YAML of one provider of an encryption configuration, from "aescbc name" or "identity".
func provide(what string) string {
	provider, name, _ := strings.Cut(what, " ")
	if name == "" {
		return "      - " + provider + ": {}\n"
	}
	secret := base64.StdEncoding.EncodeToString([]byte(strings.Repeat(name+provider, 32)[:32]))
	return fmt.Sprintf("      - %s: {keys: [{name: %q, secret: %s}]}\n", provider, name, secret)
}

// encryptionYAML returns an encryption configuration with an entry for each "resource,...: provider, ...".
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
	must(t, errors.Join(os.WriteFile(path+".next", []byte(text), 0o600), os.Rename(path+".next", path)))
}

func keysFrom(t *testing.T, text string) *Keys {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, path, text)
	k, err := loadKeys(t.Context(), path, true, "test")
	must(t, err)
	return k
}

// TestKeysOfResources: Keys names for each resource the key that k8s.io/apiserver encrypts it with.
func TestKeysOfResources(t *testing.T) {
	k := keysFrom(t, encryptionYAML("secrets: aescbc a, secretbox b", "*.example.com: aesgcm c, identity", "*.*: identity, aescbc a"))
	for gr, want := range map[schema.GroupResource]string{
		secretsResource:          "aescbc:v1:a",
		widgetsResource:          "aesgcm:v1:c",
		{Resource: "configmaps"}: "",
	} {
		out, seal, _, err := k.seal(t.Context(), gr, []byte("text"), value.DefaultContext("key"))
		if err != nil || seal != k.Writes(gr) || seal.Key() != want {
			t.Fatalf("%s is sealed with %q, %q is written, want %q: %v", gr, seal, k.Writes(gr), want, err)
		}
		if said, _ := migratestore.Encryption(out); said != want {
			t.Errorf("a value of %s says %q, want %q", gr, said, want)
		}
		if got := k.SealOf(gr, out); got != seal {
			t.Errorf("a value of %s is sealed with %q, and seems to be with %q", gr, seal, got)
		}
	}
	if !k.reads(secretsResource, k.of(secretsResource)[1].seal) || k.reads(secretsResource, "") || k.reads(widgetsResource, k.Writes(secretsResource)) {
		t.Error("the keys of resources are mixed up")
	}
	other := keysFrom(t, strings.Replace(encryptionYAML("secrets: aescbc a"), "YWFl", "YWFm", 1))
	if a, b := k.Writes(secretsResource), other.Writes(secretsResource); a == b || a.Key() != b.Key() {
		t.Errorf("two secrets of one name are %s and %s", a, b)
	}
}

// TestBadEncryptionConfig: a wrong configuration is refused with an error of one line.
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
		if _, err := New(t.Context(), Config{Path: path, Server: "test"}); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "--encryption-provider-config "+path) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// reloading returns a keyring with key a for secrets, the path of its file, and its Config.
func reloading(t *testing.T) (*Ring, string, Config) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	writeFile(t, path, encryptionYAML("secrets: aescbc a"))
	c := Config{Path: path, Reload: true, Server: "test"}
	r, err := New(t.Context(), c)
	must(t, err)
	return r, path, c
}

// TestReload: a changed file is loaded, and listeners are told. A file that is wrong, or refused, changes
// nothing.
func TestReload(t *testing.T) {
	r, path, _ := reloading(t)
	var told []string
	r.Listen(func(e member.Encryption) {
		for gr := range unfenced {
			if e.Seal(gr) != "" {
				t.Errorf("%s is said to be encrypted", gr)
			}
		}
		told = append(told, e.Seal(secretsResource).Key())
	})
	transformer := r.TransformerForResource(secretsResource)
	sealed, err := transformer.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k"))
	must(t, err)
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
		before := r.Keys()
		r.check = func(context.Context, *Keys, *Keys) error { return step.check }
		changed, err := r.Reload(t.Context())
		if changed != step.changed || (err != nil) != step.fails || (r.Keys() != before) != step.changed {
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
	if _, err := r.Pin(secretsResource, before(t, "aescbc a")); err == nil {
		t.Error("a rewrite with the old key is possible")
	}
	pin, err := r.Pin(secretsResource, r.Keys().Writes(secretsResource))
	must(t, err)
	if out, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); err != nil || !bytes.HasPrefix(out, []byte("k8s:enc:secretbox:v1:b:")) {
		t.Errorf("got %q, %v", out, err)
	}
}

// TestPinAcrossReload: a rewrite that began before a configuration was reloaded goes on with the new
// configuration, since the connections and goroutines of the old one are ended.
func TestPinAcrossReload(t *testing.T) {
	r := &Ring{}
	r.current.Store(keysFrom(t, encryptionYAML("secrets: secretbox b, aescbc a")))
	pin, err := r.Pin(secretsResource, r.Keys().Writes(secretsResource))
	must(t, err)
	r.Keys().transformers = nil // makes a use of the old configuration panic
	r.current.Store(keysFrom(t, encryptionYAML("secrets: secretbox b, aescbc a", "configmaps: aescbc a")))
	sealed, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k"))
	must(t, err)
	if plain, stale, err := pin.TransformFromStorage(t.Context(), sealed, value.DefaultContext("k")); err != nil || stale || string(plain) != "text" {
		t.Errorf("got %q, stale %v, %v", plain, stale, err)
	}
	r.current.Store(keysFrom(t, encryptionYAML("secrets: identity, secretbox b")))
	if _, err := pin.TransformToStorage(t.Context(), []byte("text"), value.DefaultContext("k")); !errors.Is(err, migratestore.ErrKeysUnavailable) {
		t.Errorf("another key writes: %v", err)
	}
}

// TestLongCheck: after a refusal for which much had to be read, an unchanged file is not checked again for a
// while. A changed file is checked at once, also after a long check that ended well.
func TestLongCheck(t *testing.T) {
	r, path, _ := reloading(t)
	now, checks := time.Now(), 0
	r.now = func() time.Time { return now }
	r.check = func(context.Context, *Keys, *Keys) error {
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
		if changed, err := r.Reload(t.Context()); changed || (err != nil) != step.checked || (checks > before) != step.checked {
			t.Errorf("look %d: changed %v, %v, %d checks", i, changed, err, checks-before)
		}
	}
	took := longCheck // for the first check only
	r.check = func(context.Context, *Keys, *Keys) error {
		now, took = now.Add(took), 0
		return nil
	}
	for _, text := range []string{"secrets: secretbox b, aescbc a", "secrets: aescbc a, secretbox b", "secrets: secretbox b, aescbc a"} {
		writeFile(t, path, encryptionYAML(text))
		if changed, err := r.Reload(t.Context()); !changed || err != nil {
			t.Errorf("%s: changed %v, %v", text, changed, err)
		}
	}
}

func before(t *testing.T, provider string) agree.Seal {
	t.Helper()
	return keysFrom(t, encryptionYAML("secrets: "+provider)).Writes(secretsResource)
}

var _ fence.Sealer = sealer{}

// TestNilRing: a nil Ring encrypts nothing.
func TestNilRing(t *testing.T) {
	r, err := New(t.Context(), Config{})
	if err != nil || r != nil {
		t.Fatalf("got %v, %v", r, err)
	}
	if transformer := r.TransformerForResource(secretsResource); transformer != nil {
		t.Errorf("secrets are transformed by %T", transformer)
	}
	c := &genericapiserver.Config{}
	r.Apply(c)
	r.SetCheck(nil)
	r.Listen(func(member.Encryption) { t.Error("it tells of encryption") })
	if c.ResourceTransformers != nil || len(c.ReadyzChecks) != 0 || r.Keys().Writes(secretsResource) != "" {
		t.Errorf("it encrypts: %+v", c)
	}
	if changed, err := r.Reload(t.Context()); changed || err != nil {
		t.Errorf("changed %v, %v", changed, err)
	}
	if pin, err := r.Pin(secretsResource, ""); pin != nil || err != nil {
		t.Errorf("a rewrite is transformed by %T, %v", pin, err)
	}
	if _, err := r.Pin(secretsResource, "aescbc:v1:a:1"); err == nil {
		t.Error("a rewrite with a key is possible")
	}
}

func TestConfig(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"nothing":             {Config{}, ""},
		"a file":              {Config{Path: "f", Server: "s"}, ""},
		"reload":              {Config{Path: "f", Server: "s", Reload: true}, ""},
		"reload without file": {Config{Server: "s", Reload: true}, "--encryption-provider-config-automatic-reload needs"},
		"no server":           {Config{Path: "f"}, "set Server"},
	} {
		if err := test.config.Validate(); (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestNoSecretInErrors: the error about a configuration, which is logged, has none of its secrets.
func TestNoSecretInErrors(t *testing.T) {
	path, secret := filepath.Join(t.TempDir(), "f"), base64.StdEncoding.EncodeToString([]byte("0123456789abcdef"))
	must(t, os.WriteFile(path, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n"+
		"  providers:\n  - aescbc: {keys: [{name: a, secret: "+secret+"}]}\n    identity: {}\n"), 0o600))
	_, err := loadKeys(t.Context(), path, false, "test")
	if err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), "resources[0].providers[0]: more than one provider") {
		t.Errorf("the error is %v", err)
	}
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// renewing is a Reader after each of whose pages a Lease is renewed.
type renewing struct {
	migratestore.Reader
	renew func()
}

func (r renewing) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	defer r.renew()
	return r.Reader.Range(ctx, start, end, limit, revision)
}

// TestUnreadableByOthers: a key may be the first of a resource only if every live server can read it, and a key that a
// live server writes with has to be among the keys.
func TestUnreadableByOthers(t *testing.T) {
	const stock = "none of Concord's annotations"
	etcd := storedtest.Start(t)
	a := keysFrom(t, encryptionYAML("secrets: aescbc a, identity", "*.example.com: secretbox b, identity"))
	lease := func(name, reads string) string {
		l := &coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"}}
		l.Name, l.Namespace = name, storageversion.IdentityNamespace
		l.Labels = map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue}
		if reads != stock {
			l.Annotations = map[string]string{storageversion.BinaryVersionAnnotation: "1.37"}
		}
		if reads != "" && reads != stock {
			l.Annotations[storageversion.EncryptionKeysAnnotation] = reads
		}
		l.Spec.LeaseDurationSeconds = new(int32)
		*l.Spec.LeaseDurationSeconds = 1
		raw, err := json.Marshal(l)
		must(t, err)
		return string(raw)
	}
	behind := keysFrom(t, encryptionYAML("secrets: identity, aescbc a", "widgets.example.com: identity, secretbox b", "*.example.com: secretbox b"))
	all, apart := keysFrom(t, encryptionYAML("*.*: aescbc a, identity")), keysFrom(t, encryptionYAML("widgets.example.com: identity", "*.*: aescbc a, identity"))
	secrets, plainFirst := keysFrom(t, encryptionYAML("secrets: aescbc a, identity")), keysFrom(t, encryptionYAML("secrets: identity, aescbc a"))
	seal := a.Writes(secretsResource)
	for name, test := range map[string]struct {
		keys    *Keys
		reads   string
		refused string
	}{
		"the same":                       {a, a.reading(), ""},
		"behind another":                 {a, behind.reading(), ""},
		"without":                        {a, "", "cannot read secrets that are encrypted with aescbc:v1:a"},
		"a stock server":                 {a, stock, ""},
		"another secret":                 {a, strings.ReplaceAll(a.reading(), string(seal), "aescbc:v1:a:0"), "has another secret under the name aescbc:v1:a, for secrets: give a new key a new name"},
		"unreadable":                     {a, "{", "cannot read "},
		"plain":                          {&Keys{}, "", ""},
		"plain without":                  {&Keys{}, keysFrom(t, encryptionYAML("secrets: aescbc a")).reading(), "cannot read secrets that are not encrypted"},
		"a custom resource apart":        {all, apart.reading(), "cannot read widgets.example.com that are encrypted with aescbc:v1:a"},
		"a custom resource of its group": {all, keysFrom(t, encryptionYAML("*.example.com: identity", "*.*: aescbc a, identity")).reading(), "cannot read *.example.com that are encrypted with aescbc:v1:a"},
		"a custom resource both apart":   {apart, all.reading(), "writes widgets.example.com that are encrypted with aescbc:v1:a"},
		"a plugin's next key":            {&Keys{providers: map[schema.GroupResource][]*provider{secretsResource: {{seal: "kms:v2:p:", kms: new(atomic.Pointer[string])}}}}, `{"secrets":["kms:v2:p:"]}`, ""},
		"written with another secret":    {secrets, fmt.Sprintf(`{"secrets":["%s0","%[1]s",""]}`, seal), "has another secret under the name aescbc:v1:a, for secrets: give a new key a new name"},
		"written with a lost key":        {secrets, fmt.Sprintf(`{"secrets":["aescbc:v1:lost:0","%s",""]}`, seal), "writes secrets that are encrypted with aescbc:v1:lost"},
		"written with a key more":        {&Keys{}, secrets.reading(), "writes secrets that are encrypted with aescbc:v1:a"},
		"written plain":                  {keysFrom(t, encryptionYAML("secrets: aescbc a")), plainFirst.reading(), "writes secrets that are not encrypted"},
		"what is not there yet":          {&Keys{}, keysFrom(t, encryptionYAML("*.late.example.org: aescbc a, identity")).reading(), "writes *.late.example.org that are encrypted with aescbc:v1:a"},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := etcd.Fill(t, map[string]string{
				"leases/kube-system/s1":    lease("s1", test.reads),
				"leases/kube-system/other": `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`,
			})
			known := storedtest.Target(t).Resources()
			var reader migratestore.Reader = migratestore.NewEtcd(etcd.Client)
			check := func(self agree.ServerID, poll time.Duration) error {
				return test.keys.CheckOthers(t.Context(), reader, stored.Layout{Prefix: prefix}, known, self, poll)
			}
			refused := func(err error) {
				if t.Helper(); (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), "server s1 "+test.refused) {
					t.Errorf("got %v, want %q", err, test.refused)
				}
			}
			refused(check("", 0))
			if err := check("s1", 0); err != nil {
				t.Errorf("it is its own: %v", err)
			}
			// A server that does not renew its Lease during the check counts as dead.
			if err := check("", 20*time.Millisecond); err != nil {
				t.Errorf("a Lease that nobody renews: %v", err)
			}
			reader = renewing{reader, func() {
				_, err := etcd.Put(t.Context(), prefix+"/leases/kube-system/s1", lease("s1", test.reads))
				must(t, err)
			}}
			refused(check("", 20*time.Millisecond))
		})
	}
}
