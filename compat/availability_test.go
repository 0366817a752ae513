package compat

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// The lifecycles of KEP-4330's examples. They remove a version one release after its introduction, so that no version could be stored
// for a whole window: only availability is looked at. The group is called "api", as in the KEP's flags.
const (
	betaToGA = `
api v1alpha1 things 1.30 - 1.31 notpersisted
api v1beta1  things 1.31 - 1.32 notpersisted
api v1       things 1.32 - -    notpersisted`
	betaToBeta = `
api v1beta1  things 1.31 - 1.32 notpersisted
api v1beta2  things 1.32 - -    notpersisted`
	gaToGA = `
api v1       things 1.28 - -    notpersisted
api v2beta1  things 1.31 - 1.32 notpersisted
api v2       things 1.32 - -    notpersisted`
	betaBetween = `
api v1beta1  things 1.30 - -    notpersisted
api v1beta2  things 1.31 - -    notpersisted
api v1       things 1.32 - -    notpersisted`
)

// The table "Here are some examples for BinaryVersion = 1.33" of KEP-4330, API availability in forward-compatible mode.
func TestAvailabilityExamples(t *testing.T) {
	const forward = true
	for _, c := range []struct {
		lifecycle, emulation, config string
		forward                      bool
		want                         string
	}{
		// "api/v1beta1 available when --runtime-config=api/v1beta1=true"
		{betaToGA, "1.31", "", false, ""},
		{betaToGA, "1.31", "api/v1beta1=true", false, "v1beta1"},
		// "api/v1beta1 and api/v1 available only when --runtime-config=api/v1beta1=true,api/v1=true or
		// --runtime-config=api/v1beta1=true --emulation-forward-compatible=true"
		{betaToGA, "1.31", "api/v1beta1=true,api/v1=true", false, "v1 v1beta1"},
		{betaToGA, "1.31", "api/v1beta1=true", forward, "v1 v1beta1"},
		{betaToGA, "1.31", "", forward, ""},
		// "api/v1"
		{betaToGA, "1.33", "", false, "v1"},
		{betaToGA, "1.33", "api/v1beta1=true", forward, "v1"},
		// "api/v1beta1 available when --runtime-config=api/v1beta1=true"
		{betaToBeta, "1.31", "", false, ""},
		{betaToBeta, "1.31", "api/v1beta1=true", false, "v1beta1"},
		// "api/v1beta1 and api/v1beta2 available only when --runtime-config=api/v1beta1=true,api/v1beta2=true or
		// --runtime-config=api/v1beta1=true --emulation-forward-compatible=true"
		{betaToBeta, "1.31", "api/v1beta1=true,api/v1beta2=true", false, "v1beta2 v1beta1"},
		{betaToBeta, "1.31", "api/v1beta1=true", forward, "v1beta2 v1beta1"},
		{betaToBeta, "1.31", "", forward, ""},
		// "api/v1beta2 available only when --runtime-config=api/v1beta2=true"
		{betaToBeta, "1.33", "", forward, ""},
		{betaToBeta, "1.33", "api/v1beta2=true", false, "v1beta2"},
		// "api/v1", "api/v1, api/v2 when --runtime-config=api/v2=true or --emulation-forward-compatible=true"
		{gaToGA, "1.30", "", false, "v1"},
		{gaToGA, "1.30", "api/v2=true", false, "v2 v1"},
		{gaToGA, "1.30", "", forward, "v2 v1"},
		// "api/v1, api/v2beta1 available when --runtime-config=api/v2beta1=true"
		{gaToGA, "1.31", "", false, "v1"},
		{gaToGA, "1.31", "api/v2beta1=true", false, "v1 v2beta1"},
		// "api/v1, api/v2beta1, api/v2 available only when --runtime-config=api/v2beta1=true,api/v2=true or
		// --runtime-config=api/v2beta1=true, --emulation-forward-compatible=true"
		{gaToGA, "1.31", "api/v2beta1=true,api/v2=true", false, "v2 v1 v2beta1"},
		{gaToGA, "1.31", "api/v2beta1=true", forward, "v2 v1 v2beta1"},
		// Not in the KEP; Kubernetes serves the versions that lie between, unless told not to.
		{betaBetween, "1.31", "api/v1beta1=true", false, "v1beta1"},
		{betaBetween, "1.31", "api/v1beta1=true", forward, "v1 v1beta2 v1beta1"},
		{betaBetween, "1.31", "api/v1beta1=true,api/v1beta2=false", forward, "v1 v1beta1"},
		{betaBetween, "1.31", "api/v1beta2=true", forward, "v1 v1beta2"},
		// "api/v1, api/v2"
		{gaToGA, "1.33", "", false, "v2 v1"},
	} {
		o := options(t, "1.33", c.emulation, "")
		o.RuntimeConfig, o.ForwardCompatible = config(t, c.config), c.forward
		if got := served(t, mustPlan(t, lifecycles(t, c.lifecycle), o), "things.api"); got != c.want {
			t.Errorf("%s\nemulation %s, --runtime-config=%s, forward compatible %t: served %q, want %q", c.lifecycle, c.emulation, c.config, c.forward, got, c.want)
		}
	}

	// "1.30: NA because we do not support emulating alpha apis."
	o := options(t, "1.33", "1.30", "")
	if got := served(t, mustPlan(t, lifecycles(t, betaToGA), o), "things.api"); got != "" {
		t.Errorf("emulation 1.30 serves %q", got)
	}
	o.RuntimeConfig = config(t, "api/v1alpha1=true")
	_, err := NewPlan(lifecycles(t, betaToGA), o)
	wantError(t, err, "--runtime-config=api/v1alpha1=true", "alpha APIs may not be used while emulation version 1.30 is below binary version 1.33")
}

