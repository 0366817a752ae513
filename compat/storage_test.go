package compat

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

func TestStorageVersions(t *testing.T) {
	const (
		policies   = "mutatingadmissionpolicies.admissionregistration.k8s.io"
		bundles    = "clustertrustbundles.certificates.k8s.io"
		migrations = "storageversionmigrations.storagemigration.k8s.io"
	)
	for _, c := range []struct{ resource, emulation, minCompatibility, want string }{
		// KEP-4330's grid: "API Storage version changed [...] Resources stored as v1beta1 | Resources stored as v1". 1.35 leaves the window.
		{policies, "1.36", "1.35", "admissionregistration.k8s.io/v1beta1"},
		{policies, "1.37", "1.36", "admissionregistration.k8s.io/v1"},
		{policies, "1.36", "1.36", "admissionregistration.k8s.io/v1"},
		{policies, "1.37", "1.35", "admissionregistration.k8s.io/v1beta1"},
		// The storage version changes when the min compatibility version is raised.
		{bundles, "1.37", "1.36", "certificates.k8s.io/v1beta1"},
		{bundles, "1.37", "1.37", "certificates.k8s.io/v1"},
		{migrations, "1.37", "1.36", "storagemigration.k8s.io/v1beta1"},
		{migrations, "1.37", "1.37", "storagemigration.k8s.io/v1"},
		// 1.34 has only an alpha version of it; alpha versions do not count.
		{migrations, "1.35", "1.34", "storagemigration.k8s.io/v1beta1"},
		{migrations, "1.34", "1.34", "storagemigration.k8s.io/v1beta1"},
		{"devicetaintrules.resource.k8s.io", "1.37", "1.34", "resource.k8s.io/v1beta2"},
		// v1beta1 is removed in 1.37, which is in the window from emulation 1.36 on.
		{"ipaddresses.networking.k8s.io", "1.34", "1.34", "networking.k8s.io/v1"},
		{"servicecidrs.networking.k8s.io", "1.37", "1.36", "networking.k8s.io/v1"},
		// No release in the window has the resource: the first later release that has it counts, or the last earlier one.
		{"workloads.scheduling.k8s.io", "1.34", "1.34", "scheduling.k8s.io/v1beta1"},
		{"ingresses.extensions", "1.37", "1.36", "extensions/v1beta1"},
		// The resource has only alpha versions.
		{"evictionrequests.lifecycle.k8s.io", "1.37", "1.36", "lifecycle.k8s.io/v1alpha1"},
		{"storageversions.internal.apiserver.k8s.io", "1.34", "1.34", "internal.apiserver.k8s.io/v1alpha1"},
		{"configmaps", "1.36", "1.35", "v1"},
		{"selfsubjectreviews.authentication.k8s.io", "1.37", "1.36", ""},
	} {
		p := mustPlan(t, lifecycles(t, kubernetes), options(t, Binary, c.emulation, c.minCompatibility))
		got, ok := p.Storage(resource(c.resource))
		if got.String() != c.want || ok != (c.want != "") {
			t.Errorf("emulation %s, min compatibility %s: %s stored in %q (%t), want %q", c.emulation, c.minCompatibility, c.resource, got, ok, c.want)
		}
	}
}

func TestStorageOfUnknownResource(t *testing.T) {
	p := mustPlan(t, lifecycles(t, kubernetes), Options{})
	if gv, ok := p.Storage(resource("pods")); ok || p.Served(schema.GroupVersionResource{Version: "v1", Resource: "pods"}) {
		t.Errorf("pods are not in the lifecycles, but stored in %s or served", gv)
	}
	if !p.Served(schema.GroupVersionResource{Version: "v1", Resource: "namespaces/status"}) {
		t.Error("a subresource is not served with its resource")
	}
}

// TestDecodable: a version stays decodable, whether it is served or not, as long as the binary has its types.
func TestDecodable(t *testing.T) {
	p := mustPlan(t, lifecycles(t, kubernetes), options(t, Binary, "1.34", ""))
	for gr, want := range map[string][]string{
		"mutatingadmissionpolicies.admissionregistration.k8s.io": {
			"admissionregistration.k8s.io/v1", "admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1alpha1"},
		"ipaddresses.networking.k8s.io":                    {"networking.k8s.io/v1", "networking.k8s.io/v1beta1"},
		"storageversionmigrations.storagemigration.k8s.io": {"storagemigration.k8s.io/v1", "storagemigration.k8s.io/v1beta1"},
		"configmaps": {"v1"},
	} {
		if got := p.resource(resource(gr)).Decodable; !slices.Equal(got, want) {
			t.Errorf("%s decodable in %v, want %v", gr, got, want)
		}
	}
}

// TestPlanOfOlderBinary: a plan for an older binary, made from this release's data, has no APIs that were introduced later.
func TestPlanOfOlderBinary(t *testing.T) {
	p := mustPlan(t, lifecycles(t, kubernetes), options(t, "1.36", "", ""))
	if got := p.resource(resource("clustertrustbundles.certificates.k8s.io")).Decodable; !slices.Equal(got, []string{"certificates.k8s.io/v1beta1", "certificates.k8s.io/v1alpha1"}) {
		t.Errorf("1.36 decodes %v", got)
	}
	if _, ok := p.Storage(resource("workloads.scheduling.k8s.io")); ok {
		t.Error("1.36 stores a resource that 1.37 introduced")
	}
}

