package fence

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-base/metrics/testutil"
)

func TestMetrics(t *testing.T) {
	read := func() [3]float64 {
		t.Helper()
		var values [3]float64
		for i, counter := range []func() (float64, error){
			func() (float64, error) {
				return testutil.GetCounterMetricValue(mismatches.WithLabelValues("", "configmaps"))
			},
			func() (float64, error) {
				return testutil.GetCounterMetricValue(retries.WithLabelValues("", "configmaps"))
			},
			func() (float64, error) {
				return testutil.GetCounterMetricValue(forwards.WithLabelValues(widgets.Group, widgets.Resource, "success"))
			},
		} {
			value, err := counter()
			must(t, err)
			values[i] = value
		}
		return values
	}
	before := read()
	w, s := newConfigMaps(t)
	w.report(configMaps, by(self, "v1"), by(other, "v1")) // one mismatch, tried again
	must(t, s.GuaranteedUpdate(t.Context(), "/configmaps/existing", &corev1.ConfigMap{}, false, nil, setData("a"), nil))
	w.report(configMaps, by(other, "v1")) // one mismatch, refused
	wantUnavailable(t, writes["create"](w, s))
	f := newFlip(t, false)
	f.buildNew()
	f.permit(widgets, encV2)
	f.wantForwarded() // a create and an update
	after := read()
	for i, want := range []float64{2, 1, 2} {
		if got := after[i] - before[i]; got != want {
			t.Errorf("counter %d rose by %v, want %v", i, got, want)
		}
	}
}
