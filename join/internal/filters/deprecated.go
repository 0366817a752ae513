package filters

import (
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

const (
	metricsPath = "/metrics"
	// requestedDeprecated is the metric of deprecated APIs that are in use. It takes the
	// deprecations from the binary's release.
	requestedDeprecated = "apiserver_requested_deprecated_apis"
)

// laterDeprecated records requested APIs that are deprecated only in a release later than the emulated one, which
// metrics leave out.
type laterDeprecated struct {
	mu   sync.Mutex
	seen map[requestedAPI]bool
}

// requestedAPI is an API that the metric has a series for.
type requestedAPI struct{ group, version, resource, subresource string }

// add takes in the API that a request asks for. It is called before the request is counted.
func (l *laterDeprecated) add(r *http.Request) {
	info, ok := apirequest.RequestInfoFrom(r.Context())
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.seen == nil {
		l.seen = map[requestedAPI]bool{}
	}
	l.seen[requestedAPI{info.APIGroup, info.APIVersion, info.Resource, info.Subresource}] = true
}

// withMetrics serves metrics without these APIs.
func (l *laterDeprecated) withMetrics(next http.Handler) http.Handler {
	served := metrics.HandlerFor(prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := legacyregistry.DefaultGatherer.Gather()
		return l.without(families), err
	}), metrics.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == metricsPath && r.Method == http.MethodGet {
			served.ServeHTTP(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// without leaves these APIs out of the gathered metrics, which it changes.
func (l *laterDeprecated) without(families []*dto.MetricFamily) []*dto.MetricFamily {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(families, func(f *dto.MetricFamily) bool {
		if f.GetName() != requestedDeprecated {
			return false
		}
		f.Metric = slices.DeleteFunc(f.Metric, func(m *dto.Metric) bool {
			labels := map[string]string{}
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			return l.seen[requestedAPI{labels["group"], labels["version"], labels["resource"], labels["subresource"]}]
		})
		return len(f.Metric) == 0
	})
}
