package stage

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/testbed/cluster"
)

// Client sends requests to one server as its administrator. It retries nothing.
type Client struct{ *cluster.Client }

// metrics returns the server's own metrics.
func (c *Client) metrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	text, err := c.Do(ctx, http.MethodGet, "/metrics", "", nil)
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return metrics, nil
}

// FreeHeap returns how much of a server's resident memory its garbage collector has free, in
// bytes.
func (c *Client) FreeHeap(ctx context.Context) (int64, error) {
	metrics, err := c.metrics(ctx)
	if err != nil {
		return 0, err
	}
	gauge := func(name string) (value float64) {
		all := metrics[name].GetMetric()
		if len(all) != 1 {
			err = fmt.Errorf("%d metrics %s", len(all), name)
			return 0
		}
		return all[0].GetGauge().GetValue()
	}
	free := gauge("go_memstats_heap_idle_bytes") - gauge("go_memstats_heap_released_bytes")
	return int64(free), err
}

// Served counts the requests that a server has answered for a resource since its start. Bytes are those of request and
// response bodies on the wire.
type Served struct{ Requests, Bytes float64 }

// Served reads the counts for a resource from the server's metrics.
func (c *Client) Served(ctx context.Context, resource schema.GroupResource) (Served, error) {
	metrics, err := c.metrics(ctx)
	if err != nil {
		return Served{}, err
	}
	var s Served
	for name, add := range map[string]func(*dto.Metric){
		"apiserver_request_total":           func(m *dto.Metric) { s.Requests += m.GetCounter().GetValue() },
		"apiserver_response_sizes":          func(m *dto.Metric) { s.Bytes += m.GetHistogram().GetSampleSum() },
		"apiserver_request_body_size_bytes": func(m *dto.Metric) { s.Bytes += m.GetHistogram().GetSampleSum() },
	} {
		for _, m := range metrics[name].GetMetric() {
			of := schema.GroupResource{}
			for _, label := range m.GetLabel() {
				switch label.GetName() {
				case "group":
					of.Group = label.GetValue()
				case "resource":
					of.Resource = label.GetValue()
				}
			}
			if of == resource {
				add(m)
			}
		}
	}
	return s, nil
}
