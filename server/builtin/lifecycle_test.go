package builtin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/server/builtin"
)

// lifecycles are the releases in which the versions of the multi-version resources exist:
// introduced, removed.
const lifecycles = `
admissionregistration.k8s.io/v1alpha1 mutatingadmissionpolicies 1.32 1.38
admissionregistration.k8s.io/v1beta1 mutatingadmissionpolicies 1.34 1.40
admissionregistration.k8s.io/v1 mutatingadmissionpolicies 1.36 -
admissionregistration.k8s.io/v1alpha1 mutatingadmissionpolicybindings 1.32 1.38
admissionregistration.k8s.io/v1beta1 mutatingadmissionpolicybindings 1.34 1.40
admissionregistration.k8s.io/v1 mutatingadmissionpolicybindings 1.36 -
admissionregistration.k8s.io/v1beta1 validatingadmissionpolicies 1.28 1.34
admissionregistration.k8s.io/v1 validatingadmissionpolicies 1.30 -
certificates.k8s.io/v1alpha1 clustertrustbundles 1.26 1.37
certificates.k8s.io/v1beta1 clustertrustbundles 1.33 1.40
certificates.k8s.io/v1 clustertrustbundles 1.37 -
coordination.k8s.io/v1alpha2 leasecandidates 1.32 1.38
coordination.k8s.io/v1beta1 leasecandidates 1.33 1.39
networking.k8s.io/v1beta1 ipaddresses 1.31 1.37
networking.k8s.io/v1 ipaddresses 1.33 -
networking.k8s.io/v1beta1 servicecidrs 1.31 1.37
networking.k8s.io/v1 servicecidrs 1.33 -
storagemigration.k8s.io/v1alpha1 storageversionmigrations 1.30 1.35
storagemigration.k8s.io/v1beta1 storageversionmigrations 1.35 1.40
storagemigration.k8s.io/v1 storageversionmigrations 1.37 -
internal.apiserver.k8s.io/v1alpha1 storageversions 1.20 -
events.k8s.io/v1 events 1.19 -
discovery.k8s.io/v1 endpointslices 1.21 -
v1 services 1.0 -
v1 configmaps 1.2 -
`

func TestLifecycles(t *testing.T) {
	found := map[string]string{}
	for _, l := range builtin.Lifecycles() {
		key := l.GroupVersion().String() + " " + l.Resource
		if _, twice := found[key]; twice {
			t.Errorf("%s is there twice", key)
		}
		if l.Introduced == nil {
			t.Errorf("%s: nobody knows which release introduced it", key)
		}
		if l.Kind == "" {
			t.Errorf("%s has no kind", key)
		}
		found[key] = fmt.Sprintf("%v %v", show(l.Introduced), show(l.Removed))
		if gone := strings.HasPrefix(key, "storagemigration.k8s.io/v1alpha1"); l.Gone != gone {
			t.Errorf("%s: gone is %v", key, l.Gone)
		}
		if transient := strings.HasSuffix(l.Resource, "reviews") || l.Group == "events.k8s.io"; l.NotPersisted != transient {
			t.Errorf("%s: not persisted is %v", key, l.NotPersisted)
		}
	}
	for _, line := range strings.Split(strings.TrimSpace(lifecycles), "\n") {
		word := strings.Fields(line)
		if got, want := found[word[0]+" "+word[1]], word[2]+" "+word[3]; got != want {
			t.Errorf("%s %s: introduced and removed in %q, want %q", word[0], word[1], got, want)
		}
	}
}

func show(v *utilversion.Version) string {
	if v == nil {
		return "-"
	}
	return v.String()
}

