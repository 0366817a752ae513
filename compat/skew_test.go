package compat

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func window(emulation, minCompatibility string) Window {
	return Window{Emulation: version.MustParse(emulation), MinCompatibility: version.MustParse(minCompatibility)}
}

// KEP-4330, "Skew":
//   - "kube-controller-manager, kube-scheduler, and cloud-controller-manager: [...] {minCompatibilityVersion}..{emulationVersion}"
//   - "kube-proxy, kubelet: [...] {minCompatibilityVersion-2}..{emulationVersion}"
//   - "kubectl: [...] {minCompatibilityVersion}..{emulationVersion+1}"
//
// With the default min compatibility version of a binary that emulates itself they are what they were "Previously":
// {binary-1}..{binary}, {binary-3}..{binary} and {binary-1}..{binary+1}.
func TestSkew(t *testing.T) {
	controllers := []Component{KubeControllerManager, KubeScheduler, CloudControllerManager, ConcordServer, ConcordControllers}
	nodes := []Component{KubeProxy, Kubelet}
	clients := []Component{Kubectl, ConcordCommand}
	if all := slices.Sorted(slices.Values(slices.Concat(controllers, nodes, clients))); !slices.Equal(all, slices.Sorted(maps.Keys(skewRules))) {
		t.Errorf("components %v, the table has %v", slices.Sorted(maps.Keys(skewRules)), all)
	}
	for _, c := range []struct{ emulation, min, controllers, nodes, clients string }{
		{"1.37", "1.36", "1.36..1.37", "1.34..1.37", "1.36..1.38"}, // "Previously", with binary 1.37
		{"1.36", "1.35", "1.35..1.36", "1.33..1.36", "1.35..1.37"},
		{"1.37", "1.37", "1.37..1.37", "1.35..1.37", "1.37..1.38"},
		{"1.37", "1.34", "1.34..1.37", "1.32..1.37", "1.34..1.38"}, // "[...] can be used to provide a wider skew range between components"
		{"1.34", "1.34", "1.34..1.34", "1.32..1.34", "1.34..1.35"},
	} {
		for want, components := range map[string][]Component{c.controllers: controllers, c.nodes: nodes, c.clients: clients} {
			for _, component := range components {
				if got, ok := Skew(component, window(c.emulation, c.min)); !ok || got.String() != want {
					t.Errorf("%s at emulation %s, min compatibility %s: %s, want %s", component, c.emulation, c.min, got, want)
				}
			}
		}
	}
	for _, c := range []Component{OtherComponent, UnknownComponent, "kube-apiserver"} {
		if r, ok := Skew(c, window("1.37", "1.36")); ok {
			t.Errorf("%s is allowed %s", c, r)
		}
	}
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		component Component
		version   string
		want      Verdict
	}{
		{KubeControllerManager, "1.34", TooOld}, {KubeControllerManager, "1.35", Within}, {KubeControllerManager, "1.36", Within}, {KubeControllerManager, "1.37", TooNew},
		{Kubelet, "1.32", TooOld}, {Kubelet, "1.33", Within}, {Kubelet, "1.36.9", Within}, {Kubelet, "1.37.0", TooNew},
		{Kubectl, "1.34.9", TooOld}, {Kubectl, "1.35", Within}, {Kubectl, "1.37", Within}, {Kubectl, "1.38", TooNew},
		{Kubectl, "2.36", TooNew}, {Kubectl, "0.36", TooOld},
		{Kubectl, "", Unknown}, {OtherComponent, "1.36", Unknown}, {UnknownComponent, "1.36", Unknown}, {"", "1.36", Unknown},
	} {
		var v *version.Version
		if c.version != "" {
			v = version.MustParseGeneric(c.version)
		}
		if got := Judge(c.component, v, window("1.36.2", "1.35")); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.component, c.version, got, c.want)
		}
	}
}

