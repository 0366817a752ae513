package server

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/version"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/server/gates"
	"github.com/concord-dev/concord/stored"
)

// DefaultEtcdPrefix is where objects are stored in etcd.
const DefaultEtcdPrefix = "/registry"

// Options configure one API server process. Zero values are not usable: start from
// NewOptions.
type Options struct {
	// DataDir holds the embedded etcd's data and, unless CertDir is given, the certificates.
	DataDir string
	// CertDir holds the cluster's CA and what is signed with it. Servers of one cluster share it.
	CertDir string
	// ClientCAFile holds further CAs whose clients' certificates are accepted; empty for none.
	ClientCAFile string
	// Aggregation says how APIs are reached that other programs serve.
	Aggregation AggregationOptions
	// EmulationVersion is the release whose behaviour is emulated, "1.36"; empty for the binary's.
	EmulationVersion string
	// MinCompatibilityVersion is the oldest release that must be able to read what is
	// stored; empty for the KEP's default.
	MinCompatibilityVersion string
	// RuntimeConfig switches APIs on and off, as in --runtime-config.
	RuntimeConfig cliflag.ConfigurationMap
	// FeatureGates are key=bool pairs, as in --feature-gates.
	FeatureGates []string
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

	// DisableProtocol serves without reports, gate, fence and controllers. It is for
	// measuring what they cost (package bench) and has no flag: such a server must never
	// share an etcd with others.
	DisableProtocol bool
	// DisablePlan serves every stable version and stores in the newest, whatever the versions
	// and the runtime config are. It is for measuring what planning costs (package bench) and
	// has no flag.
	DisablePlan bool

	ServerRun     *genericoptions.ServerRunOptions
	SecureServing *genericoptions.SecureServingOptionsWithLoopback
	Etcd          *genericoptions.EtcdOptions
	Audit         *genericoptions.AuditOptions

	plan     *compat.Plan
	versions versions
	// flags are shown by /flagz; nil without AddFlags.
	flags *pflag.FlagSet
	// gates are Concord's own, as completed.
	gates featuregate.FeatureGate
}

type versions struct {
	binary, emulation, minCompatibility *version.Version
}

// NewOptions returns the defaults.
func NewOptions() *Options {
	o := &Options{
		DataDir:                    ".concord",
		IdentityLeaseDuration:      15 * time.Second,
		IdentityLeaseRenewInterval: 5 * time.Second,
		ControllerLeaseDuration:    6 * time.Second,
		Controllers:                true,
		MigrationMaxAddedLatency:   time.Millisecond,
		EncryptionReloadInterval:   10 * time.Second,
		Aggregation:                newAggregationOptions(),
		RuntimeConfig:              cliflag.ConfigurationMap{},
		ServerRun:                  genericoptions.NewServerRunOptions(),
		SecureServing:              genericoptions.NewSecureServingOptions().WithLoopback(),
		Etcd:                       genericoptions.NewEtcdOptions(storagebackend.NewDefaultConfig(DefaultEtcdPrefix, nil)),
		Audit:                      genericoptions.NewAuditOptions(),
	}
	registerGates(o.ServerRun.ComponentGlobalsRegistry)
	o.SecureServing.BindAddress = net.ParseIP("127.0.0.1")
	o.SecureServing.BindPort = 6443
	// Else a stop waits a minute for every open watch, and there always is one.
	o.ServerRun.ShutdownWatchTerminationGracePeriod = 2 * time.Second
	o.Etcd.DefaultStorageMediaType = runtime.ContentTypeProtobuf
	return o
}

// AddFlags adds the server's flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory of the embedded etcd's data and of generated files.")
	fs.StringVar(&o.CertDir, "cert-dir", o.CertDir, "Directory of the cluster's CA, certificates and admin.kubeconfig; made there if it has none. Servers of one cluster share it. (default <data-dir>/pki)")
	fs.StringVar(&o.ClientCAFile, "client-ca-file", o.ClientCAFile, "File with CAs, beside that of --cert-dir, whose clients' certificates are accepted. A change of the file takes effect without a restart.")
	o.Aggregation.addFlags(fs)
	o.AddVersionFlags(fs)
	fs.DurationVar(&o.IdentityLeaseDuration, "identity-lease-duration", o.IdentityLeaseDuration, "How long this server counts as alive without renewing its identity Lease.")
	fs.DurationVar(&o.IdentityLeaseRenewInterval, "identity-lease-renew-interval", o.IdentityLeaseRenewInterval, "Time between renewals of the identity Lease.")
	fs.DurationVar(&o.ControllerLeaseDuration, "controller-lease-duration", o.ControllerLeaseDuration, "How long the elected controllers keep their lock without renewing it.")
	fs.DurationVar(&o.MigrationMaxAddedLatency, "migration-max-added-latency", o.MigrationMaxAddedLatency, "By how much a storage migration may lengthen a small read of etcd while clients are being served; beyond it the migration slows down, to no less than 200 objects per second (20 of large ones). 0 means full speed. A migration's spec.maxAddedLatency goes first.")
	fs.IntVar(&o.MigrationMaxObjectsPerSecond, "migration-max-objects-per-second", o.MigrationMaxObjectsPerSecond, "Most objects that a storage migration rewrites per second; 0 means no bound. A migration's spec.maxObjectsPerSecond goes first.")
	fs.DurationVar(&o.EncryptionReloadInterval, "encryption-provider-config-reload-interval", o.EncryptionReloadInterval, "How often a changed --encryption-provider-config is looked for, with --encryption-provider-config-automatic-reload, and KMS plugins are asked which key they use (that at most every 20 s).")
	fs.BoolVar(&o.Controllers, "controllers", o.Controllers, "Whether this server may run the leader-elected controllers.")

	fs.BoolVar(&o.AllowUndecodableStorage, stored.AllowFlag, o.AllowUndecodableStorage, stored.AllowUsage)
	o.addLibraryFlags(fs)
	o.flags = fs
}