func TestNoCommonVersion(t *testing.T) {
	rows := lifecycles(t, kubernetes+`
example.com v1beta1 gadgets 1.30 - 1.36
example.com v1      gadgets 1.36 - -
example.com v1beta1 widgets 1.30 - 1.35 gone
example.com v1      widgets 1.35 - -`)
	_, err := NewPlan(rows, options(t, Binary, "1.36", "1.34"))
	wantError(t, err, `invalid value "1.34" for flag --min-compatibility-version`,
		"no version of gadgets.example.com, widgets.example.com can be decoded by every release from 1.34 to 1.37", "allowed versions are 1.36")
	_, err = NewPlan(rows, options(t, Binary, "1.35", "1.35"))
	wantError(t, err, "no version of gadgets.example.com can", "with emulation version 1.35", "allowed versions are none")
	mustPlan(t, rows, options(t, Binary, "1.36", "1.36"))
}

// knowers returns, for one resource, the releases of the window that have it, and the versions that each of them decodes. It goes through
// all releases and versions. Alpha versions count only if the binary has no other version.
func knowers(rows []Lifecycle, window []*version.Version) map[string]sets.Set[string] {
	onlyAlpha := !slices.ContainsFunc(rows, func(l Lifecycle) bool { return !isAlpha(l) && !l.Gone })
	out := map[string]sets.Set[string]{}
	for _, r := range window {
		for _, l := range rows {
			after := l.Introduced != nil && r.LessThan(l.Introduced)
			removed := l.Removed != nil && (l.Removed.LessThan(r) || l.Removed.EqualTo(r))
			if after || removed || isAlpha(l) && !onlyAlpha {
				continue
			}
			if out[r.String()] == nil {
				out[r.String()] = sets.New[string]()
			}
			out[r.String()].Insert(l.Version)
		}
	}
	return out
}

// checkStorage asserts for every allowed pair of emulation and min compatibility version: each release in the window that has the resource
// decodes its storage version; no newer version could be decoded by all of them; the pair is refused only if there is no such version; and a
// higher min compatibility version never makes the storage version older.
func checkStorage(t *testing.T, rows []Lifecycle, binary *version.Version) {
	t.Helper()
	types := sets.New[string]()
	for _, l := range rows {
		if !l.Gone {
			types.Insert(l.Version)
		}
	}
	for _, emulation := range AllowedEmulation(binary) {
		last := ""
		for _, m := range AllowedMinCompatibility(binary, emulation) {
			at := fmt.Sprintf("emulation %s, min compatibility %s, lifecycles %v", emulation, m, rows)
			var common sets.Set[string]
			for _, decodes := range knowers(rows, releases(m, emulation.AddMinor(1))) {
				if common == nil {
					common = types
				}
				common = common.Intersection(decodes)
			}
			p, err := NewPlan(rows, Options{Binary: binary, Emulation: emulation, MinCompatibility: m})
			if err != nil {
				if common == nil || len(common) > 0 {
					t.Errorf("%s: refused, though %v are common: %v", at, sets.List(common), err)
				}
				continue
			}
			gv, ok := p.Storage(rows[0].GroupResource())
			if ok != types.Has(gv.Version) || ok != (len(types) > 0) {
				t.Errorf("%s: stored in %q, but the binary has types for %v", at, gv, sets.List(types))
			}
			if ok && common != nil && !common.Has(gv.Version) {
				t.Errorf("%s: stored in %s, but all releases of the window decode only %v", at, gv, sets.List(common))
			}
			for v := range common {
				if kubeversion.CompareKubeAwareVersionStrings(v, gv.Version) > 0 {
					t.Errorf("%s: stored in %s, but %s is newer and every release of the window decodes it", at, gv, v)
				}
			}
			if last != "" && kubeversion.CompareKubeAwareVersionStrings(gv.Version, last) < 0 {
				t.Errorf("%s: stored in %s, but in %s with a lower min compatibility", at, gv, last)
			}
			last = gv.Version
		}
	}
}

func TestStorageProperties(t *testing.T) {
	rows := slices.DeleteFunc(lifecycles(t, kubernetes), func(l Lifecycle) bool { return l.NotPersisted })
	slices.SortFunc(rows, compareLifecycles)
	for _, rows := range byResource(rows) {
		checkStorage(t, rows, BinaryVersion())
	}
}

func TestStoragePropertiesAtRandom(t *testing.T) {
	versions := []string{"v1alpha1", "v1alpha2", "v1beta1", "v1beta2", "v1", "v2alpha1", "v2beta1", "v2"}
	for seed := range uint64(3000) {
		random := rand.New(rand.NewPCG(seed, 0))
		var rows []Lifecycle
		for _, i := range random.Perm(len(versions))[:1+random.IntN(4)] {
			l := Lifecycle{GroupVersionResource: schema.GroupVersionResource{Group: "example.com", Version: versions[i], Resource: "things"}}
			introduced := 29 + uint(random.IntN(9))
			if l.Introduced = version.MajorMinor(1, introduced); random.IntN(10) == 0 {
				l.Introduced = nil
			}
			if random.IntN(2) == 0 {
				l.Removed = version.MajorMinor(1, introduced+1+uint(random.IntN(8)))
			}
			l.Gone = random.IntN(6) == 0
			rows = append(rows, l)
		}
		if checkStorage(t, rows, BinaryVersion()); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestEveryPairHasAPlan: there is a plan for Kubernetes' resources at every allowed pair of versions.
func TestEveryPairHasAPlan(t *testing.T) {
	for _, e := range AllowedEmulation(BinaryVersion()) {
		for _, m := range AllowedMinCompatibility(BinaryVersion(), e) {
			mustPlan(t, lifecycles(t, kubernetes), Options{Emulation: e, MinCompatibility: m})
		}
	}
}
