package stage

import (
	"bytes"
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// FreeHeap returns how much of a server's resident memory its garbage collector has free, in
// bytes.
func (c *Client) FreeHeap(ctx context.Context) (int64, error) {
	text, err := c.Do(ctx, http.MethodGet, "/metrics", "", nil)
	if err != nil {
		return 0, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	metrics, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("metrics: %w", err)
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
