package main

import (
	"fmt"
	"io"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// The figures.
const (
	ready     = "start to ready on an etcd in use"
	idle      = "resident memory, idle"
	saturated = "creates of ConfigMaps by 32 clients without a pause"
	defined   = "creating a round's share of the CRDs until all are established"
	full      = "resident memory with all CRDs"
	files     = "open files with CRDs in use"
	sockets   = "etcd connections with CRDs in use"

	create, update = "create", "update"
)

func latency(verb, kind, quantile string) string { return verb + " of " + kind + ", " + quantile }

// publish writes the table.
func (b *bench) publish(w io.Writer) error {
	text := fmt.Sprintf("%s; %d rounds, %d CRDs, %d writes of each kind a round\n\n", stage.Machine(), b.rounds, b.crds, b.writes) + figures.Header
	for _, k := range kinds {
		for _, verb := range []string{create, update} {
			for _, q := range []string{"p50", "p99"} {
				text += b.row(latency(verb, k.name, q), "ms", figures.RatioAtMost(1.05))
			}
		}
	}
	text += b.row(saturated, "requests/s", figures.RatioAtLeast(0.95)) +
		b.row(ready, "s", figures.RatioAtMost(1.2)) +
		b.row(idle, "MiB", figures.RatioAtMost(1.1)) +
		b.row(full, "MiB", figures.RatioAtMost(1.1)) +
		b.row(defined, "s", figures.RatioAtMost(1.3)) +
		b.row(files, "", figures.AtMost(figures.Median(b.samples[key{files, theirs}])-1)) +
		b.row(sockets, "", figures.AtMost(figures.Median(b.samples[key{sockets, theirs}])-1))
	_, err := io.WriteString(w, text)
	return err
}

// row compares the medians over rounds.
func (b *bench) row(figure, unit string, target *figures.Target) string {
	own, other := b.samples[key{figure, ours}], b.samples[key{figure, theirs}]
	row := figures.Row{Measure: "server", Figure: figure, Unit: unit, Value: figures.Median(own)}.Compare("stock", figures.Median(other)).Keep(own, other)
	return row.Judged(target).Markdown()
}