// addLibraryFlags adds the flags that the libraries bring. One is only there to be
// refused with a reason, and what is stored how is not for a flag to say.
func (o *Options) addLibraryFlags(fs *pflag.FlagSet) {
	addMissing(fs, o.SecureServing.AddFlags, o.Etcd.AddFlags, o.Audit.AddFlags, o.ServerRun.AddUniversalFlags)
	for _, name := range []string{"etcd-servers-overrides", "storage-media-type", "storage-backend"} {
		if f := fs.Lookup(name); f != nil {
			f.Hidden = true
		}
	}
}

// AddVersionFlags adds the flags that decide which APIs are served and stored (KEP-4330,
// "Component Flags").
func (o *Options) AddVersionFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.EmulationVersion, "emulation-version", o.EmulationVersion, "Kubernetes release to emulate, "+allowedVersions()+". (default "+compat.BinaryVersion().String()+")")
	fs.StringVar(&o.EmulationVersion, "emulated-version", o.EmulationVersion, "Alias of --emulation-version.")
	fs.StringVar(&o.MinCompatibilityVersion, "min-compatibility-version", o.MinCompatibilityVersion, "Oldest release that must be able to read what is stored, "+allowedVersions()+", and at most the emulation version. (default the release before the emulation version)")
	fs.Var(&o.RuntimeConfig, "runtime-config", "Comma-separated group/version[/resource]=true|false pairs, or api/all, api/ga, api/beta, api/alpha, that switch APIs on or off.")
	fs.StringSliceVar(&o.FeatureGates, "feature-gates", o.FeatureGates, gatesUsage())
	fs.BoolVar(&o.ServerRun.EmulationForwardCompatible, "emulation-forward-compatible", o.ServerRun.EmulationForwardCompatible, "Serve, with each stable or enabled beta API of the emulated release, the newer and more stable versions that the binary has.")
	fs.BoolVar(&o.ServerRun.RuntimeConfigEmulationForwardCompatible, "runtime-config-emulation-forward-compatible", o.ServerRun.RuntimeConfigEmulationForwardCompatible, "Upstream's permission for --runtime-config to name APIs newer than the emulated release. KEP-4330 always gives it, so this changes nothing.")
}

func allowedVersions() string {
	var names []string
	for _, v := range compat.AllowedEmulation(compat.BinaryVersion()) {
		names = append(names, v.String())
	}
	return "one of " + strings.Join(names, ", ")
}

// addMissing adds the libraries' flags that fs does not define itself: Concord's own
// flags of certificates, versions and features stand.
func addMissing(fs *pflag.FlagSet, adders ...func(*pflag.FlagSet)) {
	for _, add := range adders {
		all := pflag.NewFlagSet("library", pflag.ContinueOnError)
		add(all)
		all.VisitAll(func(f *pflag.Flag) {
			if fs.Lookup(f.Name) == nil {
				fs.AddFlag(f)
			}
		})
	}
}

