package main

import (
	"fmt"
	"io"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// The names of the figures.
const (
	ready     = "start to ready on an etcd in use"
	idle      = "resident memory, idle"
	saturated = "creates of ConfigMaps by 32 clients without a pause"
	defined   = "creating all CRDs, a share in each round, until all are established"
	full      = "resident memory with all CRDs"
	files     = "open files with CRDs in use"
	sockets   = "etcd connections with CRDs in use"

	first   = "a new CRD until its first object is stored"
	normal  = "create of a ConfigMap, nothing else to do"
	pressed = "create of a ConfigMap beside a flood of 600 clients of another user"
	refused = "requests of the flood that were answered 429"
	flooded = "resident memory beside the flood"

	create, update = "create", "update"
)

func latency(verb, kind string) string { return verb + " of " + kind }

// publish writes the table.
func (b *bench) publish(w io.Writer) error {
	text := fmt.Sprintf("%s; %d rounds, %d CRDs, %d writes of each kind a round\n\n", stage.Machine(), b.rounds, b.crds, b.writes) + figures.Header
	for _, k := range kinds {
		for _, verb := range []string{create, update} {
			text += b.quantiles(latency(verb, k.name), figures.RatioAtMost(1.05))
		}
	}
	text += b.row(saturated, "requests/s", figures.RatioAtLeast(0.95)) +
		b.row(ready, "s", figures.RatioAtMost(1.2)) +
		b.row(idle, "MiB", figures.RatioAtMost(1.1)) +
		b.row(full, "MiB", figures.RatioAtMost(1.1)) +
		b.total(defined, "s", figures.RatioAtMost(1.3)) +
		b.row(first, "s", nil) +
		b.row(files, "", figures.AtMost(figures.Median(b.samples[key{files, theirs}])-1)) +
		b.row(sockets, "", figures.AtMost(figures.Median(b.samples[key{sockets, theirs}])-1)) +
		b.quantiles(normal, nil) +
		b.quantiles(pressed, nil) + b.slowdown(ours, pressed, figures.RatioAtMost(5)) + b.slowdown(theirs, pressed, nil) +
		b.row(refused, "%", nil) + b.row(flooded, "MiB", nil)
	_, err := io.WriteString(w, text)
	return err
}

// row compares the medians of the rounds.
func (b *bench) row(figure, unit string, target *figures.Target) string {
	return b.compared(figure, unit, target, figures.Median)
}

// total compares the sums of all rounds, for figures where each round takes longer than the one before it.
func (b *bench) total(figure, unit string, target *figures.Target) string {
	return b.compared(figure, unit, target, func(samples []float64) (sum float64) {
		for _, s := range samples {
			sum += s
		}
		return sum
	})
}

func (b *bench) compared(figure, unit string, target *figures.Target, of func([]float64) float64) string {
	own, other := b.samples[key{figure, ours}], b.samples[key{figure, theirs}]
	if len(own) == 0 || len(other) == 0 { // its part was not chosen
		return ""
	}
	row := figures.Row{Figure: figure, Unit: unit, Value: of(own)}.Compare("stock", of(other))
	return judged(row, target)
}

// quantiles compares the latencies of all rounds.
func (b *bench) quantiles(figure string, target *figures.Target) string {
	own, other := b.samples[key{figure, ours}], b.samples[key{figure, theirs}]
	if len(own) == 0 || len(other) == 0 {
		return ""
	}
	var text string
	for _, q := range []float64{0.5, 0.99} {
		quantile := func(times []float64) float64 { return figures.Quantile(times, q) }
		row := figures.Row{Figure: fmt.Sprintf("%s, p%g", figure, 100*q), Unit: "ms", Value: quantile(own)}.
			Compare("stock", quantile(other)).Within(figures.RatioInterval(own, other, quantile))
		text += judged(row, target)
	}
	return text
}

// slowdown compares a client's latency beside the flood with that without it.
func (b *bench) slowdown(role, figure string, target *figures.Target) string {
	quantile := func(times []float64) float64 { return figures.Quantile(times, 0.99) }
	beside, alone := b.samples[key{figure, role}], b.samples[key{normal, role}]
	if len(beside) == 0 {
		return ""
	}
	row := figures.Row{Figure: role + ": " + figure + ", p99", Unit: "ms", Value: quantile(beside)}.
		Compare("idle", quantile(alone)).Within(figures.RatioInterval(beside, alone, quantile))
	return judged(row, target)
}

func judged(row figures.Row, target *figures.Target) string {
	if target != nil {
		row = row.Judged(target)
	}
	return row.Markdown()
}
