package filters

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/version"
	apimetrics "k8s.io/apiserver/pkg/endpoints/metrics"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/concord-dev/concord/compat"
)

// TestDeprecatedMetricFollowsEmulation: apiserver_requested_deprecated_apis tells of APIs that the
// emulated release deprecates, and all other metrics are as they were.
func TestDeprecatedMetricFollowsEmulation(t *testing.T) {
	apimetrics.Register()
	deprecations := map[string]string{"gadgets": "1.36", "gizmos": "1.37"}
	// server answers as Kubernetes' does: with a warning, the metric, and the page of metrics.
	server := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == metricsPath {
			legacyregistry.Handler().ServeHTTP(w, r)
			return
		}
		info, _ := apirequest.RequestInfoFrom(r.Context())
		warning.AddWarning(r.Context(), "", "example.com/v1beta1 Thing is deprecated in v"+deprecations[info.Resource]+"+, unavailable in v1.40+")
		apimetrics.MonitorRequest(r, "GET", info.APIGroup, info.APIVersion, info.Resource, info.Subresource, "resource", "", true, "1.40", http.StatusOK, 0, time.Second)
	})
	for name, test := range map[string]struct {
		emulation string
		metrics   bool
		told      []string
	}{
		"an older release is emulated": {"1.36", true, []string{"gadgets"}},
		"none is":                      {compat.Binary, true, []string{"gadgets", "gizmos"}},
		"metrics are not served":       {"1.36", false, []string{"gadgets", "gizmos"}}, // as without us
	} {
		t.Run(name, func(t *testing.T) {
			apimetrics.Reset()
			h := WithEmulation(server, compat.Window{Emulation: version.MustParse(test.emulation), MinCompatibility: version.MustParse("1.36")}, test.metrics)
			for resource := range deprecations {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				ctx := apirequest.WithRequestInfo(r.Context(), &apirequest.RequestInfo{IsResourceRequest: true, Verb: "get", APIGroup: "example.com", APIVersion: "v1beta1", Resource: resource})
				h.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
			}
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, metricsPath, nil))
			text := answer.Body.String()
			if got := strings.Count(text, "\n"+requestedDeprecated+"{"); got != len(test.told) {
				t.Errorf("%d series, not those of %q", got, test.told)
			}
			for _, resource := range test.told {
				if !strings.Contains(text, "\n"+requestedDeprecated+`{group="example.com",removed_release="1.40",resource="`+resource+`",subresource="",version="v1beta1"} 1`) {
					t.Errorf("nothing is told of %s", resource)
				}
			}
			if !strings.Contains(text, `apiserver_request_total{code="200",component="",dry_run="",group="example.com",resource="gizmos"`) {
				t.Error("another metric is gone")
			}
		})
	}
}
