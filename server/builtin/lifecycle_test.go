package builtin_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilversion "k8s.io/apimachinery/pkg/util/version"

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
