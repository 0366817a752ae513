package server

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/server/gates"
)

// TestGates: what the flag sets is Concord's own gates, whatever was set before in the
// process, and upstream's gate of the same name stays off.
func TestGates(t *testing.T) {
	for _, tc := range []struct {
		args                  []string
		versionAPI, emulation bool
	}{
		{nil, true, true},
		{[]string{"--feature-gates=StorageVersionAPI=false"}, false, true},
		{[]string{"--feature-gates=concord:StorageVersionAPI=false"}, false, true},
		{nil, true, true},
		{[]string{"--feature-gates=StorageVersionAPI=true,CompatibilityVersions=false"}, true, false},
		{[]string{"--feature-gates=AllAlpha=true"}, true, true},
		{[]string{"--feature-gates=AllBeta=true,AllAlpha=true"}, true, true},
		{[]string{"--feature-gates=kube:AllBeta=false"}, true, true},
		{[]string{"--feature-gates=concord:AllBeta=false"}, false, false},
		{[]string{"--feature-gates=kube:StorageVersionAPI=false"}, true, true},
		{[]string{"--emulation-version=1.34", "--feature-gates=StorageVersionAPI=false"}, false, true},
	} {
		o, err := parse(t, tc.args...)
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		for name, want := range map[featuregate.Feature]bool{gates.StorageVersionAPI: tc.versionAPI, gates.CompatibilityVersions: tc.emulation} {
			if got := o.gates.Enabled(name); got != want {
				t.Errorf("%v: %s is %v, want %v", tc.args, name, got, want)
			}
			if got := o.ServerRun.ComponentGlobalsRegistry.FeatureGateFor(gates.Concord).Enabled(name); got != want {
				t.Errorf("%v: %s is %v in the registry, want %v", tc.args, name, got, want)
			}
		}
		if utilfeature.DefaultFeatureGate.Enabled(gates.StorageVersionAPI) {
			t.Errorf("%v: upstream's machinery is on", tc.args)
		}
		if got := o.ServerRun.ComponentGlobalsRegistry.EffectiveVersionFor(gates.Concord).EmulationVersion(); !got.EqualTo(o.versions.emulation) {
			t.Errorf("%v: the component emulates %s", tc.args, got)
		}
		plan, err := o.Plan()
		if err != nil {
			t.Fatal(err)
		}
		versions := storageversion.Resource.WithVersion("v1alpha1")
		if plan.Served(versions) != tc.versionAPI || slices.Contains(servedVersions(plan), versions.GroupVersion()) != tc.versionAPI {
			t.Errorf("%v: %s served: %v", tc.args, versions, plan.Served(versions))
		}
	}
	// AllAlpha would stick to the process.
	if err := utilfeature.DefaultMutableFeatureGate.Set("AllAlpha=false,AllBeta=true"); err != nil {
		t.Fatal(err)
	}
}

// TestFeatureMetrics: as upstream, /metrics lists the features of every component.
func TestFeatureMetrics(t *testing.T) {
	o, err := parse(t, "--feature-gates=CompatibilityVersions=false")
	if err != nil {
		t.Fatal(err)
	}
	gates.AddMetrics(o.ServerRun.ComponentGlobalsRegistry)
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "kubernetes_feature_enabled" {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			found[labels["name"]+" "+labels["stage"]] = m.GetGauge().GetValue()
		}
	}
	for series, want := range map[string]float64{
		"StorageVersionAPI BETA": 1, "CompatibilityVersions BETA": 0, "StorageVersionAPI ALPHA": 0, "WatchList BETA": 1,
	} {
		if got, ok := found[series]; !ok || got != want {
			t.Errorf("%s: %v, %v, want %v; there are %v", series, got, ok, want, found)
		}
	}
}

// TestPlainVersion: without the gate, /version has no fields that KEP-4330 added.
func TestPlainVersion(t *testing.T) {
	effective := basecompatibility.NewEffectiveVersionFromString("1.37", "1.34", "1.34")
	with, without := withGitVersion{EffectiveVersion: effective}.Info(), withGitVersion{EffectiveVersion: effective, plain: true}.Info()
	if with.EmulationMinor != "37" || with.MinCompatibilityMinor != "36" {
		t.Errorf("with the gate: %+v", with)
	}
	if without.Minor != "37" || without.EmulationMajor+without.EmulationMinor+without.MinCompatibilityMajor+without.MinCompatibilityMinor != "" {
		t.Errorf("without the gate: %+v", without)
	}
}

// TestWithheld: what is not served says why.
func TestWithheld(t *testing.T) {
	o, err := parse(t, "--feature-gates=StorageVersionAPI=false")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := o.Plan()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range plan.Resources {
		if (schema.GroupResource{Group: r.Group, Resource: r.Resource}) == storageversion.Resource {
			for _, v := range r.Served {
				if v.Served || !strings.Contains(v.Reason, "StorageVersionAPI") {
					t.Errorf("%+v", v)
				}
			}
		}
	}
}
