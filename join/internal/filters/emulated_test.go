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

// recorded are warnings, in order.
type recorded []string

// AddWarning implements warning.Recorder.
func (r *recorded) AddWarning(_, text string) { *r = append(*r, text) }

// TestWithEmulation: there is no warning of a deprecation that is later than the emulated release. If a
// write is refused because CEL does not know a name, a warning says that the min compatibility version
// decides which names it knows.
func TestWithEmulation(t *testing.T) {
	const (
		early   = "example.com/v1beta1 Widget is deprecated in v1.35+, unavailable in v1.40+"
		present = "example.com/v1beta1 Gadget is deprecated in v1.36+"
		late    = "example.com/v1beta1 Gizmo is deprecated in v1.37+, unavailable in v1.41+; use example.com/v1 Gizmo"
		refusal = `{"message":"compilation failed: undeclared reference to 'newer'"}`
	)
	window := func(minCompatibility string) compat.Window {
		return compat.Window{Emulation: version.MustParse("1.36"), MinCompatibility: version.MustParse(minCompatibility)}
	}
	for name, test := range map[string]struct {
		window   compat.Window
		method   string
		code     int
		body     string
		warnings []string
		hint     bool
	}{
		"deprecations":                {window("1.35"), http.MethodGet, 200, "{}", []string{early, present, late, "another"}, false},
		"a refusal of a function":     {window("1.35"), http.MethodPost, 422, refusal, nil, true},
		"of an update":                {window("1.35"), http.MethodPut, 422, refusal, []string{early}, true},
		"a refusal of something else": {window("1.35"), http.MethodPost, 422, `{"message":"spec.x: Required value"}`, nil, false},
		"a read":                      {window("1.35"), http.MethodGet, 422, refusal, nil, false},
		"nothing is refused":          {window("1.35"), http.MethodPost, 201, refusal, nil, false},
		"everything is known here":    {window(compat.Binary), http.MethodPost, 422, refusal, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var got recorded
			h := WithEmulation(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, text := range test.warnings {
					warning.AddWarning(r.Context(), "", text)
				}
				w.WriteHeader(test.code)
				_, _ = w.Write([]byte(test.body))
			}), test.window, false)
			answer, r := httptest.NewRecorder(), httptest.NewRequest(test.method, "/", nil)
			h.ServeHTTP(answer, r.WithContext(warning.WithWarningRecorder(r.Context(), &got)))
			if answer.Code != test.code || answer.Body.String() != test.body {
				t.Errorf("answered %d, %s", answer.Code, answer.Body)
			}
			hinted := false
			for _, text := range got {
				hinted = hinted || strings.Contains(text, "follows the min compatibility version, 1.35 here")
				if text == late {
					t.Errorf("warned of %s", text)
				}
			}
			if hinted != test.hint {
				t.Errorf("warned of %q", got)
			}
			for _, text := range test.warnings {
				if found := strings.Contains(strings.Join(got, "\n"), text); found != (text != late) {
					t.Errorf("of %q it warned: %v", text, found)
				}
			}
		})
	}
}

// TestWithEmulationEmpty: an error answer keeps its status also if nothing is written after it, or only
// a flush.
func TestWithEmulationEmpty(t *testing.T) {
	window := compat.Window{Emulation: version.MustParse("1.37"), MinCompatibility: version.MustParse("1.36")}
	for name, write := range map[string]func(http.ResponseWriter){
		"nothing":         func(http.ResponseWriter) {},
		"a flush":         func(w http.ResponseWriter) { w.(http.Flusher).Flush() },
		"a flush, a body": func(w http.ResponseWriter) { w.(http.Flusher).Flush(); _, _ = w.Write([]byte("{}")) },
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(WithEmulation(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusUnprocessableEntity)
				write(w)
			}), window, false))
			defer server.Close()
			answer, err := http.Post(server.URL, "text/plain", nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = answer.Body.Close() }()
			if answer.StatusCode != http.StatusUnprocessableEntity {
				t.Errorf("answered %s", answer.Status)
			}
		})
	}
}

// TestDeprecatedMetricFollowsEmulation: the metric apiserver_requested_deprecated_apis has only APIs
// that are deprecated in the emulated release. Other metrics do not change.
func TestDeprecatedMetricFollowsEmulation(t *testing.T) {
	apimetrics.Register()
	deprecations := map[string]string{"gadgets": "1.36", "gizmos": "1.37"}
	// server behaves like Kubernetes' server: it sends a warning, counts the request, and serves the
	// metrics.
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
		"metrics are not served":       {"1.36", false, []string{"gadgets", "gizmos"}}, // as in Kubernetes
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
