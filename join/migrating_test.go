package join

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/migrate/claim"
)

// newMember returns a server of a cluster on this etcd that is not started, and a scheme that has things in v1 and v2.
func newMember(t *testing.T, etcd string, edit func(*Config)) (*Join, *runtime.Scheme) {
	t.Helper()
	scheme, v := runtime.NewScheme(), version.MustParse("1.2")
	for _, of := range []string{runtime.APIVersionInternal, "v1", "v2"} {
		scheme.AddKnownTypes(schema.GroupVersion{Group: things.Group, Version: of}, &coordinationv1.Lease{}, &coordinationv1.LeaseList{})
	}
	config := Config{
		Loopback: &rest.Config{Host: "http://127.0.0.1:1"}, Address: "127.0.0.1:1", Etcd: *storagebackend.NewDefaultConfig("/own", nil),
		Schemes: []*runtime.Scheme{scheme}, Binary: v, Emulation: v, MinCompatibility: v, RBAC: true,
	}
	config.Etcd.Transport.ServerList = []string{etcd}
	edit(&config)
	j, err := New(t.Context(), config)
	must(t, err)
	t.Cleanup(func() { must(t, j.Close()) })
	return j, scheme
}

// TestClaims: a server that reports claims migrations, as a user of its own. One that reports nothing claims none, and
// neither does an aggregated one, since its host does.
func TestClaims(t *testing.T) {
	etcd, asked := startTestEtcd(t), []string{}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Header.Get("Impersonate-User")+" "+r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:])
		w.WriteHeader(http.StatusNotFound)
	}))
	t.Cleanup(backend.Close)
	for _, test := range []struct {
		name   string
		edit   func(*Config)
		claims bool
	}{
		{"a cluster's own server", func(*Config) {}, true},
		{"one that reports nothing", func(c *Config) { c.Silent = true }, false},
		{"an aggregated one", func(c *Config) { c.Host = c.Loopback }, false},
	} {
		j, _ := newMember(t, etcd, func(c *Config) {
			c.Loopback = &rest.Config{Host: backend.URL}
			test.edit(c)
		})
		if claims := j.migrating.claim != nil; claims != test.claims {
			t.Errorf("%s claims: %t", test.name, claims)
			continue
		} else if !claims {
			continue
		}
		asked = nil
		_, err := j.migrating.claim.Step(t.Context(), "one")
		if len(asked) != 1 || asked[0] != roles.Migrator.User()+" one" {
			t.Errorf("%s asks for %q, error %v", test.name, asked, err)
		}
	}
}

// TestEngines: a server brings what its store has to the version that the store writes, under the fence of the resource,
// and does not touch what it does not store.
func TestEngines(t *testing.T) {
	const v2 = agree.Encoding("example.com/v2")
	j, scheme := newMember(t, startTestEtcd(t), func(*Config) {})
	_, err := registry.Group(j.storing.storageOf, j.etcd.client, j.config.Etcd.Prefix)
	must(t, err)
	codec, err := jsonCodec(serializer.NewCodecFactory(scheme), schema.GroupVersion{Group: things.Group, Version: "v2"})
	must(t, err)
	options, err := j.storing.storageOf(things, codec)
	must(t, err)
	_, destroy, err := options.Decorator(options.StorageConfig, "/things", thingKey, newLease,
		func() runtime.Object { return &coordinationv1.LeaseList{} }, storage.DefaultClusterScopedAttr, nil, nil)
	must(t, err)
	t.Cleanup(destroy)
	fenced, _ := j.storing.fence.FenceKey(things)
	stands, err := j.etcd.client.Put(t.Context(), fenced, "a StorageVersion")
	must(t, err)
	_, err = j.etcd.client.Put(t.Context(), "/own/things/a", `{"apiVersion":"example.com/v1","kind":"Lease","metadata":{"name":"a"}}`)
	must(t, err)

	job := claim.Job{
		GroupResource: things, Encoding: v2, FenceRevision: stands.Header.Revision - 1,
		Refence: func(context.Context) (int64, error) { return 0, claim.ErrFenced },
	}
	if _, err := j.migrating.engines.Rewrite(t.Context(), job, func(claim.Progress) {}); !errors.Is(err, claim.ErrFenced) {
		t.Errorf("under a StorageVersion that has moved: %v", err)
	}
	job.FenceRevision = stands.Header.Revision
	result, err := j.migrating.engines.Rewrite(t.Context(), job, func(claim.Progress) {})
	stored, getErr := j.etcd.client.Get(t.Context(), "/own/things/a")
	must(t, getErr)
	if err != nil || result.Written != 1 || !strings.Contains(string(stored.Kvs[0].Value), string(v2)) {
		t.Errorf("%+v, error %v, stored is %s", result, err, stored.Kvs[0].Value)
	}
	job.GroupResource = others
	if _, err := j.migrating.engines.Rewrite(t.Context(), job, func(claim.Progress) {}); err == nil || !strings.Contains(err.Error(), "does not store others.example.com") {
		t.Errorf("of a resource that it does not store: %v", err)
	}
}
