package generic

import (
	"net"
	"time"

	"github.com/spf13/pflag"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/version"
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
	"github.com/concord-dev/concord/server/gates"
)

// DefaultIssuer is whom service account tokens name as their issuer.
const DefaultIssuer = "https://kubernetes.default.svc"

const encryptionFlag = "encryption-provider-config"

func init() {
	utilruntime.Must(logsapi.AddFeatureGates(utilfeature.DefaultMutableFeatureGate))
}

// Options configure one server. Zero values are not usable: start from NewOptions.
type Options struct {
	// ControlPlane are kube-apiserver's own, as far as they apply to a control plane without
	// pods and nodes.
	ControlPlane *controlplaneoptions.Options

	// DataDir holds the embedded etcd's data and, unless CertDir is given, the certificates.
	DataDir string
	// CertDir holds the cluster's CA, what is signed with it, and the key that signs service
	// account tokens. Servers of one cluster share it.
	CertDir string
	// EmulationVersion is the release whose behaviour is emulated, "1.36"; empty for the binary's.
	EmulationVersion string
	// MinCompatibilityVersion is the oldest release that must be able to read what is
	// stored; empty for the KEP's default.
	MinCompatibilityVersion string
	// IdentityLeaseDuration is how long a server lives without a renewal, and
	// IdentityLeaseRenewInterval the time between renewals.
	IdentityLeaseDuration      time.Duration
	IdentityLeaseRenewInterval time.Duration
	// ControllerLeaseDuration is how long the elected controllers keep their lock without a renewal.
	ControllerLeaseDuration time.Duration
	// Controllers says whether this server may run the leader-elected controllers.
	Controllers bool
	// MigrationMaxAddedLatency is by how much a migration may lengthen a small read of etcd
	// while clients are served; 0 means full speed. MigrationMaxObjectsPerSecond bounds what
	// it writes; 0 means no bound. A migration can say otherwise for itself.
	MigrationMaxAddedLatency     time.Duration
	MigrationMaxObjectsPerSecond int
	// EncryptionReloadInterval is how often a change of the encryption configuration is looked
	// for, where it is reloaded, and a KMS plugin asked which key it uses.
	EncryptionReloadInterval time.Duration
	// AllowUndecodableStorage starts the server although objects may be stored that it cannot decode.
	AllowUndecodableStorage bool

	// Join puts a protocol between the servers' configurations and their start; nil for none.
	Join Joiner

	emulation, minCompatibility *version.Version
	// flags are those of versions and features; nil without AddFlags.
	flags *gates.Flags
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{
		ControlPlane:               upstream.NewOptions(),
		DataDir:                    ".concord",
		IdentityLeaseDuration:      15 * time.Second,
		IdentityLeaseRenewInterval: 5 * time.Second,
		ControllerLeaseDuration:    6 * time.Second,
		Controllers:                true,
		MigrationMaxAddedLatency:   time.Millisecond,
		EncryptionReloadInterval:   10 * time.Second,
	}
	utilruntime.Must(gates.Register(o.ControlPlane.GenericServerRunOptions.ComponentGlobalsRegistry))
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
	o.addVersionFlags(fs)
	fs.DurationVar(&o.IdentityLeaseDuration, "identity-lease-duration", o.IdentityLeaseDuration, "How long this server counts as alive without renewing its identity Lease.")
	fs.DurationVar(&o.IdentityLeaseRenewInterval, "identity-lease-renew-interval", o.IdentityLeaseRenewInterval, "Time between renewals of the identity Lease.")
	fs.DurationVar(&o.ControllerLeaseDuration, "controller-lease-duration", o.ControllerLeaseDuration, "How long the elected controllers keep their lock without renewing it.")
	fs.DurationVar(&o.MigrationMaxAddedLatency, "migration-max-added-latency", o.MigrationMaxAddedLatency, "By how much a storage migration may lengthen a small read of etcd while clients are being served; beyond it the migration slows down, to no less than 200 objects per second (20 of large ones). 0 means full speed. A migration's spec.maxAddedLatency goes first.")
	fs.IntVar(&o.MigrationMaxObjectsPerSecond, "migration-max-objects-per-second", o.MigrationMaxObjectsPerSecond, "Most objects that a storage migration rewrites per second; 0 means no bound. A migration's spec.maxObjectsPerSecond goes first.")
	fs.DurationVar(&o.EncryptionReloadInterval, encryptionFlag+"-reload-interval", o.EncryptionReloadInterval, "How often a changed --encryption-provider-config is looked for, with --encryption-provider-config-automatic-reload, and KMS plugins are asked which key they use (that at most every 20 s).")
	fs.BoolVar(&o.Controllers, "controllers", o.Controllers, "Whether this server may run the leader-elected controllers.")
	fs.BoolVar(&o.AllowUndecodableStorage, "allow-undecodable-storage", o.AllowUndecodableStorage, "Start although objects may be stored that this server cannot decode.")
	o.addLibraryFlags(fs)
}

// addLibraryFlags adds kube-apiserver's flags. Those that Concord defines itself stand; one
// is only there to be refused with a reason.
func (o *Options) addLibraryFlags(fs *pflag.FlagSet) {
	var sets cliflag.NamedFlagSets
	o.ControlPlane.AddFlags(&sets)
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
	var err error
	o.flags, err = gates.Adapt(fs, o.ControlPlane.GenericServerRunOptions.ComponentGlobalsRegistry)
	utilruntime.Must(err) // the flags were added above
	o.ControlPlane.Flagz = flagz.NamedFlagSetsReader{FlagSets: cliflag.NamedFlagSets{FlagSets: map[string]*pflag.FlagSet{"server": fs}}}
}

// ApplyLogging sets the process's logging by the flags. It may be called once in a process.
func (o *Options) ApplyLogging() error {
	return logsapi.ValidateAndApply(o.ControlPlane.Logs, utilfeature.DefaultFeatureGate)
}

func (o *Options) addVersionFlags(fs *pflag.FlagSet) {
	emulation := versionValue{&o.EmulationVersion}
	fs.Var(emulation, "emulation-version", "Kubernetes release to emulate, "+allowedVersions()+". (default "+compat.BinaryVersion().String()+")")
	fs.Var(emulation, "emulated-version", "Alias of --emulation-version.")
	fs.Var(versionValue{&o.MinCompatibilityVersion}, "min-compatibility-version", "Oldest release that must be able to read what is stored, "+allowedVersions()+", and at most the emulation version. (default the release before the emulation version)")
}

// etcd and the others are shorter names for what is used most.
func (o *Options) etcd() *genericoptions.EtcdOptions { return o.ControlPlane.Etcd }

func (o *Options) authentication() *kubeoptions.BuiltInAuthenticationOptions {
	return o.ControlPlane.Authentication
}

func (o *Options) serving() *genericoptions.SecureServingOptionsWithLoopback {
	return o.ControlPlane.SecureServing
}
