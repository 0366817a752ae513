package compat

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

// TestStranded: an encoding is stranded where no chain of releases, each of which decodes two of its links, leads from it to
// what the target decodes.
func TestStranded(t *testing.T) {
	rows := lifecycles(t, kubernetes+`
scheduling.k8s.io  v1beta1   podgroups  1.37 1.40 1.43
scheduling.k8s.io  v1alpha2  podgroups  1.36 -    1.37  gone
networking.k8s.io  v1        ingresses  1.19 -    -
extensions         v1beta1   daemonsets 1.1  1.8  1.16  notpersisted
apps               v1        daemonsets 1.9  -    -
example.com        v1        chained    1.36 -    -
example.com        v1beta1   chained    1.35 -    1.37
example.com        v1alpha1  chained    1.34 -    1.36
example.com        v1        kept       1.37 -    -
example.com        v1beta1   kept       1.34 -    1.36  kept
example.com        v1        always     1.37 -    -
example.com        v1beta1   always     -    -    -`)
	binary := mustPlan(t, rows, options(t, "1.37", "", "")).Target()
	for _, test := range []struct {
		target, resource, encoding string
		want                       bool
	}{
		{"1.37", "podgroups.scheduling.k8s.io", "scheduling.k8s.io/v1alpha2", true},
		{"1.37", storedMigrations, "storagemigration.k8s.io/v1alpha1", true},
		{"1.37", "podgroups.scheduling.k8s.io", "scheduling.k8s.io/v9", false}, // nobody knows
		{"1.38", "podgroups.scheduling.k8s.io", "scheduling.k8s.io/v1alpha2", true},
		{"1.38", storedAddresses, "networking.k8s.io/v1beta1", false},
		{"1.38", "leasecandidates.coordination.k8s.io", "coordination.k8s.io/v1alpha2", false},
		{"1.35", storedPolicies, "admissionregistration.k8s.io/v1", false},
		{"1.38", "ingresses.extensions", "extensions/v1beta1", true}, // it decodes nothing of it
		{"1.38", "daemonsets.apps", "extensions/v1beta1", false},     // stored with another group's
		{"1.38", "chained.example.com", "example.com/v1alpha1", false},
		{"1.38", "kept.example.com", "example.com/v1beta1", false},
		{"1.38", "always.example.com", "example.com/v1beta1", false},
		{"1.38", storedWidgets, "example.com/v1", false},
	} {
		target := binary
		if test.target != Binary {
			target = ReleaseTarget(rows, version.MustParseMajorMinor(test.target))
		}
		if got := target.Stranded(resource(test.resource), test.encoding); got != test.want {
			t.Errorf("%s of %s, for %s: %v", test.encoding, test.resource, test.target, got)
		}
	}
}
