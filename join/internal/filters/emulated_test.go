package filters

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/warning"
)

// recorded are warnings, in order.
type recorded []string

// AddWarning implements warning.Recorder.
func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

// TestWithEmulation: there is no warning of a deprecation that is later than the emulated release.
func TestWithEmulation(t *testing.T) {
	const (
		early   = "example.com/v1beta1 Widget is deprecated in v1.35+, unavailable in v1.40+"
		present = "example.com/v1beta1 Gadget is deprecated in v1.36+"
		late    = "example.com/v1beta1 Gizmo is deprecated in v1.37+, unavailable in v1.41+; use example.com/v1 Gizmo"
	)
	var got recorded
	h := WithEmulation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for _, text := range []string{early, present, late, "another"} {
			warning.AddWarning(r.Context(), "", text)
		}
	}), version.MustParse("1.36"))
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	h.ServeHTTP(httptest.NewRecorder(), r.WithContext(warning.WithWarningRecorder(r.Context(), &got)))
	if want := []string{early, present, "another"}; !slices.Equal(got, want) {
		t.Errorf("warned of %q, want %q", got, want)
	}
}
