package main

import (
	"fmt"
	"strings"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// table returns the table that is published.
func (b *bench) table() string {
	var rows []figures.Row
	add := func(r figures.Row) { rows = append(rows, r) }
	ours, everything, others := b.ways[0], b.ways[1], b.ways[2:]

	rates := func(w *way) float64 { return w.rate(w.alone) }
	loaded := func(w *way) float64 { return w.rate(w.beside) }
	for _, of := range []struct {
		what string
		rate func(*way) float64
	}{{"alone", rates}, {"beside the open loop", loaded}} {
		best := others[0]
		for _, w := range others {
			add(figures.Row{Figure: w.name + ", " + of.what, Unit: "objects/s", Value: of.rate(w)})
			if of.rate(w) > of.rate(best) {
				best = w
			}
		}
		add(figures.Row{Figure: ours.name + ", " + of.what, Unit: "objects/s", Value: of.rate(ours)}.
			Compare(best.name, of.rate(best)).Judged(figures.RatioAtLeast(5)))
	}
	for _, w := range append(others, ours) {
		idle, busy := w.latencies()
		row := figures.Row{Figure: "p99 of clients, " + w.name, Unit: "ms", Value: figures.Quantile(busy, 0.99),
			Note: fmt.Sprintf("%d requests with a migration, %d without", len(busy), len(idle))}.Compare("without a migration", figures.Quantile(idle, 0.99))
		if w == ours {
			row = row.Judged(figures.RatioAtMost(1.5))
		}
		add(row)
	}
	for _, of := range []struct {
		what, unit string
		value      func(turn) float64
	}{
		{"requests per object, with the proof", "", func(t turn) float64 { return t.requests }},
		{"bytes in bodies per object, with the proof", "bytes", func(t turn) float64 { return t.bytes }},
		{"kube-apiserver's processor time per object", "ms", func(t turn) float64 { return t.cpu }},
	} {
		for _, w := range append(others, ours) {
			add(figures.Row{Figure: of.what + ", " + w.name, Unit: of.unit, Value: median(w.alone, of.value)})
		}
	}
	for _, w := range []*way{ours, everything} {
		note := fmt.Sprintf("1,000 objects of %d", w.stored.Objects())
		if w.all {
			note = fmt.Sprintf("all %d objects", w.stored.Objects())
		}
		add(figures.Row{Figure: "proof, " + w.name, Unit: "s", Note: note, Value: median(w.alone, func(t turn) float64 { return t.proof.took().Seconds() })}.
			Compare("its migration", median(w.alone, func(t turn) float64 { return t.took().Seconds() })).Judged(figures.RatioAtMost(1)))
	}
	for _, w := range []*way{ours, b.large} {
		if w != nil {
			add(figures.Row{Figure: fmt.Sprintf("most resident memory of concord controllers, %d objects", w.stored.Objects()), Unit: "MiB", Value: float64(w.peak) / (1 << 20)}.
				Judged(figures.AtMost(64)))
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s; a stock kube-apiserver; %d objects of %d bytes, of the others %d\n\n%s",
		stage.Machine(), b.options.objects, ours.stored.ValueBytes(), b.options.others, figures.Header)
	for _, row := range rows {
		s.WriteString(row.Markdown())
	}
	return s.String()
}

// rate returns the median of the turns, in objects per second.
func (w *way) rate(turns []turn) float64 {
	return median(turns, func(t turn) float64 { return float64(w.stored.Objects()) / t.took().Seconds() })
}

// latencies returns the latencies of all turns.
func (w *way) latencies() (idle, busy []float64) {
	for _, t := range w.beside {
		idle, busy = append(idle, t.idle...), append(busy, t.busy...)
	}
	return idle, busy
}

func median(turns []turn, of func(turn) float64) float64 {
	var all []float64
	for _, t := range turns {
		all = append(all, of(t))
	}
	return figures.Median(all)
}
