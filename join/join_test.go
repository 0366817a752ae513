package join

import (
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/registry/generic"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/join/internal/registry"
	"github.com/concord-dev/concord/member/hosting"
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
		{"another etcd for one resource", func(c *Config) { c.EtcdServersOverrides = []string{"/things#http://127.0.0.1:1"} }, "cannot be fenced"},
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

// TestAggregatedOverrides: what k8s.io/apiserver's RecommendedOptions take and ignore is refused.
func TestAggregatedOverrides(t *testing.T) {
	etcd := genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig("/own", nil))
	etcd.EtcdServersOverrides = []string{"/things#http://127.0.0.1:1"}
	config := Config{}.Aggregated(genericapiserver.NewRecommendedConfig(serializer.NewCodecFactory(registry.LeaseScheme)), etcd)
	if len(config.EtcdServersOverrides) != 1 {
		t.Errorf("the overrides are lost: %v", config.EtcdServersOverrides)
	}
}

// TestAddFlags: the defaults that the help shows are those that apply, whether a program begins with Defaults or not.
func TestAddFlags(t *testing.T) {
	for _, test := range []struct {
		name  string
		from  Config
		renew string // as the help shows it
		flags []string
		want  time.Duration // between renewals
	}{
		{"from nothing", Config{}, "0s", nil, 5 * time.Second},
		{"from nothing, a short lease", Config{}, "0s", []string{"--identity-lease-duration=6s"}, 2 * time.Second},
		{"from the defaults", Defaults(), "0s", nil, 5 * time.Second},
		{"from the defaults, a short lease", Defaults(), "0s", []string{"--identity-lease-duration=6s"}, 2 * time.Second},
		{"of its own", Config{IdentityLeaseRenewInterval: time.Second}, "1s", nil, time.Second},
	} {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		test.from.AddFlags(fs)
		for flag, want := range map[string]string{"identity-lease-duration": "15s", "controller-lease-duration": "6s", "identity-lease-renew-interval": test.renew} {
			if got := fs.Lookup(flag).DefValue; got != want {
				t.Errorf("%s: --%s is %s by default, want %s", test.name, flag, got, want)
			}
		}
		must(t, fs.Parse(test.flags))
		if got := test.from.withDefaults(); got.IdentityLeaseRenewInterval != test.want || got.ValidateFlags() != nil {
			t.Errorf("%s: renewals every %v, want %v; %v", test.name, got.IdentityLeaseRenewInterval, test.want, got.ValidateFlags())
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
