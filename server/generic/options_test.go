package generic_test

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/gates"
	"github.com/concord-dev/concord/server/generic"
)

// tryParse returns options with their own versions and gates, since a refused value would stay in
// those of the process.
func tryParse(t *testing.T, args ...string) (*generic.Options, error) {
	t.Helper()
	o := generic.NewOptions()
	registry := basecompatibility.NewComponentGlobalsRegistry()
	binary := compat.BinaryVersion()
	oldest := compat.AllowedEmulation(binary)[0]
	mustDo(t, registry.Register(gates.Kube, basecompatibility.NewEffectiveVersion(binary, false, oldest, oldest), utilfeature.DefaultMutableFeatureGate.DeepCopy()))
	mustDo(t, gates.Register(registry))
	o.ControlPlane.GenericServerRunOptions.ComponentGlobalsRegistry = registry
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.AddFlags(fs)
	return o, fs.Parse(args)
}

func TestFlagDefaults(t *testing.T) {
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	generic.NewOptions().AddFlags(fs)
	for flag, want := range map[string]string{
		"bind-address": "127.0.0.1", "secure-port": "6443", "data-dir": ".concord", "cert-dir": "", "etcd-prefix": "/registry",
		"identity-lease-duration": "15s", "identity-lease-renew-interval": "0s", "controller-lease-duration": "6s", "controllers": "true",
		"migration-max-added-latency": "relative", "migration-max-objects-per-second": "0", "migration-settle": "1m15s", "encryption-provider-config-reload-interval": "10s",
		"allow-undecodable-storage": "false", "emulation-version": "[]", "emulated-version": "[]", "min-compatibility-version": "[]",
		"authorization-mode": "[RBAC]", "service-account-issuer": "[https://kubernetes.default.svc]", "enable-priority-and-fairness": "true",
		"oidc-issuer-url": "", "authentication-config": "", "authorization-config": "", "audit-policy-file": "", "client-ca-file": "",
		"encryption-provider-config": "", "tls-cert-file": "", "requestheader-client-ca-file": "", "enable-aggregator-routing": "false",
	} {
		f := fs.Lookup(flag)
		if f == nil {
			t.Errorf("there is no --%s", flag)
		} else if f.DefValue != want {
			t.Errorf("--%s is %q by default, want %q", flag, f.DefValue, want)
		}
	}
}

// TestFlagTexts: the help does not say what is true of kube-apiserver only.
func TestFlagTexts(t *testing.T) {
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	generic.NewOptions().AddFlags(fs)
	for flag, wrong := range map[string]string{"tls-cert-file": "self-signed", "service-account-key-file": "--tls-private-key-file"} {
		if usage := fs.Lookup(flag).Usage; strings.Contains(usage, wrong) {
			t.Errorf("--%s: %s", flag, usage)
		}
	}
}

// TestNegativeBound: the error names the wrong flag only.
func TestNegativeBound(t *testing.T) {
	o, err := tryParse(t, "--migration-max-objects-per-second=-5")
	if err == nil {
		err = o.Complete()
	}
	if err == nil || strings.Contains(err.Error(), "latency") || !strings.Contains(err.Error(), "--migration-max-objects-per-second -5 must not be negative") {
		t.Error(err)
	}
}

// TestWatched: none of the resources that the server's own clients watch can be switched off, since it would never be ready.
func TestWatched(t *testing.T) {
	for _, resource := range strings.Fields(`v1/secrets v1/serviceaccounts v1/resourcequotas v1/services discovery.k8s.io/v1/endpointslices
		rbac.authorization.k8s.io/v1/roles rbac.authorization.k8s.io/v1/rolebindings
		rbac.authorization.k8s.io/v1/clusterroles rbac.authorization.k8s.io/v1/clusterrolebindings
		admissionregistration.k8s.io/v1/mutatingwebhookconfigurations admissionregistration.k8s.io/v1/validatingwebhookconfigurations
		admissionregistration.k8s.io/v1/validatingadmissionpolicies admissionregistration.k8s.io/v1/validatingadmissionpolicybindings
		admissionregistration.k8s.io/v1/mutatingadmissionpolicies admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings
		flowcontrol.apiserver.k8s.io/v1/flowschemas flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations`) {
		o, err := tryParse(t, "--runtime-config="+resource+"=false")
		mustDo(t, err)
		if err := o.Complete(); err == nil || !strings.Contains(err.Error(), "--runtime-config: "+resource+" cannot be switched off") {
			t.Errorf("%s: %v", resource, err)
		}
	}
	for _, args := range [][]string{
		{"--emulated-version=kube=1.34"},
		{"--feature-gates=AllBeta=true", "--runtime-config=coordination.k8s.io/v1beta1=true"},
		{"--runtime-config=flowcontrol.apiserver.k8s.io/v1/flowschemas=false", "--enable-priority-and-fairness=false"},
	} {
		o, err := tryParse(t, args...)
		mustDo(t, err)
		if err := o.Complete(); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestRefusedFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--emulated-version=kube=1.29", "allowed versions are 1.34, 1.35, 1.36, 1.37"},
		{"--identity-lease-duration=1500ms", "whole seconds"},
		{"--controller-lease-duration=0s", "whole seconds"},
		{"--identity-lease-renew-interval=8s", "at most half"},
		{"--feature-gates=kube:StorageVersionAPI=true", "stays off"},
		{"--etcd-servers-overrides=/secrets#http://127.0.0.1:1", "cannot be fenced"},
		{"--etcd-prefix=/", "is empty"},
		{"--etcd-cafile=ca.crt", "needs --etcd-servers"},
		{"--encryption-provider-config-automatic-reload", "needs --encryption-provider-config"},
		{"--encryption-provider-config-reload-interval=0s", "must be above 0"},
		{"--data-dir=", "--data-dir must not be empty"},
		{"--emulated-version=kube=1.35 --feature-gates=kube:MutatingAdmissionPolicy=true",
			"a feature that is switched on needs admissionregistration.k8s.io/v1/mutatingadmissionpolicies, which 1.35 does not have: add --runtime-config=admissionregistration.k8s.io/v1=true"},
		{"--feature-gates=AllBeta=true",
			"a feature that is switched on needs coordination.k8s.io/v1beta1/leasecandidates, which is off by default: add --runtime-config=coordination.k8s.io/v1beta1=true, or switch the feature off"},
		{"--runtime-config=discovery.k8s.io/v1=false", "--runtime-config: discovery.k8s.io/v1/endpointslices cannot be switched off, the server itself needs it: remove that setting, or add discovery.k8s.io/v1=true"},
	} {
		o, err := tryParse(t, strings.Fields(c.args)...)
		if err == nil {
			err = o.Complete()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", c.args, err, c.want)
		}
	}
}

// TestMissingFiles: if a file that a flag names does not exist, the error names the flag.
func TestMissingFiles(t *testing.T) {
	for _, flag := range []string{
		"--service-account-key-file", "--service-account-signing-key-file", "--authorization-config", "--authentication-config", "--token-auth-file",
		"--authentication-token-webhook-config-file", "--peer-ca-file",
	} {
		missing := filepath.Join(t.TempDir(), "missing")
		o, err := tryParse(t, "--data-dir="+t.TempDir(), "--secure-port=0", flag+"="+missing)
		if err == nil {
			err = o.Complete()
		}
		if err == nil {
			err = generic.Run(t.Context(), o, nil)
		}
		if !errors.Is(err, fs.ErrNotExist) || !strings.HasPrefix(err.Error(), flag+": ") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}