var userAgents = []struct{ userAgent, want string }{
	{"kubectl/v1.32.4 (linux/amd64) kubernetes/6ae0e6f", "kubectl 1.32"},
	{"kubectl.exe/v1.33.0 (windows/amd64) kubernetes/abcdef0", "kubectl 1.33"},
	{"kube-controller-manager/v1.36.0 (linux/amd64) kubernetes/abc/leader-election", "kube-controller-manager 1.36"},
	{"kube-scheduler/v1.37.0 (linux/amd64) kubernetes/abc/scheduler", "kube-scheduler 1.37"},
	{"cloud-controller-manager/v1.35.3+k3s1 (linux/arm64) kubernetes/1234567/shared-informers", "cloud-controller-manager 1.35"},
	{"kubelet/v1.34.1 (linux/amd64) kubernetes/93248f9", "kubelet 1.34"},
	{"kube-proxy/v1.34.1-gke.100 (linux/amd64) kubernetes/93248f9", "kube-proxy 1.34"},
	{"concord-controllers/v1.37.0 (linux/amd64) kubernetes/concord", "concord-controllers 1.37"},
	{"concord-server/v1.37", "concord-server 1.37"},
	{"concord/1.36", "concord 1.36"},

	// The User-Agent that stock client-go sends when its binary was built without link flags.
	{"my-operator/v0.0.0 (linux/amd64) kubernetes/$Format", "other"},
	{"kubectl/v0.0.0 (linux/amd64) kubernetes/$Format", "kubectl"},
	{"kubelet/unknown (linux/amd64) kubernetes/unknown", "kubelet"},
	{"unknown/v1.36.0 (linux/amd64) kubernetes/unknown", "other 1.36"},

	{"curl/8.5.0", "other 8.5"},
	{"kube-apiserver/v1.36.0 (linux/amd64) kubernetes/abc", "other 1.36"},
	{"kube-probe/1.36", "other 1.36"},
	{"kubectl-plugin/v1.36.0 (linux/amd64)", "other 1.36"},
	{"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36", "other 5.0"},
	{"Go-http-client/2.0", "other 2.0"},

	{"", "unknown"},
	{" ", "unknown"},
	{"/", "unknown"},
	{"/v1.36.0", "unknown"},
	{"kubectl", "kubectl"},
	{"kubectl/", "kubectl"},
	{"kubectl/v1", "kubectl"},
	{"kubectl/v1.", "kubectl"},
	{"kubectl/v1.36garbage", "kubectl"},
	{"kubectl/v01.36.0", "kubectl"},
	{"kubectl/v1.99999999999999999999", "kubectl"},
	{"kubectl/v-1.36", "kubectl"},
	{"kube\x00ctl/v1.36.0", "unknown"},
	{"kubectl\n/v1.36.0", "unknown"},
	{"{component=\"kubelet\"}/v1.36.0", "unknown"},
	{"ünï/v1.36.0", "unknown"},
	{"-kubectl/v1.36.0", "unknown"},
	{strings.Repeat("k", 64) + "/v1.36.0", "unknown"},
	{strings.Repeat("k", 1<<20), "unknown"},
	{"kubelet/v1.36.0 " + strings.Repeat("x", 1<<20), "kubelet 1.36"},
}

func told(i Identity) string {
	if i.Version == nil {
		return string(i.Component)
	}
	return fmt.Sprintf("%s %s", i.Component, i.Version)
}

func TestParseUserAgent(t *testing.T) {
	for _, c := range userAgents {
		if got := told(ParseUserAgent(c.userAgent)); got != c.want {
			t.Errorf("%.80q: %s, want %s", c.userAgent, got, c.want)
		}
	}
}

