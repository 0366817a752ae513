package builtin_test

import (
	"net"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/compatibility"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/server/builtin/openapi"
)

// everything enables all versions that the binary has.
var everything = map[string]string{"api/all": "true"}

// testServer is a generic API server with all built-in resources over an etcd.
type testServer struct {
	*kubernetes.Clientset
	dynamic   *dynamic.DynamicClient
	discovery *discovery.DiscoveryClient
	config    *rest.Config
	etcd      string
}

// startEtcd returns the endpoint of an embedded etcd that lives as long as the test.
func startEtcd(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	config := embed.NewConfig()
	config.Dir = filepath.Join(dir, "data")
	config.UnsafeNoFsync = true
	config.LogLevel = "error"
	config.LogOutputs = []string{filepath.Join(dir, "log")}
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "sock")}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls, config.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case <-time.After(time.Minute):
		t.Fatal("etcd was not ready within a minute")
	}
	return client.String()
}

func newPlan(t *testing.T, emulation, minCompatibility string, runtimeConfig map[string]string) *compat.Plan {
	t.Helper()
	plan, err := compat.NewPlan(builtin.Lifecycles(), compat.Options{
		Binary:           utilversion.MustParseMajorMinor("1.37"),
		Emulation:        utilversion.MustParseMajorMinor(emulation),
		MinCompatibility: utilversion.MustParseMajorMinor(minCompatibility),
		RuntimeConfig:    runtimeConfig,
	})
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// startServer serves all that the plan says from the etcd at this endpoint, with feature
// gates other than the default, such as "Name=true".
func startServer(t *testing.T, plan *compat.Plan, etcd string, gates ...string) *testServer {
	t.Helper()
	features := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := features.Set(strings.Join(gates, ",")); err != nil {
		t.Fatal(err)
	}
	config := genericapiserver.NewConfig(builtin.Codecs)
	config.ExternalAddress = "127.0.0.1:443"
	config.LoopbackClientConfig = &rest.Config{Host: "127.0.0.1"}
	config.EffectiveVersion = compatibility.NewEffectiveVersionFromString("1.37", "", "")
	config.Authentication.Authenticator = anonymous.NewAuthenticator(nil)
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	namer := builtin.DefinitionNamer()
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)

	backend := storagebackend.NewDefaultConfig("/registry", nil)
	backend.Transport.ServerList = []string{etcd}
	etcdOptions := options.NewEtcdOptions(backend)
	etcdOptions.SkipHealthEndpoints = true
	etcdOptions.StorageConfig.StorageObjectCountTracker = config.StorageObjectCountTracker
	if err := etcdOptions.ApplyWithStorageFactoryTo(builtin.StorageFactory(plan, etcdOptions.StorageConfig), config); err != nil {
		t.Fatal(err)
	}
	server, err := config.Complete(nil).New("builtin-test", genericapiserver.NewEmptyDelegate())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := builtin.Install(plan, config.RESTOptionsGetter, builtin.Deps{
		Authorizer: config.Authorization.Authorizer, MinCompatibility: plan.MinCompatibility, Features: features,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		if group.PrioritizedVersions[0].Group == "" {
			err = server.InstallLegacyAPIGroup(genericapiserver.DefaultLegacyAPIPrefix, group)
		} else {
			err = server.InstallAPIGroups(group)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	server.PrepareRun()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	http := &httptest.Server{Listener: listener}
	http.Config = httptest.NewUnstartedServer(server.Handler).Config
	http.Start()
	t.Cleanup(func() {
		http.CloseClientConnections()
		http.Close()
		server.Destroy()
	})
	return newTestServer(t, http.URL, etcd)
}

func newTestServer(t *testing.T, host, etcd string) *testServer {
	t.Helper()
	s := &testServer{config: &rest.Config{Host: host, QPS: -1, WarningHandler: rest.NoWarnings{}}, etcd: etcd}
	var err error
	if s.Clientset, err = kubernetes.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	if s.dynamic, err = dynamic.NewForConfig(s.config); err != nil {
		t.Fatal(err)
	}
	s.discovery = s.DiscoveryClient
	return s
}

var noGet = metav1.GetOptions{}
