package compat

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// kubernetes are lifecycles of k8s.io/api v0.37: group, version, resource, introduced, deprecated, removed, flags.
const kubernetes = `
core                          v1        configmaps                       1.2  -    -
core                          v1        namespaces                       1.0  -    -
admissionregistration.k8s.io  v1        mutatingadmissionpolicies        1.36 -    -
admissionregistration.k8s.io  v1beta1   mutatingadmissionpolicies        1.34 1.37 1.40
admissionregistration.k8s.io  v1alpha1  mutatingadmissionpolicies        1.32 1.35 1.38
admissionregistration.k8s.io  v1        mutatingwebhookconfigurations    1.16 -    -
admissionregistration.k8s.io  v1beta1   mutatingwebhookconfigurations    1.9  1.16 1.22
admissionregistration.k8s.io  v1        validatingadmissionpolicies      1.30 -    -
admissionregistration.k8s.io  v1beta1   validatingadmissionpolicies      1.28 1.31 1.34
admissionregistration.k8s.io  v1alpha1  validatingadmissionpolicies      1.26 1.29 1.32
authentication.k8s.io         v1        selfsubjectreviews               1.28 -    -     notpersisted
authentication.k8s.io         v1beta1   selfsubjectreviews               1.27 1.30 1.33  notpersisted
certificates.k8s.io           v1        clustertrustbundles              1.37 -    -
certificates.k8s.io           v1beta1   clustertrustbundles              1.33 1.37 1.40
certificates.k8s.io           v1alpha1  clustertrustbundles              1.26 1.34 1.37
certificates.k8s.io           v1        podcertificaterequests           1.37 -    -
certificates.k8s.io           v1beta1   podcertificaterequests           1.35 1.37 1.40
coordination.k8s.io           v1        leases                           1.14 -    -
coordination.k8s.io           v1beta1   leases                           1.12 1.19 1.22
coordination.k8s.io           v1beta1   leasecandidates                  1.33 1.36 1.39
coordination.k8s.io           v1alpha2  leasecandidates                  1.32 1.35 1.38
extensions                    v1beta1   ingresses                        1.1  1.14 1.22
internal.apiserver.k8s.io     v1alpha1  storageversions                  -    -    -
lifecycle.k8s.io              v1alpha1  evictionrequests                 1.37 1.40 1.43
networking.k8s.io             v1        ipaddresses                      1.33 -    -
networking.k8s.io             v1beta1   ipaddresses                      1.31 1.34 1.37
networking.k8s.io             v1        servicecidrs                     1.33 -    -
networking.k8s.io             v1beta1   servicecidrs                     1.31 1.34 1.37
resource.k8s.io               v1        deviceclasses                    1.34 -    -
resource.k8s.io               v1beta2   deviceclasses                    1.33 1.36 1.39
resource.k8s.io               v1beta1   deviceclasses                    1.32 1.35 1.38
resource.k8s.io               v1        devicetaintrules                 1.37 -    -
resource.k8s.io               v1beta2   devicetaintrules                 1.36 1.39 1.42
resource.k8s.io               v1alpha3  devicetaintrules                 1.33 1.36 1.39
scheduling.k8s.io             v1beta1   workloads                        1.37 1.40 1.43
storage.k8s.io                v1        volumeattributesclasses          1.34 -    -
storage.k8s.io                v1beta1   volumeattributesclasses          1.31 1.34 1.37
storage.k8s.io                v1alpha1  volumeattributesclasses          1.29 1.32 1.35
storagemigration.k8s.io       v1        storageversionmigrations         1.37 -    -
storagemigration.k8s.io       v1beta1   storageversionmigrations         1.35 1.37 1.40
storagemigration.k8s.io       v1alpha1  storageversionmigrations         1.30 1.33 1.35  gone
`

func lifecycles(t testing.TB, table string) []Lifecycle {
	t.Helper()
	release := func(s string) *version.Version {
		if s == "-" {
			return nil
		}
		return version.MustParseMajorMinor(s)
	}
	var out []Lifecycle
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if len(f) < 6 {
			t.Fatalf("lifecycle %q: want at least 6 fields", line)
		}
		l := Lifecycle{
			GroupVersionResource: schema.GroupVersionResource{Group: strings.TrimPrefix(f[0], "core"), Version: f[1], Resource: f[2]},
			Introduced:           release(f[3]), Deprecated: release(f[4]), Removed: release(f[5]),
		}
		for _, flag := range f[6:] {
			switch flag {
			case "gone":
				l.Gone = true
			case "kept":
				l.Kept = true
			case "notpersisted":
				l.NotPersisted = true
			default:
				t.Fatalf("lifecycle %q: unknown flag", line)
			}
		}
		out = append(out, l)
	}
	return out
}

// options returns the Options of a binary with an emulation version and a min compatibility version; "" is the
// default.
func options(t testing.TB, binary, emulation, minCompatibility string) Options {
	t.Helper()
	o := Options{Binary: version.MustParseMajorMinor(binary)}
	if emulation != "" {
		o.Emulation = version.MustParseMajorMinor(emulation)
	}
	if minCompatibility != "" {
		o.MinCompatibility = version.MustParseMajorMinor(minCompatibility)
	}
	return o
}

// config reads "a=true,b=false" as --runtime-config does.
func config(t testing.TB, s string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for entry := range strings.SplitSeq(s, ",") {
		if key, value, _ := strings.Cut(entry, "="); key != "" {
			out[key] = value
		}
	}
	return out
}

func mustPlan(t testing.TB, rows []Lifecycle, o Options) *Plan {
	t.Helper()
	p, err := NewPlan(rows, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func resource(s string) schema.GroupResource { return schema.ParseGroupResource(s) }

// served lists the versions of the resource that are served, newest first.
func served(t testing.TB, p *Plan, gr string) string {
	t.Helper()
	r := p.resource(resource(gr))
	if r == nil {
		t.Fatalf("%s is not in the plan", gr)
		return ""
	}
	var out []string
	for _, v := range r.Served {
		if v.Served {
			out = append(out, v.Version)
		}
	}
	return strings.Join(out, " ")
}

// wantError fails unless err is one line that contains every part.
func wantError(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than one line: %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q lacks %q", err, part)
		}
	}
}

// history reads the history of a feature gate, such as "1.26 alpha off, 1.27 beta on, 1.28 stable on locked, 1.35 beta on min=1.35".
func history(t testing.TB, s string) []Phase {
	t.Helper()
	var out []Phase
	for entry := range strings.SplitSeq(s, ", ") {
		f := strings.Fields(entry)
		p := Phase{Since: version.MustParseMajorMinor(f[0]), Stage: Stage(f[1])}
		for _, word := range f[2:] {
			switch v, min := strings.CutPrefix(word, "min="); {
			case min:
				p.MinCompatibility = version.MustParseMajorMinor(v)
			case word == "on" || word == "off":
				p.Default = word == "on"
			case word == "locked":
				p.Locked = true
			default:
				t.Fatalf("history %q: unknown word %q", s, word)
			}
		}
		out = append(out, p)
	}
	return out
}