// TestUpgradeMovesStorage: section 4 of the design names what moves when.
func TestUpgradeMovesStorage(t *testing.T) {
	for _, tc := range []struct{ emulation, minCompatibility, resource, want string }{
		{"1.36", "1.35", "mutatingadmissionpolicies.admissionregistration.k8s.io", "v1beta1"},
		{"1.37", "1.36", "mutatingadmissionpolicies.admissionregistration.k8s.io", "v1"},
		{"1.36", "1.35", "mutatingadmissionpolicybindings.admissionregistration.k8s.io", "v1beta1"},
		{"1.37", "1.36", "mutatingadmissionpolicybindings.admissionregistration.k8s.io", "v1"},
		{"1.37", "1.36", "clustertrustbundles.certificates.k8s.io", "v1beta1"},
		{"1.37", "1.37", "clustertrustbundles.certificates.k8s.io", "v1"},
		{"1.37", "1.36", "storageversionmigrations.storagemigration.k8s.io", "v1beta1"},
		{"1.37", "1.37", "storageversionmigrations.storagemigration.k8s.io", "v1"},
		{"1.36", "1.35", "ipaddresses.networking.k8s.io", "v1"},
		{"1.37", "1.36", "events", "v1"},
	} {
		plan := newPlan(t, tc.emulation, tc.minCompatibility, everythingStable(tc.emulation))
		for _, p := range builtin.PersistedResources(plan) {
			if p.GroupResource == schema.ParseGroupResource(tc.resource) && p.Storage.Version != tc.want {
				t.Errorf("emulating %s, compatible with %s: %s is stored as %s, want %s", tc.emulation, tc.minCompatibility, tc.resource, p.Storage.Version, tc.want)
			}
		}
	}
}

// everythingStable enables betas; alphas are refused under emulation.
func everythingStable(emulation string) map[string]string {
	if emulation == "1.37" {
		return everything
	}
	return map[string]string{"api/beta": "true"}
}

// TestStorageIsReadable asserts, of the resources of this server and for all pairs of
// versions in range, what KEP-4330 asks of a storage version ("StorageVersion
// Compatibility Versioning"): each release in the window that knows the resource decodes
// it, and raising min compatibility never makes it older. An alpha version counts as
// knowing a resource only where there is no other.
func TestStorageIsReadable(t *testing.T) {
	binary := compat.BinaryVersion()
	pairs, judged := 0, 0
	for _, emulation := range compat.AllowedEmulation(binary) {
		newest := map[schema.GroupResource]string{}
		for _, m := range compat.AllowedMinCompatibility(binary, emulation) {
			pairs++
			plan, err := compat.NewPlan(builtin.Lifecycles(), compat.Options{Emulation: emulation, MinCompatibility: m})
			if err != nil {
				t.Errorf("emulation %s, min compatibility %s: %v", emulation, m, err)
				continue
			}
			for _, r := range plan.Resources {
				gr := schema.GroupResource{Group: r.Group, Resource: r.Resource}
				stored, ok := plan.Storage(gr)
				if !ok {
					continue
				}
				for release := m; !release.GreaterThan(emulation.AddMinor(1)); release = release.AddMinor(1) {
					if decodes := decodedIn(gr, release); len(decodes) > 0 && !slices.Contains(decodes, stored.Version) {
						t.Errorf("emulation %s, min compatibility %s: %s is stored in %s, and %s decodes %v", emulation, m, gr, stored, release, decodes)
					}
					judged++
				}
				if was := newest[gr]; was != "" && version.CompareKubeAwareVersionStrings(stored.Version, was) < 0 {
					t.Errorf("emulation %s, min compatibility %s: %s is stored in %s, with a lower one in %s", emulation, m, gr, stored.Version, was)
				}
				newest[gr] = stored.Version
			}
		}
	}
	if pairs != 4+3+2+1 || judged < 500 {
		t.Errorf("%d pairs and %d releases of windows were judged", pairs, judged)
	}
}

// decodedIn lists the versions of the resource that a release decodes, alpha ones only
// where the resource has no other.
func decodedIn(gr schema.GroupResource, release *utilversion.Version) (decodes []string) {
	onlyAlpha := true
	for _, l := range builtin.Lifecycles() {
		onlyAlpha = onlyAlpha && (l.GroupResource() != gr || strings.Contains(l.Version, "alpha"))
	}
	for _, l := range builtin.Lifecycles() {
		known := l.GroupResource() == gr && l.Introduced.LessThan(release.AddMinor(1)) && (l.Removed == nil || release.LessThan(l.Removed))
		if known && (onlyAlpha || !strings.Contains(l.Version, "alpha")) {
			decodes = append(decodes, l.Version)
		}
	}
	return decodes
}
