package server

import (
	"fmt"
	"net"
	"strconv"

	"github.com/spf13/pflag"
	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"
	"k8s.io/apimachinery/pkg/util/sets"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/namespace/lifecycle"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/filters"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	baseversion "k8s.io/component-base/version"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/server/builtin"
	"github.com/concord-dev/concord/server/gates"
)

// baseConfig returns what the chain's servers have in common. The certificates are made
// afterwards.
func baseConfig(o *Options) (*genericapiserver.Config, *certificates, error) {
	c := genericapiserver.NewConfig(builtin.Codecs)
	if err := o.ServerRun.ApplyTo(c); err != nil {
		return nil, nil, err
	}
	c.EffectiveVersion = withGitVersion{EffectiveVersion: c.EffectiveVersion, plain: !o.gates.Enabled(gates.CompatibilityVersions)}
	c.LongRunningFunc = filters.BasicLongRunningRequestCheck(sets.NewString("watch"), sets.NewString())
	// One document for the whole chain.
	c.AggregatedDiscoveryGroupManager = aggregated.NewResourceManager("apis")
	applyOpenAPI(c)
	if o.flags != nil {
		c.Flagz = flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"server": o.flags}}}
	}
	certs, err := listen(o, c)
	if err != nil {
		return nil, nil, err
	}
	if err := o.Audit.ApplyTo(c); err != nil {
		return nil, nil, fmt.Errorf("audit: %w", err)
	}
	if err := applyAuth(c, certs.caFile, o.ClientCAFile, &o.Aggregation.RequestHeader); err != nil {
		return nil, nil, fmt.Errorf("authentication: %w", err)
	}
	return c, certs, nil
}

// listen makes the certificates that name the open port, and serves with them.
func listen(o *Options, c *genericapiserver.Config) (*certificates, error) {
	certs, err := ensureCertificates(o.CertDir, o.SecureServing.BindAddress, o.SecureServing.BindPort, o.SecureServing.ServerCert.CertKey.CertFile)
	if err != nil {
		return nil, err
	}
	if o.SecureServing.ServerCert.CertKey.CertFile == "" {
		o.SecureServing.ServerCert.CertKey.CertFile = certs.certFile
		o.SecureServing.ServerCert.CertKey.KeyFile = certs.keyFile
	}
	if err := o.SecureServing.ApplyTo(&c.SecureServing, &c.LoopbackClientConfig); err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	c.LoopbackClientConfig.QPS = -1
	c.LoopbackClientConfig = join.AsComponent(c.LoopbackClientConfig, compat.ConcordServer, o.versions.emulation)
	return certs, nil
}

// withAdmission gives c the admission that users expect of every API server: nothing is
// created in a namespace that does not exist or is going away. Where features are off, CRDs
// are kept to what the releases before them know.
func withAdmission(c *genericapiserver.Config, client kubernetes.Interface, shared informers.SharedInformerFactory, own featuregate.FeatureGate) error {
	plugin, err := lifecycle.NewLifecycle(sets.New(immortalNamespaces...))
	if err != nil {
		return err
	}
	plugin.SetExternalKubeClientSet(client)
	plugin.SetExternalKubeInformerFactory(shared)
	if err := plugin.ValidateInitialization(); err != nil {
		return err
	}
	plugins := []admission.Interface{plugin}
	if !own.Enabled(gates.CRDBoundedNameCost) {
		plugins = append(plugins, newStrictCRDCost())
	}
	if !c.FeatureGate.Enabled(apiextensionsfeatures.CRDObservedGenerationTracking) {
		plugins = append(plugins, newWithoutObservedGeneration())
	}
	c.AdmissionControl = admission.NewChainHandler(plugins...)
	return nil
}

// withGitVersion reports a version that clients can parse also when the binary was built
// without the libraries' link flags.
type withGitVersion struct {
	basecompatibility.EffectiveVersion
	// plain leaves out what KEP-4330 added.
	plain bool
}

// Info implements EffectiveVersion.
func (v withGitVersion) Info() *apimachineryversion.Info {
	info := v.EffectiveVersion.Info()
	if info == nil {
		return nil
	}
	if v.plain {
		info.EmulationMajor, info.EmulationMinor, info.MinCompatibilityMajor, info.MinCompatibilityMinor = "", "", "", ""
	}
	if info.GitVersion == "" || info.GitVersion == unsetGitVersion {
		info.GitVersion = "v" + v.BinaryVersion().String() + ".0+concord"
		info.GitTreeState = "unknown"
		info.GitCommit = ""
	}
	return info
}

// unsetGitVersion is what component-base holds in a binary without link flags.
var unsetGitVersion = baseversion.Get().GitVersion

// openPort listens on the configured address; port 0 takes a free one.
func openPort(o *Options) (net.Listener, int, error) {
	address := net.JoinHostPort(o.SecureServing.BindAddress.String(), strconv.Itoa(o.SecureServing.BindPort))
	listener, port, err := genericoptions.CreateListener(o.SecureServing.BindNetwork, address, net.ListenConfig{})
	if err != nil {
		return nil, 0, fmt.Errorf("%s cannot be used: choose another --secure-port or --bind-address: %w", address, err)
	}
	return listener, port, nil
}
