package generic

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericfeatures "k8s.io/apiserver/pkg/features"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/keyring"
	"github.com/concord-dev/concord/server/planning"
)

// Complete fills in the options that follow from others, and returns an error if any are wrong. It starts nothing and
// touches no file. Versions and feature gates are those of the process, as in the libraries.
func (o *Options) Complete() error {
	if err := o.completeVersions(); err != nil {
		return err
	}
	if err := o.completePaths(); err != nil {
		return err
	}
	if err := o.Join.ValidateFlags(); err != nil {
		return err
	}
	return o.validateStorage()
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
	if err := o.checkSurroundings(); err != nil {
		return err
	}
	if errs := o.serving().Validate(); len(errs) > 0 {
		return errs[0]
	}
	return o.keyring().Validate()
}

// keyring is the configuration of encryption at rest, by the options.
func (o *Options) keyring() keyring.Config {
	return keyring.Config{
		Path: o.etcd().EncryptionProviderConfigFilepath, Reload: o.etcd().EncryptionProviderConfigAutomaticReload,
		Server: o.address(),
	}
}

// address is where the server listens.
func (o *Options) address() string {
	return net.JoinHostPort(o.serving().BindAddress.String(), strconv.Itoa(o.serving().BindPort))
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

// completeVersions makes the process's versions and feature gates of the flags, and plans
// the served and stored versions by them (KEP-4330, "Component Flags").
func (o *Options) completeVersions() (err error) {
	registry, set := o.registry(), o.registry().Set
	if o.versions != nil {
		set = o.versions.Set
	}
	if err := set(); err != nil {
		return err
	}
	o.Join.Silent = !registry.FeatureGateFor(gates.Concord).Enabled(gates.StorageVersionAPI)
	o.plan, err = o.Plan()
	return err
}

// Plan says which APIs a server with these options serves and how it stores every resource,
// without starting anything.
func (o *Options) Plan() (*compat.Plan, error) {
	return planning.New(planning.Options{
		Effective:         o.registry().EffectiveVersionFor(gates.Kube),
		Serves:            planning.Generic(),
		RuntimeConfig:     o.ControlPlane.APIEnablement.RuntimeConfig,
		ForwardCompatible: o.ControlPlane.GenericServerRunOptions.EmulationForwardCompatible,
		Needs:             o.watched(),
	})
}

// watched returns the resources that the server's own clients watch for authentication, authorization, admission, and to find
// webhooks and aggregated APIs. Where one is not served, these never know all there is, and the server is never ready.
func (o *Options) watched() []schema.GroupVersionResource {
	type resources struct {
		gv    schema.GroupVersion
		names []string
	}
	groups := []resources{
		{corev1.SchemeGroupVersion, []string{"secrets", "serviceaccounts", "resourcequotas", "services"}},
		{discoveryv1.SchemeGroupVersion, []string{"endpointslices"}},
		{rbacv1.SchemeGroupVersion, []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"}},
		{admissionv1.SchemeGroupVersion, []string{"mutatingwebhookconfigurations", "validatingwebhookconfigurations",
			"validatingadmissionpolicies", "validatingadmissionpolicybindings"}},
	}
	if o.registry().FeatureGateFor(gates.Kube).Enabled(genericfeatures.MutatingAdmissionPolicy) {
		groups = append(groups, resources{admissionv1.SchemeGroupVersion, []string{"mutatingadmissionpolicies", "mutatingadmissionpolicybindings"}})
	}
	if o.registry().FeatureGateFor(gates.Kube).Enabled(genericfeatures.CoordinatedLeaderElection) {
		groups = append(groups, resources{coordinationv1beta1.SchemeGroupVersion, []string{"leasecandidates"}})
	}
	if o.ControlPlane.Features.EnablePriorityAndFairness {
		groups = append(groups, resources{flowcontrolv1.SchemeGroupVersion, []string{"flowschemas", "prioritylevelconfigurations"}})
	}
	var all []schema.GroupVersionResource
	for _, group := range groups {
		for _, name := range group.names {
			all = append(all, group.gv.WithResource(name))
		}
	}
	return all
}
