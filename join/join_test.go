package join

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/join/internal/hosting"
	"github.com/concord-dev/concord/join/internal/registry"
)

func TestValidate(t *testing.T) {
	valid := func() Config {
		v := version.MustParse("1.2")
		c := Config{Host: &rest.Config{}, Address: "127.0.0.1:1", Schemes: []*runtime.Scheme{registry.LeaseScheme}, Binary: v, Emulation: v, MinCompatibility: v}
		c.Etcd.Transport.ServerList = []string{"http://127.0.0.1:2379"}
		return c
	}
	for _, test := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"an aggregated server", func(*Config) {}, ""},
		{"a cluster's own", func(c *Config) { c.Host, c.Loopback = nil, &rest.Config{} }, ""},
		{"neither", func(c *Config) { c.Host = nil }, "Config.Loopback is missing, and Config.Host"},
		{"a silent aggregated server", func(c *Config) { c.Silent = true }, "Config.Silent"},
		{"no versions", func(c *Config) { c.Emulation = nil }, "Config.Binary, Emulation or MinCompatibility"},
		{"no etcd", func(c *Config) { c.Etcd = storagebackend.Config{} }, "names no etcd"},
	} {
		c := valid()
		test.edit(&c)
		err := c.Validate()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

func TestCustomResourcesAreTheHosts(t *testing.T) {
	j := &Join{hosting: &hosting.Host{}, crds: &definitions{stores: true}}
	if err := j.Start(nil); err == nil || !strings.Contains(err.Error(), "custom resources") {
		t.Errorf("an aggregated server with custom resources starts: %v", err)
	}
}

// TestAnotherEtcd: a store that would not be where its StorageVersion is cannot be fenced.
func TestAnotherEtcd(t *testing.T) {
	s := &storing{}
	s.config.Etcd.Transport.ServerList = []string{"http://127.0.0.1:1"}
	own := s.config.Etcd
	if _, err := s.complete(things, generic.RESTOptions{StorageConfig: own.ForResource(things)}); err != nil {
		t.Error(err)
	}
	own.Transport.ServerList = []string{"http://127.0.0.1:2"}
	if _, err := s.complete(things, generic.RESTOptions{StorageConfig: own.ForResource(things)}); err == nil || !strings.Contains(err.Error(), "--etcd-servers-overrides") {
		t.Errorf("a store in another etcd: %v", err)
	}
}