// The five rules of KEP-4330, "For API availability, setting --emulation-forward-compatible=true means".
func TestForwardCompatibleRules(t *testing.T) {
	const beta = "api v1beta1 things 1.31 1.32 1.33\napi v1beta2 things 1.32 - -\napi v1 things 1.33 - -\n"
	onByDefault := sets.New(schema.GroupVersion{Group: "api", Version: "v1beta1"})
	for _, c := range []struct {
		rule, lifecycle, config string
		onByDefault             sets.Set[schema.GroupVersion]
		forward                 bool
		want                    string
	}{
		{"1: if an API is removed after the emulation version, it would still be available at the emulation version " +
			"(regardless of --emulation-forward-compatible=true/false)", beta, "api/v1beta1=true", nil, false, "v1beta1"},
		{"1, true", beta, "api/v1beta1=true", nil, true, "v1 v1beta2 v1beta1"},
		{"2: it can be enabled by --runtime-config=api/<version> or it can be on-by-default at the emulation version",
			beta, "", onByDefault, false, "v1beta1"},
		{"2: its GA version(s) would also be enabled [...], the newer Beta API(s) would also be enabled", beta, "", onByDefault, true, "v1 v1beta2 v1beta1"},
		{"2, but not what the operator turned off", beta, "api/v1beta2=false", onByDefault, true, "v1 v1beta1"},
		{"3: if a Beta API is not enabled at the emulation version, its future versions would not be enabled", beta, "", nil, true, ""},
		{"3: if a Beta API is not enabled", beta, "api/v1beta1=false", onByDefault, true, ""},
		{"3: unless explicitly enabled with --runtime-config=api/<version>", beta, "api/v1beta2=true", nil, true, "v1beta2"},
		{"3, a class is not explicit", beta, "api/ga=true", nil, false, ""},
		{"4: If an API has GAed at the emulated version, it would be enabled by default",
			"api v1 things 1.20 - -\napi v2 things 1.33 - -\n", "", nil, false, "v1"},
		{"4: the new GA API(s) would also be enabled at the emulation version along with the old GA API",
			"api v1 things 1.20 - -\napi v2 things 1.33 - -\n", "", nil, true, "v2 v1"},
		{"4, not less stable ones", "api v1 things 1.20 - -\napi v2beta1 things 1.33 - -\n", "", nil, true, "v1"},
		{"5: Alpha APIs may not be enabled in conjunction with emulation version",
			"api v1alpha1 things 1.20 - -\napi v1alpha2 things 1.33 - -\n", "", nil, true, ""},
	} {
		o := options(t, "1.33", "1.31", "1.31")
		o.RuntimeConfig, o.BetaOnByDefault, o.ForwardCompatible = config(t, c.config), c.onByDefault, c.forward
		if got := served(t, mustPlan(t, lifecycles(t, c.lifecycle), o), "things.api"); got != c.want {
			t.Errorf("rule %s\n--runtime-config=%s, forward compatible %t: served %q, want %q", c.rule, c.config, c.forward, got, c.want)
		}
	}
}

