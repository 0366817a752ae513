package generic

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/gates"
)

// Complete fills in what follows from other options and says what is wrong with them.
// Nothing is started and no file is touched. Versions and feature gates are the process's,
// as in the libraries.
func (o *Options) Complete() error {
	if err := o.completeVersions(); err != nil {
		return err
	}
	if err := o.completePaths(); err != nil {
		return err
	}
	if err := o.validateOwn(); err != nil {
		return err
	}
	return o.validateStorage()
}

func (o *Options) validateOwn() error {
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
	if o.EncryptionReloadInterval <= 0 {
		return fmt.Errorf("--%s-reload-interval %v must be above 0", encryptionFlag, o.EncryptionReloadInterval)
	}
	return nil
}

func (o *Options) validateStorage() error {
	etcd := o.etcd()
	if len(etcd.EtcdServersOverrides) > 0 {
		return errors.New("--etcd-servers-overrides is not supported: a resource in another etcd than its StorageVersion cannot be fenced; remove the flag")
	}
	if len(etcd.StorageConfig.Transport.ServerList) == 0 {
		for flag, value := range map[string]string{"--etcd-cafile": etcd.StorageConfig.Transport.TrustedCAFile, "--etcd-certfile": etcd.StorageConfig.Transport.CertFile, "--etcd-keyfile": etcd.StorageConfig.Transport.KeyFile} {
			if value != "" {
				return fmt.Errorf("%s needs --etcd-servers: the embedded etcd is reached through a unix socket", flag)
			}
		}
	}
	if strings.Trim(etcd.StorageConfig.Prefix, "/") == "" {
		return fmt.Errorf("--etcd-prefix %q is empty: objects are stored below a prefix such as /registry", etcd.StorageConfig.Prefix)
	}
	if etcd.EncryptionProviderConfigFilepath == "" && etcd.EncryptionProviderConfigAutomaticReload {
		return fmt.Errorf("--%s-automatic-reload needs --%s", encryptionFlag, encryptionFlag)
	}
	return nil
}

func (o *Options) completePaths() error {
	if o.DataDir == "" {
		return errors.New("--data-dir must not be empty")
	}
	if o.CertDir == "" {
		o.CertDir = filepath.Join(o.DataDir, "pki")
	}
	for _, dir := range []*string{&o.DataDir, &o.CertDir} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return fmt.Errorf("directory %q: %w", *dir, err)
		}
		*dir = abs
	}
	return nil
}

// completeVersions sets the process's versions and feature gates (KEP-4330, "Component
// Flags").
func (o *Options) completeVersions() (err error) {
	if o.emulation, o.minCompatibility, err = compat.ParseVersions(compat.BinaryVersion(), o.EmulationVersion, o.MinCompatibilityVersion); err != nil {
		return err
	}
	registry := o.ControlPlane.GenericServerRunOptions.ComponentGlobalsRegistry
	for _, component := range gates.Components {
		effective, ok := registry.EffectiveVersionFor(component).(basecompatibility.MutableEffectiveVersion)
		if !ok {
			return fmt.Errorf("the versions of component %s cannot be set", component)
		}
		effective.SetEmulationVersion(o.emulation)
		effective.SetMinCompatibilityVersion(o.minCompatibility)
	}
	if err := registry.Set(); err != nil || o.flags == nil {
		return err
	}
	return o.flags.Check()
}

func allowedVersions() string {
	var names []string
	for _, v := range compat.AllowedEmulation(compat.BinaryVersion()) {
		names = append(names, v.String())
	}
	return "one of " + strings.Join(names, ", ")
}

// versionValue is the value of a version flag. Upstream's form, kube=1.36, is one, too.
type versionValue struct{ to *string }

var _ pflag.Value = versionValue{}

// String implements pflag.Value.
func (v versionValue) String() string {
	if v.to == nil {
		return ""
	}
	return *v.to
}

// Set implements pflag.Value.
func (v versionValue) Set(value string) error {
	*v.to = strings.TrimPrefix(value, basecompatibility.DefaultKubeComponent+"=")
	return nil
}

// Type implements pflag.Value.
func (versionValue) Type() string { return "string" }