// Complete fills in what follows from other options and says what is wrong with them.
// Nothing is started and no file is touched.
func (o *Options) Complete() error {
	if err := o.completeVersions(); err != nil {
		return err
	}
	if err := o.completePaths(); err != nil {
		return err
	}
	for flag, d := range map[string]time.Duration{"--identity-lease-duration": o.IdentityLeaseDuration, "--controller-lease-duration": o.ControllerLeaseDuration} {
		if d < time.Second || d%time.Second != 0 {
			return fmt.Errorf("%s %v is not allowed: whole seconds, at least 1s", flag, d)
		}
	}
	if o.IdentityLeaseRenewInterval <= 0 || o.IdentityLeaseRenewInterval > o.IdentityLeaseDuration/2 {
		return fmt.Errorf("--identity-lease-renew-interval %v must be above 0 and at most half of --identity-lease-duration %v", o.IdentityLeaseRenewInterval, o.IdentityLeaseDuration)
	}
	if o.MigrationMaxAddedLatency < 0 || o.MigrationMaxObjectsPerSecond < 0 {
		return fmt.Errorf("--migration-max-added-latency %v and --migration-max-objects-per-second %d must not be negative", o.MigrationMaxAddedLatency, o.MigrationMaxObjectsPerSecond)
	}
	if len(o.Etcd.EtcdServersOverrides) > 0 {
		return errors.New("--etcd-servers-overrides is not supported: a resource in another etcd than its StorageVersion cannot be fenced; remove the flag")
	}
	if len(o.Etcd.StorageConfig.Transport.ServerList) == 0 {
		for flag, value := range map[string]string{"--etcd-cafile": o.Etcd.StorageConfig.Transport.TrustedCAFile, "--etcd-certfile": o.Etcd.StorageConfig.Transport.CertFile, "--etcd-keyfile": o.Etcd.StorageConfig.Transport.KeyFile} {
			if value != "" {
				return fmt.Errorf("%s needs --etcd-servers: the embedded etcd is reached through a unix socket", flag)
			}
		}
	}
	if strings.Trim(o.Etcd.StorageConfig.Prefix, "/") == "" {
		return fmt.Errorf("--etcd-prefix %q is empty: objects are stored below a prefix such as %s", o.Etcd.StorageConfig.Prefix, DefaultEtcdPrefix)
	}
	if backend := o.Etcd.StorageConfig.Type; backend != "" && backend != "etcd3" {
		return fmt.Errorf("--storage-backend %s is not supported: only etcd3 is", backend)
	}
	if o.Etcd.DefaultStorageMediaType != runtime.ContentTypeProtobuf {
		return fmt.Errorf("--storage-media-type %s is not supported: built-in resources are stored in %s, custom resources in JSON", o.Etcd.DefaultStorageMediaType, runtime.ContentTypeProtobuf)
	}
	if err := o.checkForwardCompatible(); err != nil {
		return err
	}
	if err := o.checkSurroundings(); err != nil {
		return err
	}
	if err := o.keyring().Validate(); err != nil {
		return err
	}
	if o.EncryptionReloadInterval <= 0 {
		return fmt.Errorf("--%s-reload-interval %v must be above 0", keyring.Flag, o.EncryptionReloadInterval)
	}
	var errs []error
	if _, err := genericoptions.ParseWatchCacheSizes(o.Etcd.WatchCacheSizes); err != nil {
		errs = append(errs, fmt.Errorf("--watch-cache-sizes: %w", err))
	}
	errs = append(errs, o.ServerRun.Validate()...)
	errs = append(errs, o.SecureServing.Validate()...)
	errs = append(errs, o.Aggregation.RequestHeader.Validate()...)
	errs = append(errs, o.Audit.Validate()...)
	return utilerrors.NewAggregate(errs)
}

// checkForwardCompatible says what the library does in the names of its fields.
func (o *Options) checkForwardCompatible() error {
	for flag, set := range map[string]bool{
		"emulation-forward-compatible":                o.ServerRun.EmulationForwardCompatible,
		"runtime-config-emulation-forward-compatible": o.ServerRun.RuntimeConfigEmulationForwardCompatible,
	} {
		if set && o.versions.emulation.EqualTo(o.versions.binary) {
			return fmt.Errorf("--%s needs an --emulation-version below the binary's %s: remove the flag, or emulate %s", flag, o.versions.binary, strings.TrimSuffix(allowedVersions(), ", "+o.versions.binary.String()))
		}
	}
	return nil
}

func (o *Options) completePaths() error {
	for _, dir := range []*string{&o.DataDir, &o.CertDir} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("directory %q: %w", *dir, err)
		}
		*dir = abs
	}
	if o.DataDir == "" {
		return errors.New("--data-dir must not be empty")
	}
	if o.CertDir == "" {
		o.CertDir = filepath.Join(o.DataDir, "pki")
	}
	return nil
}

// completeVersions sets the process's versions and feature gates (KEP-4330, "Component
// Flags"). They are global to the process, as in the libraries.
func (o *Options) completeVersions() error {
	binary := compat.BinaryVersion()
	emulation, minCompatibility, err := compat.ParseVersions(binary, o.EmulationVersion, o.MinCompatibilityVersion)
	if err != nil {
		return err
	}
	o.versions = versions{binary: binary, emulation: emulation, minCompatibility: minCompatibility}
	if o.gates, err = o.setGates(); err != nil {
		return err
	}
	if o.gates.Enabled(gates.CompatibilityVersions) {
		return nil
	}
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"--emulation-version", o.EmulationVersion != ""},
		{"--min-compatibility-version", o.MinCompatibilityVersion != ""},
		{"--emulation-forward-compatible", o.ServerRun.EmulationForwardCompatible},
		{"--runtime-config-emulation-forward-compatible", o.ServerRun.RuntimeConfigEmulationForwardCompatible},
	} {
		if f.set {
			return fmt.Errorf("%s needs the feature gate %s, which is off: remove the flag, or set the gate to true", f.name, gates.CompatibilityVersions)
		}
	}
	return nil
}
