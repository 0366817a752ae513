package compat

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// The lifecycles of KEP-4330's examples. They remove a version one release after its introduction, so that no version could be stored in
// all releases of a window; so the resources are not persisted, and only availability is tested. The group is called "api", as in the
// KEP's flags.
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
		// This case is not in the KEP: Kubernetes also serves the versions between two that are enabled, unless they are disabled.
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
// --runtime-config=api/v1beta1=true alone makes v1 available; the availability examples above exclude that, and the test goes by these.
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

const printed = `
core                         v1       configmaps                1.2  -    -
admissionregistration.k8s.io v1       mutatingadmissionpolicies 1.36 -    -
admissionregistration.k8s.io v1beta1  mutatingadmissionpolicies 1.34 1.37 1.40
authentication.k8s.io        v1       selfsubjectreviews        1.28 -    -    notpersisted`

func TestPlanTable(t *testing.T) {
	const want = `binary 1.37, emulation 1.36, min compatibility 1.35

GROUP                         RESOURCE                   VERSION  SERVED  STORAGE VERSION                       REASON
core                          configmaps                 v1       yes     v1                                    stable since 1.2
admissionregistration.k8s.io  mutatingadmissionpolicies  v1       yes     admissionregistration.k8s.io/v1beta1  stable since 1.36
admissionregistration.k8s.io  mutatingadmissionpolicies  v1beta1  no      admissionregistration.k8s.io/v1beta1  beta since 1.34; off by default, --runtime-config=admissionregistration.k8s.io/v1beta1=true enables it
authentication.k8s.io         selfsubjectreviews         v1       yes     -                                     stable since 1.28
`
	if got := mustPlan(t, lifecycles(t, printed), options(t, Binary, "1.36", "")).String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestPlanRowsJSON(t *testing.T) {
	const want = `[{"group":"","version":"v1","resource":"configmaps","served":true,"reason":"stable since 1.2","storageVersion":"v1"},` +
		`{"group":"admissionregistration.k8s.io","version":"v1","resource":"mutatingadmissionpolicies","served":true,"reason":"stable since 1.36","storageVersion":"admissionregistration.k8s.io/v1"},` +
		`{"group":"admissionregistration.k8s.io","version":"v1beta1","resource":"mutatingadmissionpolicies","served":false,` +
		`"reason":"beta since 1.34, deprecated in 1.37, will be removed in 1.40; off by default, --runtime-config=admissionregistration.k8s.io/v1beta1=true enables it",` +
		`"storageVersion":"admissionregistration.k8s.io/v1"},` +
		`{"group":"authentication.k8s.io","version":"v1","resource":"selfsubjectreviews","served":true,"reason":"stable since 1.28","storageVersion":""}]`
	got, err := json.Marshal(mustPlan(t, lifecycles(t, printed), Options{}).Rows())
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// KEP-4330, Component Flags: "Defaults to emulationVersion-1 if emulationVersion.GreaterThan(binaryVersion-3) [...], and defaults to
// emulationVersion if emulationVersion.EqualTo(binaryVersion-3)". Of the emulation version: "Defaults to binaryVersion".
func TestParseVersionsDefaults(t *testing.T) {
	for _, c := range []struct{ emulation, minCompatibility, wantEmulation, wantMin string }{
		{"", "", "1.37", "1.36"},
		{"1.37", "", "1.37", "1.36"},
		{"1.36", "", "1.36", "1.35"},
		{"1.35", "", "1.35", "1.34"},
		{"1.34", "", "1.34", "1.34"},
		{"", "1.37", "1.37", "1.37"},
		{"", "1.34", "1.37", "1.34"},
		{"v1.36", "1.36", "1.36", "1.36"},
	} {
		e, m, err := ParseVersions(BinaryVersion(), c.emulation, c.minCompatibility)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
		} else if e.String() != c.wantEmulation || m.String() != c.wantMin {
			t.Errorf("%+v: got emulation %s, min compatibility %s", c, e, m)
		}
	}
}

// "If below the supported version range the binary will exit and report an invalid flag value error telling the user what versions are
// allowed." The grid's "--emulation-version=<N-2> - fails flag validation" is the range of the alpha; the test goes by that of the beta,
// "Emulation version support for N-3 minor versions".
func TestParseVersionsErrors(t *testing.T) {
	const emulation = "allowed versions are 1.34, 1.35, 1.36, 1.37"
	for _, c := range []struct{ emulation, minCompatibility, value, flag, allowed string }{
		{"1.38", "", `"1.38"`, "--emulation-version", emulation}, // "--emulation-version=<N+1> - fails flag validation, binary exits"
		{"1.33", "", `"1.33"`, "--emulation-version", emulation},
		{"1.4000000000", "", `"1.4000000000"`, "--emulation-version", emulation},
		{"2.36", "", `"2.36"`, "--emulation-version", emulation},
		{"latest", "", `"latest"`, "--emulation-version", emulation},
		{"1.36rc", "", `"1.36rc"`, "--emulation-version", emulation},
		{"1.36.2", "", `"1.36.2"`, "--emulation-version", emulation},
		{"1", "", `"1"`, "--emulation-version", emulation},
		{"1.36", "1.37", `"1.37"`, "--min-compatibility-version", "allowed versions are 1.34, 1.35, 1.36"}, // "Must be <= --emulation-version"
		{"1.36", "1.33", `"1.33"`, "--min-compatibility-version", "allowed versions are 1.34, 1.35, 1.36"},
		{"", "1.x", `"1.x"`, "--min-compatibility-version", emulation},
	} {
		_, _, err := ParseVersions(BinaryVersion(), c.emulation, c.minCompatibility)
		wantError(t, err, "invalid value "+c.value+" for flag "+c.flag, c.allowed)
	}
}

func TestPlanChecksVersions(t *testing.T) {
	_, err := NewPlan(nil, options(t, Binary, "1.33", ""))
	wantError(t, err, "--emulation-version", "out of range for binary version 1.37", "1.34, 1.35, 1.36, 1.37")
	_, err = NewPlan(nil, options(t, Binary, "1.35", "1.36"))
	wantError(t, err, "--min-compatibility-version", "out of range for emulation version 1.35", "1.34, 1.35")

	p := mustPlan(t, nil, Options{Emulation: version.MustParse("1.36.4")})
	if got := p.Binary.String() + " " + p.Emulation.String() + " " + p.MinCompatibility.String(); got != "1.37 1.36 1.35" {
		t.Errorf("versions of the plan are %s", got)
	}
}

// The CEL rows of the grid of TestTransitionGrid, on the real CEL environments, with the function of the lists library that N = 1.37 introduces. The grid's N
// is taken as the min compatibility version: "always pass in N-1 of the compatibility version [...] as the CEL compatibility version". The
// row "new CEL function", where "CEL function does not exist" at N-1, cannot be tested: this binary evaluates stored expressions at every
// version that it emulates. So only the row "introduced CEL function" is.
func TestTransitionGridCEL(t *testing.T) {
	const (
		n1, n      = "1.36", "1.37"
		introduced = "[1, 2].includes(2)"
		older      = "[1, 2].sum() == 3"
	)
	for _, c := range []struct {
		expression, minCompatibility string
		kind                         environment.Type
		want                         bool
	}{
		{introduced, n1, environment.StoredExpressions, true}, // "Resources already containing CEL expression can be evaluated"
		{introduced, n1, environment.NewExpressions, false},
		{introduced, n, environment.StoredExpressions, true},
		{introduced, n, environment.NewExpressions, true}, // "CEL expression can be written to resources and can be evaluated from storage"
		{older, n1, environment.NewExpressions, true},
		{older, n1, environment.StoredExpressions, true},
		{older, n, environment.NewExpressions, true},
	} {
		env, err := environment.MustBaseEnvSet(version.MustParseMajorMinor(c.minCompatibility)).Env(c.kind)
		if err != nil {
			t.Fatal(err)
		}
		if _, issues := env.Compile(c.expression); (issues.Err() == nil) != c.want {
			t.Errorf("%s in %s with min compatibility %s: %v, want it to compile: %t", c.expression, c.kind, c.minCompatibility, issues.Err(), c.want)
		}
	}
}