// The API rows of the transition grid of KEP-4330, Integration tests, with N = 1.37. "Beta API graduated to GA" says that
// --runtime-config=api/v1beta1=true alone makes v1 available; the availability examples above exclude that and win.
func TestTransitionGrid(t *testing.T) {
	const n1, n = "1.36", "1.37"
	onByDefault := sets.New(schema.GroupVersion{Group: "api", Version: "v1beta1"})
	for _, c := range []struct {
		transition, lifecycle string
		onByDefault           sets.Set[schema.GroupVersion]
		emulation, config     string
		want                  string // served, or what the error contains after "!"
	}{
		{"Alpha API introduced", "api v1alpha1 things 1.37 - -", nil, n1, "", ""},
		{"Alpha API introduced", "api v1alpha1 things 1.37 - -", nil, n1, "api/v1alpha1=true", "!alpha APIs may not be used"},
		{"Alpha API introduced", "api v1alpha1 things 1.37 - -", nil, n, "", ""},
		{"Alpha API introduced", "api v1alpha1 things 1.37 - -", nil, n, "api/v1alpha1=true", "v1alpha1"},
		{"Beta API graduated to GA", "api v1beta1 things 1.35 1.37 1.40\napi v1 things 1.37 - -", nil, n1, "", ""},
		{"Beta API graduated to GA", "api v1beta1 things 1.35 1.37 1.40\napi v1 things 1.37 - -", nil, n1, "api/v1beta1=true", "v1beta1"},
		{"Beta API graduated to GA", "api v1beta1 things 1.35 1.37 1.40\napi v1 things 1.37 - -", nil, n, "", "v1"},
		{"Beta API removed", "api v1beta1 things 1.33 1.34 1.37", nil, n1, "", ""},
		{"Beta API removed", "api v1beta1 things 1.33 1.34 1.37", nil, n1, "api/v1beta1=true", "v1beta1"},
		{"Beta API removed", "api v1beta1 things 1.33 1.34 1.37", nil, n, "api/v1beta1=true", ""},
		{"on-by-default Beta API removed", "api v1beta1 things 1.33 1.34 1.37", onByDefault, n1, "", "v1beta1"},
		{"on-by-default Beta API removed", "api v1beta1 things 1.33 1.34 1.37", onByDefault, n1, "api/v1beta1=false", ""},
		{"on-by-default Beta API removed", "api v1beta1 things 1.33 1.34 1.37", onByDefault, n, "", ""},
	} {
		o := options(t, Binary, c.emulation, "")
		o.RuntimeConfig, o.BetaOnByDefault = config(t, c.config), c.onByDefault
		p, err := NewPlan(lifecycles(t, c.lifecycle), o)
		if part, refused := strings.CutPrefix(c.want, "!"); refused {
			wantError(t, err, part)
		} else if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if got := served(t, p, "things.api"); got != c.want {
			t.Errorf("%s, emulation %s, --runtime-config=%s: served %q, want %q", c.transition, c.emulation, c.config, got, c.want)
		}
	}
}

func TestReasons(t *testing.T) {
	for _, c := range []struct {
		emulation, config string
		forward           bool
		gvr               string // group/version/resource
		served            bool
		want              string
	}{
		{"1.37", "", false, "admissionregistration.k8s.io/v1/mutatingadmissionpolicies", true, "stable since 1.36"},
		{"1.37", "", false, "admissionregistration.k8s.io/v1beta1/mutatingadmissionpolicies", false,
			"beta since 1.34, deprecated in 1.37, will be removed in 1.40; off by default, --runtime-config=admissionregistration.k8s.io/v1beta1=true enables it"},
		{"1.36", "", false, "admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies", false,
			"alpha since 1.32, deprecated in 1.35, will be removed in 1.38; off, alpha needs emulation version 1.37"},
		{"1.37", "api/beta=true", false, "certificates.k8s.io/v1beta1/clustertrustbundles", true,
			"beta since 1.33, deprecated in 1.37, will be removed in 1.40; on by --runtime-config=api/beta=true"},
		{"1.37", "networking.k8s.io/v1beta1=true", false, "networking.k8s.io/v1beta1/ipaddresses", false, "removed in 1.37"},
		{"1.36", "", false, "certificates.k8s.io/v1/clustertrustbundles", false, "introduced in 1.37, after emulation version 1.36"},
		{"1.36", "certificates.k8s.io/v1/clustertrustbundles", false, "certificates.k8s.io/v1/clustertrustbundles", true,
			"introduced in 1.37, after emulation version 1.36; on by --runtime-config=certificates.k8s.io/v1/clustertrustbundles=true"},
		{"1.36", "certificates.k8s.io/v1beta1=true", true, "certificates.k8s.io/v1/clustertrustbundles", true,
			"introduced in 1.37, after emulation version 1.36; on by --emulation-forward-compatible, as v1beta1 is served"},
		{"1.37", "v1=false", false, "/v1/configmaps", false, "stable since 1.2; off by --runtime-config=v1=false"},
		{"1.34", "api/all=false,api/ga=true", false, "internal.apiserver.k8s.io/v1alpha1/storageversions", true, "alpha; on, Concord needs it"},
		{"1.34", "", false, "storagemigration.k8s.io/v1alpha1/storageversionmigrations", false, "removed in 1.35, this binary no longer has it"},
	} {
		o := options(t, Binary, c.emulation, "")
		o.RuntimeConfig, o.ForwardCompatible = config(t, c.config), c.forward
		p := mustPlan(t, lifecycles(t, kubernetes), o)
		f := strings.Split(c.gvr, "/")
		gvr := schema.GroupVersionResource{Group: f[0], Version: f[1], Resource: f[2]}
		for _, v := range p.resource(gvr.GroupResource()).Served {
			if v.Version == gvr.Version && (v.Served != c.served || v.Reason != c.want) {
				t.Errorf("emulation %s, --runtime-config=%s: %s: served %t, %q\nwant %t, %q", c.emulation, c.config, c.gvr, v.Served, v.Reason, c.served, c.want)
			}
		}
		if p.Served(gvr) != c.served {
			t.Errorf("emulation %s, --runtime-config=%s: Served(%s) = %t", c.emulation, c.config, c.gvr, !c.served)
		}
	}
}
