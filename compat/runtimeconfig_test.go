package compat

import "testing"

const configured = `
core              v1       configmaps  1.2  - -
core              v1       secrets     1.2  - -
networking.k8s.io v1       ipaddresses 1.33 - -
networking.k8s.io v1beta1  ipaddresses 1.31 - 1.40
networking.k8s.io v1       ingresses   1.19 - -
networking.k8s.io v1alpha1 ipaddresses 1.27 - 1.40
internal.apiserver.k8s.io v1alpha1 storageversions - - -
`

// The most specific key wins: resource, version, class, everything, default.
func TestRuntimeConfigPrecedence(t *testing.T) {
	for _, c := range []struct{ config, ipaddresses, ingresses, configmaps string }{
		{"", "v1", "v1", "v1"},
		{"api/beta=true", "v1 v1beta1", "v1", "v1"},
		{"api/alpha", "v1 v1alpha1", "v1", "v1"},
		{"api/all=true", "v1 v1beta1 v1alpha1", "v1", "v1"},
		{"api/all=true,api/alpha=false", "v1 v1beta1", "v1", "v1"},
		{"api/all=false,api/ga=true", "v1", "v1", "v1"},
		{"api/all=false,networking.k8s.io/v1=true", "v1", "v1", ""},
		{"api/ga=false,networking.k8s.io/v1beta1=1", "v1beta1", "", ""},
		{"networking.k8s.io/v1=false", "", "", "v1"},
		{"networking.k8s.io/v1=false,networking.k8s.io/v1/ingresses=true", "", "v1", "v1"},
		{"networking.k8s.io/v1/ipaddresses=false", "", "v1", "v1"},
		{"v1=false", "v1", "v1", ""},
		{"/v1=false", "v1", "v1", ""},
		{"/v1/configmaps=false", "v1", "v1", ""},
	} {
		o := Options{RuntimeConfig: config(t, c.config)}
		p := mustPlan(t, lifecycles(t, configured), o)
		for gr, want := range map[string]string{
			"ipaddresses.networking.k8s.io": c.ipaddresses, "ingresses.networking.k8s.io": c.ingresses, "configmaps": c.configmaps,
			"storageversions.internal.apiserver.k8s.io": "v1alpha1",
		} {
			if got := served(t, p, gr); got != want {
				t.Errorf("--runtime-config=%s: %s served in %q, want %q", c.config, gr, got, want)
			}
		}
	}
}

func TestRuntimeConfigErrors(t *testing.T) {
	for _, c := range []struct{ emulation, config, reason, allowed string }{
		{"", "apps/v1=true", `invalid key "apps/v1"`,
			"api/all, api/alpha, api/beta, api/ga, internal.apiserver.k8s.io/v1alpha1, networking.k8s.io/v1, networking.k8s.io/v1alpha1, networking.k8s.io/v1beta1, v1"},
		{"", "networking.k8s.io/v2=true", `invalid key "networking.k8s.io/v2"`, "allowed are networking.k8s.io/v1, networking.k8s.io/v1alpha1, networking.k8s.io/v1beta1"},
		{"", "networking.k8s.io/v1/foos=true", `invalid key "networking.k8s.io/v1/foos"`, "allowed are networking.k8s.io/v1/ingresses, networking.k8s.io/v1/ipaddresses"},
		{"", "v1/pods=true", `invalid key "v1/pods"`, "allowed are v1/configmaps, v1/secrets"},
		{"", "api/gamma=true", `invalid key "api/gamma"`, "allowed are api/all, api/alpha, api/beta, api/ga"},
		{"", "networking=true", `invalid key "networking"`, "api/all"},
		{"", "///=true", `invalid key "///"`, "api/all"},
		{"", "networking.k8s.io/v1=yes", `invalid value "yes" for flag --runtime-config networking.k8s.io/v1`, "true and false"},
		{"", "api/all=false", "api/all=false alone", "enable something"},
		{"1.36", "api/alpha=true", "--runtime-config=api/alpha=true enables networking.k8s.io/v1alpha1/ipaddresses", "allowed are beta and stable versions"},
		{"1.36", "api/all=true", "--runtime-config=api/all=true enables", "emulation version 1.36 is below binary version 1.37"},
		{"1.36", "networking.k8s.io/v1alpha1/ipaddresses=true", "alpha APIs may not be used", "allowed are beta and stable versions"},
	} {
		o := options(t, Binary, c.emulation, "")
		o.RuntimeConfig = config(t, c.config)
		_, err := NewPlan(lifecycles(t, configured), o)
		wantError(t, err, c.reason, c.allowed)
	}
}

func TestBadLifecycles(t *testing.T) {
	for table, want := range map[string]string{
		"api v1 things 1.30 - 1.30":                      "api/v1/things: removed in 1.30",
		"api v1 things 1.30 - -\napi v1 things 1.31 - -": "api/v1/things: given twice",
		"api latest things 1.30 - -":                     "a version like v1",
	} {
		_, err := NewPlan(lifecycles(t, table), Options{})
		wantError(t, err, want)
	}
}
