package generic

import (
	"net"
	"time"

	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/server/flagz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"
	upstream "k8s.io/kubernetes/pkg/controlplane/apiserver/samples/generic/server"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/join"
	"github.com/concord-dev/concord/server/outbound"
	"github.com/concord-dev/concord/stored"
)

// DefaultIssuer is whom service account tokens name as their issuer.
const DefaultIssuer = "https://kubernetes.default.svc"

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// Options configure one server. Zero values are not usable: start from NewOptions.
type Options struct {
	// ControlPlane are kube-apiserver's own options, as far as they apply to a control plane without pods and nodes.
	ControlPlane *controlplaneoptions.Options

	// DataDir holds the embedded etcd's data and, unless CertDir is given, the certificates.
	DataDir string
	// CertDir holds the cluster's CA, the certificates signed with it, and the key that signs service
	// account tokens. Servers of one cluster share it.
	CertDir string
	// RootCAFile has the certificates that clients in the cluster trust for its servers, where it is not for CertDir
	// and the servers' own certificates to say.
	RootCAFile string
	// Join is the part of the protocol's configuration that operators set.
	Join join.Config
	// AllowUndecodableStorage starts the server although objects may be stored that it cannot decode.
	AllowUndecodableStorage bool

	// Outbound says where Services may lead.
	Outbound outbound.Config

	plan *compat.Plan
	// versions are the flags of versions and feature gates; nil without AddFlags.
	versions *gates.Flags
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{
		ControlPlane: upstream.NewOptions(),
		DataDir:      ".concord",
		Join:         join.Defaults(),
	}
	utilruntime.Must(gates.Register(o.registry()))
	serving := o.ControlPlane.SecureServing
	serving.BindAddress = net.ParseIP("127.0.0.1")
	serving.BindPort = 6443
	serving.Required = false // port 0 takes a free one
	serving.ServerCert.CertDirectory = ""
	o.ControlPlane.Authorization.Modes = []string{modes.ModeRBAC}
	o.ControlPlane.Authentication.ServiceAccounts.Issuers = []string{DefaultIssuer}
	// Else a stop waits a minute for every open watch, and there always is one.
	o.ControlPlane.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = 2 * time.Second
	return o
}

// AddFlags adds the server's flags: its own, and kube-apiserver's that apply.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory of the embedded etcd's data and of generated files.")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "Directory of the cluster's CA, certificates, service account key and admin.kubeconfig; made there if it has none. Servers of one cluster share it. (default <data-dir>/pki)")
	fs.StringVar(&o.RootCAFile, "root-ca-file", o.RootCAFile, "File with the certificates that clients in the cluster trust for its servers, for kube-root-ca.crt, Secrets with tokens of service accounts, and the ClusterTrustBundle. The same for all servers of a cluster. (default the CA in --cert-dir, and the CA certificates in --tls-cert-file)")
	o.Join.AddFlags(fs)
	o.Outbound.AddFlags(fs)
	fs.BoolVar(&o.AllowUndecodableStorage, stored.AllowFlag, o.AllowUndecodableStorage, stored.AllowUsage)
	o.addLibraryFlags(fs)
}

// addLibraryFlags adds kube-apiserver's flags. Those that Concord defines itself stand; one
// is only there to be refused with a reason.
func (o *Options) addLibraryFlags(fs *pflag.FlagSet) {
	var sets cliflag.NamedFlagSets
	o.ControlPlane.AddFlags(&sets)
	versions, err := gates.Adapt(sets.FlagSet("generic"), o.registry())
	utilruntime.Must(err) // the flags of the library that this was built with
	o.versions = versions
	for _, name := range sets.Order {
		sets.FlagSets[name].VisitAll(func(f *pflag.Flag) {
			if fs.Lookup(f.Name) == nil {
				fs.AddFlag(f)
			}
		})
	}
	if f := fs.Lookup("etcd-servers-overrides"); f != nil {
		f.Hidden = true
	}
	fs.Lookup("enable-garbage-collector").Usage = "Run Kubernetes' garbage collector, and let objects that are deleted with propagation policy Foreground or Orphan wait for it."
	fs.Lookup("secure-port").Usage = "The port on which to serve HTTPS. 0 takes a free one at each start; admin.kubeconfig keeps the first."
	fs.Lookup("tls-cert-file").Usage = "File with the certificate for HTTPS, followed by the CA's certificate, if any. Without it and --tls-private-key-file the CA in --cert-dir signs one, which is kept there."
	fs.Lookup("service-account-key-file").Usage = "File with PEM-encoded keys, private or public, RSA or ECDSA, that verify tokens of service accounts; may be given several times. Where sa.key in --cert-dir signs, it verifies, too. Without this flag the key in --service-account-signing-key-file verifies."
	o.ControlPlane.Flagz = flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"server": fs}}}
}

// AddVersionFlags adds the flags that decide which APIs are served and stored, and which
// features are on (KEP-4330, "Component Flags").
func (o *Options) AddVersionFlags(fs *pflag.FlagSet) {
	all := pflag.NewFlagSet("library", pflag.ContinueOnError)
	o.ControlPlane.GenericServerRunOptions.AddUniversalFlags(all)
	o.ControlPlane.APIEnablement.AddFlags(all)
	versions, err := gates.Adapt(all, o.registry())
	utilruntime.Must(err) // the flags of the library that this was built with
	o.versions = versions
	for _, name := range []string{"emulated-version", "emulation-version", "min-compatibility-version", "feature-gates", "emulation-forward-compatible", "runtime-config-emulation-forward-compatible", "runtime-config"} {
		if f := all.Lookup(name); f != nil {
			fs.AddFlag(f)
		}
	}
}

// Features says which features are on, and why. It is known after Complete.
func (o *Options) Features() []gates.Row { return o.versions.Features() }

// ApplyLogging sets the process's logging by the flags. It may be called once in a process.
func (o *Options) ApplyLogging() error {
	return logsapi.ValidateAndApply(o.ControlPlane.Logs, utilfeature.DefaultFeatureGate)
}

// etcd and the others are shorter names for the options that are used most.
func (o *Options) etcd() *genericoptions.EtcdOptions { return o.ControlPlane.Etcd }

func (o *Options) authentication() *kubeoptions.BuiltInAuthenticationOptions {
	return o.ControlPlane.Authentication
}

func (o *Options) serving() *genericoptions.SecureServingOptionsWithLoopback {
	return o.ControlPlane.SecureServing
}

func (o *Options) registry() basecompatibility.ComponentGlobalsRegistry {
	return o.ControlPlane.GenericServerRunOptions.ComponentGlobalsRegistry
}
