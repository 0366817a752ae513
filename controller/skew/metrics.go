package skew

import (
	"k8s.io/component-base/metrics"

	"github.com/concord-dev/concord/compat"
)

// unknownVersion is the label of servers whose emulation version is not known.
const unknownVersion = "unknown"

// Metrics are the elected server's gauges; on other servers they have no values. A gauge whose value follows from
// versions is absent while these are not known.
type Metrics struct {
	servers, releases, allowed *metrics.GaugeVec
	// shown are the values of the servers' label that have a value.
	shown map[string]int
}

// NewMetrics returns metrics that are not registered yet.
func NewMetrics() *Metrics {
	gauge := func(name, help string, labels ...string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{Namespace: "concord", Subsystem: "server_skew", Name: name, Help: help, StabilityLevel: metrics.ALPHA}, labels)
	}
	return &Metrics{
		servers:  gauge("servers", "Servers by emulation version, as the elected server sees them.", "emulation_version"),
		releases: gauge("releases", "Minor releases between the lowest and the highest emulation version of servers."),
		allowed:  gauge("allowed", "1 if every server's emulation version is one that all others allow, 0 if not; absent while that cannot be told."),
	}
}

// Registerables returns the metrics to register.
func (x *Metrics) Registerables() []metrics.Registerable {
	return []metrics.Registerable{x.servers, x.releases, x.allowed}
}

func (x *Metrics) observe(servers []compat.ServerVersions, skew compat.ServerSkew) {
	if x == nil {
		return
	}
	counts := map[string]int{}
	for _, s := range servers {
		label := text(s.Emulation)
		if label == "" {
			label = unknownVersion
		}
		counts[label]++
	}
	for label, n := range counts {
		x.servers.WithLabelValues(label).Set(float64(n))
	}
	for label := range x.shown {
		if counts[label] == 0 {
			x.servers.DeleteLabelValues(label)
		}
	}
	x.shown = counts
	if skew.Newest == nil {
		x.releases.Reset()
	} else {
		x.releases.WithLabelValues().Set(float64(skew.Newest.Minor()) - float64(skew.Oldest.Minor()))
	}
	switch {
	case !skew.Allowed():
		x.allowed.WithLabelValues().Set(0)
	case len(servers) == 0 || len(skew.Silent) > 0:
		x.allowed.Reset()
	default:
		x.allowed.WithLabelValues().Set(1)
	}
}

func (x *Metrics) reset() {
	if x == nil {
		return
	}
	x.shown = nil
	for _, v := range []*metrics.GaugeVec{x.servers, x.releases, x.allowed} {
		v.Reset()
	}
}
