package keyring

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/stored/storedtest"
)

// TestUnreadableStorage: a server does not start with keys, or reload keys, that cannot decrypt
// what is stored.
func TestUnreadableStorage(t *testing.T) {
	etcd := storedtest.Start(t)
	old := before(t, "aescbc a")
	inOld := agree.Encoding("v1").Sealed(old)
	values := func(stored ...agree.Encoding) map[string]string {
		v := storedtest.Agreed(t)
		v[storedtest.StateKey(secretsResource)] = storedtest.State(t, secretsResource, 1, stored...)
		v[storedtest.VersionKey(secretsResource)] = storedtest.Version(t, secretsResource, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{stored[0]: 1}})
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
		"the key is missing":        {[]agree.Encoding{inOld}, sealedA, "secrets: secretbox b", "1 of secrets encrypted with aescbc:v1:a: "},
		"missing, identity first":   {[]agree.Encoding{inOld}, sealedA, "secrets: identity, secretbox b", "1 of secrets encrypted with aescbc:v1:a"},
		"there is no configuration": {[]agree.Encoding{inOld}, sealedA, "", "1 of secrets encrypted with aescbc:v1:a"},
		"no value needs the key":    {[]agree.Encoding{inOld}, "", "secrets: secretbox b", ""},
		"plain and no identity":     {[]agree.Encoding{"v1"}, plain, "secrets: aescbc a", "1 of secrets not encrypted"},
		"plain and identity":        {[]agree.Encoding{"v1"}, plain, "secrets: aescbc a, identity", ""},
		"unknown":                   {[]agree.Encoding{evolve.Unknown}, sealedA, "secrets: identity", "1 of secrets encrypted with aescbc:v1:a"},
		"an unnamed key":            {[]agree.Encoding{evolve.Unknown}, "k8s:enc:kms:v1:my kms:xxxx", "secrets: identity", "1 of secrets encrypted with ?"},
		"a secret of its name":      {[]agree.Encoding{agree.Encoding("v1").Sealed(old + "0")}, sealedA, "secrets: aescbc a", "1 of secrets encrypted with aescbc:v1:a (it has another secret under that name): "},
	} {
		t.Run(name, func(t *testing.T) {
			v := values(test.stored...)
			if test.value != "" {
				v["secrets/default/x"] = test.value
			}
			prefix, k := etcd.Fill(t, v), &Keys{}
			if test.config != "" {
				k = keysFrom(t, encryptionYAML(test.config))
			}
			err := stored.Start{Layout: stored.Layout{Prefix: prefix}, Target: storedtest.Target(t), Keys: k}.Check(t.Context(), migratestore.NewEtcd(etcd.Client))
			if (err != nil) != (test.refused != "") || err != nil && (!strings.Contains(err.Error(), test.refused) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// TestUnreadableNamespaces: Concord's servers never encrypt namespaces and Leases, but stock
// servers may have; such values count as well.
func TestUnreadableNamespaces(t *testing.T) {
	etcd := storedtest.Start(t)
	reader, namespaces := migratestore.NewEtcd(etcd.Client), schema.GroupResource{Resource: "namespaces"}
	v := storedtest.Agreed(t)
	delete(v, storedtest.StateKey(namespaces))
	v["namespaces/default"], v["namespaces/other"] = "k8s:enc:aescbc:v1:a:xxxx", `{"apiVersion":"v1","kind":"Namespace"}`
	layout, known := stored.Layout{Prefix: etcd.Fill(t, v)}, storedtest.Target(t).Resources()
	present := keysFrom(t, encryptionYAML("namespaces: aescbc a"))
	for name, test := range map[string]struct {
		keys    *Keys
		refused bool
	}{
		"there is no configuration":  {&Keys{}, true},
		"it is for another resource": {keysFrom(t, encryptionYAML("secrets: aescbc a, identity")), true},
		"the key is missing":         {keysFrom(t, encryptionYAML("*.*: secretbox b, identity")), true},
		"the key is there":           {present, false},
		"it is behind another":       {keysFrom(t, encryptionYAML("*.*: secretbox b, aescbc a, identity")), false},
	} {
		start := stored.Start{Layout: layout, Target: storedtest.Target(t), Keys: test.keys}
		for when, err := range map[string]error{
			"start":  start.Check(t.Context(), reader),
			"reload": test.keys.CheckReload(t.Context(), reader, layout, known, present),
		} {
			if (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "1 of namespaces encrypted with aescbc:v1:a") {
				t.Errorf("%s, at a %s: %v", name, when, err)
			}
		}
	}
}

// TestCheckReload: a configuration that can decrypt all that the present one can is accepted,
// whatever is stored. Another one is accepted only if all values could be read and none needs a key
// that it lacks.
func TestCheckReload(t *testing.T) {
	etcd := storedtest.Start(t)
	reader := migratestore.NewEtcd(etcd.Client)
	present := keysFrom(t, encryptionYAML("secrets: aescbc a, identity"))
	const sealedA, sealedLost = "k8s:enc:aescbc:v1:a:xxxx", "k8s:enc:aescbc:v1:lost:xxxx"
	for name, test := range map[string]struct {
		value, config, refused string
		slow                   bool
	}{
		"it has a key more":               {sealedA, "secrets: aescbc a, secretbox b, identity", "", false},
		"it has a key more, slowly":       {sealedA, "secrets: aescbc a, secretbox b, identity", "", true},
		"reading values panics":           {sealedA, "secrets: aescbc a", "values of secrets, any of which may need a key that it does not have, could not be read", true},
		"it lacks one that is needed":     {sealedLost + " " + sealedA, "secrets: identity, secretbox b", "a", false},
		"it lacks what nothing needs":     {sealedA, "secrets: aescbc a", "", false},
		"it lacks something, slowly":      {sealedA, "secrets: aescbc a", "could not all be read", true},
		"what is lost already stays lost": {sealedLost, "secrets: aescbc a", "", false},
		"another secret under its name":   {sealedA, "secrets: aescbc a'", "it has another secret under the name aescbc:v1:a, for secrets: give a new key a new name", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := storedtest.Agreed(t)
			v[storedtest.StateKey(secretsResource)] = storedtest.State(t, secretsResource, 1, evolve.Unknown)
			v[storedtest.VersionKey(secretsResource)] = storedtest.Version(t, secretsResource, agree.History{Epoch: 1, Last: map[agree.Encoding]int64{evolve.Unknown: 1}})
			for i, text := range strings.Fields(test.value) {
				v[fmt.Sprint("secrets/default/", i)] = text
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			prefix := etcd.Fill(t, v)
			var r migratestore.Reader = reader
			if test.slow {
				read := endless{Reader: reader, under: stored.ResourcePrefix(prefix, secretsResource, false), cancel: cancel}
				if name == "reading values panics" {
					read.cancel = func() { panic("a bug") }
				}
				r = read
			}
			config := strings.Replace(encryptionYAML(test.config), `name: "a'"`, `name: "a"`, 1)
			err := keysFrom(t, config).CheckReload(ctx, r, stored.Layout{Prefix: prefix}, storedtest.Target(t).Resources(), present)
			if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// endless is a Reader that returns no values under a prefix: a read of them ends with the context.
type endless struct {
	migratestore.Reader
	under  string
	cancel context.CancelFunc
}

// Range implements migratestore.Reader.
func (r endless) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	if strings.HasPrefix(start, r.under) {
		r.cancel()
		return migratestore.Page{}, context.Cause(ctx)
	}
	return r.Reader.Range(ctx, start, end, limit, revision)
}

// TestSmallFirst: a small resource is read before the time is over, however many large resources
// there are.
func TestSmallFirst(t *testing.T) {
	etcd := storedtest.Start(t)
	v := storedtest.Agreed(t)
	names := []string{"widgets"} // the last one by name
	for i := range 12 {
		names = append(names, fmt.Sprint("large", i))
	}
	for _, name := range names {
		gr := schema.GroupResource{Group: "example.com", Resource: name}
		v[storedtest.StateKey(gr)] = storedtest.State(t, gr, 1, evolve.Unknown)
		v[name+"/a"], v[name+"/b"] = "{}", "{}"
	}
	delete(v, "widgets/b")
	v["widgets/a"] = "k8s:enc:aescbc:v1:a:xxxx"
	prefix := etcd.Fill(t, v)
	reader := &waits{Reader: migratestore.NewEtcd(etcd.Client), large: prefix + "/large", small: prefix + "/widgets/", read: make(chan struct{})}
	err := stored.Start{Layout: stored.Layout{Prefix: prefix}, Target: storedtest.Target(t), Keys: &Keys{}}.Check(t.Context(), reader)
	if err == nil || !strings.Contains(err.Error(), "1 of widgets.example.com encrypted with aescbc:v1:a") {
		t.Errorf("got %v, want a refusal for the key of widgets", err)
	}
}

// waits is a Reader that returns values of large resources only after those of the small one were
// read.
type waits struct {
	migratestore.Reader
	large, small string
	read         chan struct{}
	once         sync.Once
}

// Range implements migratestore.Reader.
func (r *waits) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	if limit > 1 && strings.HasPrefix(start, r.large) {
		select {
		case <-r.read:
		case <-ctx.Done():
			return migratestore.Page{}, ctx.Err()
		}
	}
	page, err := r.Reader.Range(ctx, start, end, limit, revision)
	if limit > 1 && strings.HasPrefix(start, r.small) {
		r.once.Do(func() { close(r.read) })
	}
	return page, err
}
