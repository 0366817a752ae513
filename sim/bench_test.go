package sim

import "testing"

// go test ./sim -run '^$' -bench Seeds
func BenchmarkSeeds(b *testing.B) {
	events := 0
	for i := range b.N {
		events += Seed(uint64(i), 0, nil).Steps
	}
	b.ReportMetric(float64(events)/float64(b.N), "events/op")
}