func TestIdentify(t *testing.T) {
	const agent = "kube-scheduler/v1.37.0 (linux/amd64) kubernetes/abc"
	for _, c := range []struct{ header, want string }{
		{"", "kube-scheduler 1.37"},
		// The header has the emulation version, the User-Agent the version of the binary.
		{"kube-scheduler/1.36", "kube-scheduler 1.36"},
		{"concord-controllers/v1.36.0", "concord-controllers 1.36"},
		{"third-party/1.36", "other 1.36"},
		{"concord-controllers", "kube-scheduler 1.37"},
		{"concord-controllers/latest", "kube-scheduler 1.37"},
		{"concord-controllers/1.36, kubectl/1.36", "kube-scheduler 1.37"},
		{"\xff/1.36", "kube-scheduler 1.37"},
		{"a/1.36" + strings.Repeat("0", 1<<20), "kube-scheduler 1.37"},
	} {
		if got := told(Identify(c.header, agent)); got != c.want {
			t.Errorf("%.80q: %s, want %s", c.header, got, c.want)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(skewRules)) {
		got, want := told(Identify(ComponentVersion(c, version.MustParse("1.36.3")), "")), string(c)+" 1.36"
		if got != want {
			t.Errorf("the header of %s is read as %s", c, got)
		}
	}
}

// FuzzIdentify asserts that every header and User-Agent lead to one of a few components and to a judgement, and that a header
// without component and version changes nothing.
func FuzzIdentify(f *testing.F) {
	for _, c := range userAgents {
		f.Add("", c.userAgent[:min(len(c.userAgent), 1<<10)])
		f.Add(c.userAgent[:min(len(c.userAgent), 1<<10)], "kubelet/v1.36.0 (linux/amd64) kubernetes/abc")
	}
	known := append(slices.Sorted(maps.Keys(skewRules)), OtherComponent, UnknownComponent)
	f.Fuzz(func(t *testing.T, header, userAgent string) {
		id := Identify(header, userAgent)
		if !slices.Contains(known, id.Component) {
			t.Errorf("component %q", id.Component)
		}
		if id.Component == UnknownComponent && id.Version != nil {
			t.Errorf("an unknown component has version %s", id.Version)
		}
		if v := id.Version; v != nil && (v.Major() == 0 || v.Major() > 9999 || v.Minor() > 9999) {
			t.Errorf("version %s", v)
		}
		_, ruled := Skew(id.Component, window("1.37", "1.36"))
		if verdict := Judge(id.Component, id.Version, window("1.37", "1.36")); (verdict == Unknown) == (ruled && id.Version != nil) {
			t.Errorf("%s is judged %s", told(id), verdict)
		}
		if !strings.Contains(header, "/") && told(id) != told(ParseUserAgent(userAgent)) {
			t.Errorf("header %q changes what %q tells", header, userAgent)
		}
	})
}

func TestJudgeServers(t *testing.T) {
	for _, c := range []struct {
		name    string
		servers string // binary/emulation/min of each, in order
		want    string // oldest..newest, number of windows, violations
	}{
		{"none", "", "<nil>..<nil> agree allowed"},
		{"all alike", "1.37/1.37/1.36 1.37/1.37/1.36", "1.37..1.37 agree allowed"},
		{"a cautious upgrade's first step changes the binary only", "1.36/1.36/1.35 1.37/1.36/1.35", "1.36..1.36 agree allowed"},
		{"its second step", "1.37/1.36/1.35 1.37/1.37/1.36", "1.36..1.37 differ allowed"},
		{"two releases, wide min compatibility", "1.37/1.35/1.34 1.37/1.37/1.34", "1.35..1.37 differ; 1.37 is newer than the 1.34..1.36 that servers at emulation version 1.35 with min compatibility version 1.34 allow"},
		{"only the min compatibility differs", "1.37/1.37/1.36 1.37/1.37/1.34", "1.37..1.37 differ allowed"},
		{"green-field beside an older one", "1.37/1.37/1.37 1.37/1.36/1.35", "1.36..1.37 differ; 1.36 is older than the 1.37..1.38 that servers at emulation version 1.37 with min compatibility version 1.37 allow"},
		{"two releases", "1.37/1.37/1.36 1.35/1.35/1.34 1.36/1.36/1.35", "1.35..1.37 differ" +
			"; 1.37 is newer than the 1.34..1.36 that servers at emulation version 1.35 with min compatibility version 1.34 allow" +
			"; 1.35 is older than the 1.36..1.38 that servers at emulation version 1.37 with min compatibility version 1.36 allow"},
		{"one does not tell", "1.37/1.37/1.36 //", "1.37..1.37 agree allowed, s1 silent"},
		{"one tells no min compatibility", "1.37/1.37/1.36 1.37/1.36/", "1.36..1.37 agree allowed, s1 silent"},
		{"mangled", "1.37/1.37/1.36 1.37/1.36/x 1.37/1.36.1/1.35", "1.36..1.37 agree allowed, s1 s2 silent"},
	} {
		var servers []ServerVersions
		for i, s := range strings.Fields(c.servers) {
			v := strings.Split(s, "/")
			servers = append(servers, ParseServerVersions(fmt.Sprintf("s%d", i), v[0], v[1], v[2]))
		}
		slices.Reverse(servers)
		if got := describe(JudgeServers(servers)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func describe(s ServerSkew) string {
	out := fmt.Sprintf("%s..%s", s.Oldest, s.Newest)
	if s.Agree() {
		out += " agree"
	} else {
		out += " differ"
	}
	if s.Allowed() {
		out += " allowed"
	}
	if len(s.Silent) > 0 {
		out += ", " + strings.Join(s.Silent, " ") + " silent"
	}
	for _, v := range s.Violations {
		out += "; " + v.String()
	}
	return out
}

// TestServersAllowEachOther compares JudgeServers with the rule, written out for two servers, for every pair of servers whose
// versions are in range.
func TestServersAllowEachOther(t *testing.T) {
	var all []ServerVersions
	for _, e := range AllowedEmulation(BinaryVersion()) {
		for _, m := range AllowedMinCompatibility(BinaryVersion(), e) {
			all = append(all, ServerVersions{ID: e.String() + "/" + m.String(), Binary: BinaryVersion(), Emulation: e, MinCompatibility: m})
		}
	}
	allows := func(a, b ServerVersions) bool {
		return b.Emulation.AtLeast(a.MinCompatibility) && !b.Emulation.GreaterThan(a.Emulation.AddMinor(1))
	}
	for _, a := range all {
		for _, b := range all {
			got := JudgeServers([]ServerVersions{a, b})
			if want := allows(a, b) && allows(b, a); got.Allowed() != want {
				t.Errorf("%s and %s: allowed %t, want %t: %v", a.ID, b.ID, got.Allowed(), want, got.Violations)
			}
			if want := a.ID == b.ID; got.Agree() != want {
				t.Errorf("%s and %s: agree %t", a.ID, b.ID, got.Agree())
			}
		}
	}
}
