package dashboard

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// clients is how fast the server that was asked answered requests for resources lately, except for watches. Requests
// of controllers and of the server itself are included.
type clients struct {
	// P99Seconds is the time within which 99 % were answered: the upper end of the histogram's
	// bucket, so no less than it was.
	P99Seconds float64 `json:"p99Seconds"`
	// Requests is how many there were, PerSecond how many a second.
	Requests  int64   `json:"requests"`
	PerSecond float64 `json:"perSecond"`
}

const (
	// durations is kube-apiserver's histogram of requests, and started when its process was.
	durations = "apiserver_request_duration_seconds"
	started   = "process_start_time_seconds"
	// loadEvery is the time between two looks at a server's metrics, which are large.
	loadEvery = 10 * time.Second
	// fewest is how many requests a 99th percentile wants.
	fewest = 100
)

// loads has the figures that were read from metrics, which are sums since the process began.
type loads struct {
	last load
	// now is nil if no migration runs, or it is not known.
	now *clients
}

type load struct {
	at      time.Time
	process float64
	buckets map[float64]float64
}

// readLoad looks at the server's metrics while a migration has not ended. A user who may not read
// them does without.
func (s *source) readLoad(ctx context.Context) {
	migrating := slices.ContainsFunc(items[migrationv1alpha1.StorageVersionMigration](s.migrations), func(m migrationv1alpha1.StorageVersionMigration) bool {
		return !migrationv1alpha1.Final(&m)
	})
	s.mu.Lock()
	before := s.load.last
	s.mu.Unlock()
	now := time.Now()
	if migrating && now.Sub(before.at) < loadEvery {
		return
	}
	next := loads{}
	if migrating {
		next.last.at = now
		if body, err := s.served.RESTClient().Get().AbsPath("/metrics").Stream(ctx); err == nil {
			if l, err := loadOf(body); err == nil {
				l.at = now
				next = loads{last: l, now: l.since(before)}
			}
			_ = body.Close() // it was read
		}
	}
	s.mu.Lock()
	s.load = next
	s.mu.Unlock()
}

// loadOf reads metrics in the text format.
func loadOf(metrics io.Reader) (load, error) {
	var lines bytes.Buffer
	scanner := bufio.NewScanner(metrics)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		line := bytes.TrimPrefix(bytes.TrimPrefix(scanner.Bytes(), []byte("# TYPE ")), []byte("# HELP "))
		if bytes.HasPrefix(line, []byte(durations)) || bytes.HasPrefix(line, []byte(started)) {
			lines.Write(scanner.Bytes())
			lines.WriteByte('\n')
		}
	}
	if err := scanner.Err(); err != nil {
		return load{}, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&lines)
	if err != nil {
		return load{}, err
	}
	l := load{buckets: map[float64]float64{}}
	for _, m := range families[durations].GetMetric() {
		if label(m, "resource") == "" || slices.Contains([]string{"WATCH", "WATCHLIST", "CONNECT"}, label(m, "verb")) {
			continue
		}
		for _, b := range m.GetHistogram().GetBucket() {
			l.buckets[b.GetUpperBound()] += float64(b.GetCumulativeCount())
		}
	}
	for _, m := range families[started].GetMetric() {
		l.process = m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	}
	return l, nil
}

func label(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// since counts the requests since an earlier look at the same process; nil if there was no such
// look, or there were too few.
func (l load) since(before load) *clients {
	if before.process != l.process || before.buckets == nil {
		return nil
	}
	added := func(bound float64) float64 { return l.buckets[bound] - before.buckets[bound] }
	all := added(math.Inf(1))
	if all < fewest {
		return nil
	}
	c := &clients{Requests: int64(all), PerSecond: all / l.at.Sub(before.at).Seconds()}
	var bounds []float64
	for bound := range l.buckets {
		if !math.IsInf(bound, 1) {
			bounds = append(bounds, bound)
		}
	}
	slices.Sort(bounds)
	for _, bound := range bounds {
		if c.P99Seconds = bound; added(bound) >= 0.99*all {
			break
		}
	}
	return c
}
