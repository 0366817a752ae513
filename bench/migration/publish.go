package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// result is the median round of one way of migrating.
type result struct {
	Name             string  `json:"name"`
	Objects          int     `json:"objects"`
	Seconds          float64 `json:"seconds"`
	ObjectsPerSecond float64 `json:"objectsPerSecond"`
}

// document is the JSON document that -o json prints.
type document struct {
	Machine string   `json:"machine"`
	Servers int      `json:"servers"`
	Results []result `json:"results"`
	// Ratios are named as their targets in ratioTargets.
	Ratios map[string]float64 `json:"ratios"`
	// ClientWrites are quantiles of the latency of client writes, in milliseconds.
	ClientWrites map[string]float64 `json:"clientWritesMilliseconds,omitempty"`
	// OpenLoop and ClosedLoop are the results of migrations beside clients of the migrated resource.
	OpenLoop   loadedResult `json:"openLoop,omitzero"`
	ClosedLoop loadedResult `json:"closedLoop,omitzero"`

	rows []figures.Row
}

// loadedResult is how fast objects are migrated beside clients, and how much longer the slowest of
// a hundred of their requests takes than without, by Concord and by Kubernetes' own migrator.
type loadedResult struct {
	ObjectsPerSecond      float64 `json:"objectsPerSecond"`
	P99Ratio              float64 `json:"p99Ratio"`
	StockObjectsPerSecond float64 `json:"stockObjectsPerSecond"`
	StockP99Ratio         float64 `json:"stockP99Ratio"`
}

func (b *bench) figures() *document {
	d := &document{Machine: stage.Machine(), Servers: b.options.servers, Ratios: map[string]float64{}}
	if b.options.has(ways) {
		d.addWays(b)
	}
	d.addScale(b.scaled)
	if b.options.has(loads) {
		d.OpenLoop, d.ClosedLoop = d.addLoad(b, true), d.addLoad(b, false)
	}
	return d
}

// addWays adds the measurements of each way of migrating, and of clients of other objects.
func (d *document) addWays(b *bench) {
	d.ClientWrites = map[string]float64{
		"p50Idle": figures.Median(b.idle), "p99Idle": figures.Quantile(b.idle, 0.99),
		"p50Busy": figures.Median(b.busy), "p99Busy": figures.Quantile(b.busy, 0.99),
	}
	w, caughtUp := corpus.Span.Written, corpus.Span.Watched
	cr := d.add("rewrite of custom resources", b.custom.Rewrite, w)
	crSeen := d.add("rewrite of custom resources, until every watch cache has them", b.custom.Rewrite, caughtUp)
	crRaw := d.add("raw limit, custom resources", b.custom.Raw, w)
	d.add("raw limit, custom resources, until every watch cache has them", b.custom.Raw, caughtUp)
	put := d.add("one PUT per custom resource", b.custom.Update, w)
	apply := d.add("one empty apply per custom resource", b.custom.Apply, w)
	api := d.add("API engine, custom resources", b.custom.API, w)
	noop := d.add("rewrite of custom resources with nothing to do", b.custom.Noop, w)
	builtin := d.add("rewrite of built-in resources", b.builtin.Rewrite, w)
	builtinRaw := d.add("raw limit, built-in resources", b.builtin.Raw, w)
	d.add("one PUT per built-in resource", b.builtin.Update, w)
	d.add("one empty apply per built-in resource", b.builtin.Apply, w)
	d.add("API engine, built-in resources", b.builtin.API, w)
	yielding := d.add("rewrite of custom resources while clients write", b.yielding, w)

	size := fmt.Sprintf("%d objects of %d bytes", b.options.objects, b.valueBytes[0])
	d.compare("rewriteCR/raw", size, cr, crRaw, figures.RatioAtLeast(0.7))
	d.compare("rewriteBuiltin/raw", fmt.Sprintf("%d objects of %d bytes", b.options.objects, b.valueBytes[1]), builtin, builtinRaw, figures.RatioAtLeast(0.7))
	d.compare("rewriteCR/put", "", cr, put, figures.RatioAtLeast(50))
	d.compare("rewriteCR/apply", "", cr, apply, figures.RatioAtLeast(50))
	d.compare("rewriteCRCaughtUp/put", "", crSeen, put, figures.RatioAtLeast(35))
	best := put
	if apply.ObjectsPerSecond > put.ObjectsPerSecond {
		best = apply
	}
	d.compare("api/bestSequential", "", api, best, figures.RatioAtLeast(3))
	d.compare("noop/full", "", noop, cr, figures.RatioAtLeast(5))
	p99 := figures.Row{Figure: "p99Busy/p99Idle", Unit: "ms", Value: d.ClientWrites["p99Busy"], Note: fmt.Sprintf("%d writes during migrations, %d without", len(b.busy), len(b.idle))}.
		Compare("without a migration", d.ClientWrites["p99Idle"]).Judged(figures.RatioAtMost(2))
	d.rows, d.Ratios[p99.Figure] = append(d.rows, p99), p99.Beside.Ratio
	d.rows = append(d.rows, figures.Row{Figure: "rewriteCR while clients write", Unit: "objects/s", Value: yielding.ObjectsPerSecond}.
		Compare(cr.Name, cr.ObjectsPerSecond))
}

// addLoad adds the measurements beside clients of the migrated resource. The 99th percentile of
// their requests may be 1.5 times as long as without a migration, or 5 ms longer; twice as long in
// the closed loop, which saturates the machine.
func (d *document) addLoad(b *bench, open bool) loadedResult {
	ours, stock, name := b.ours[open], b.stock[open], loadName(open)
	least, ratio, more := 500.0, 2.0, 0.0
	if open {
		least, ratio, more = 2500, 1.5, 5
	}
	fast := d.add("rewrite of custom resources beside clients, "+name, ours.spans, corpus.Span.Written)
	slow := d.add("Kubernetes' own migrator beside clients, "+name, stock.spans, corpus.Span.Written)
	d.rows = append(d.rows, figures.Row{Figure: name, Unit: "objects/s", Value: fast.ObjectsPerSecond}.
		Compare("Kubernetes' own migrator, stock server", slow.ObjectsPerSecond).Judged(figures.AtLeast(least)))
	for _, side := range []struct {
		name   string
		of     *beside
		judged bool
	}{{name + ", p99 of clients", ours, true}, {name + ", p99 of clients of the stock server", stock, false}} {
		idle := figures.Quantile(side.of.idle, 0.99)
		row := figures.Row{Figure: side.name, Unit: "ms", Value: figures.Quantile(side.of.busy, 0.99),
			Note: fmt.Sprintf("%d requests with a migration, %d without", len(side.of.busy), len(side.of.idle))}.Compare("without a migration", idle)
		if side.judged {
			row = row.Judged(figures.AtMost(max(ratio*idle, idle+more)))
		}
		d.rows = append(d.rows, row)
	}
	return loadedResult{fast.ObjectsPerSecond, ours.p99Ratio(), slow.ObjectsPerSecond, stock.p99Ratio()}
}

// add records the median round of a way and returns it. The median counts because the speed of the
// machine changes over time. All rounds of a way migrate the same number of objects.
func (d *document) add(name string, spans []corpus.Span, end func(corpus.Span) time.Time) result {
	r := result{Name: name, Objects: spans[0].Objects(), Seconds: medianSeconds(spans, end)}
	r.ObjectsPerSecond = float64(r.Objects) / r.Seconds
	d.Results = append(d.Results, r)
	return r
}

// medianSeconds is how long the median round takes.
func medianSeconds(spans []corpus.Span, end func(corpus.Span) time.Time) float64 {
	var seconds []float64
	for _, s := range spans {
		seconds = append(seconds, end(s).Sub(s.Began()).Seconds())
	}
	return figures.Median(seconds)
}

// compare adds a row that compares two ways. The target judges the row unless it is nil.
func (d *document) compare(name, note string, one, other result, target *figures.Target) {
	row := figures.Row{Figure: name, Unit: "objects/s", Value: one.ObjectsPerSecond, Note: note}.
		Compare(other.Name, other.ObjectsPerSecond)
	if target != nil {
		row = row.Judged(target)
	}
	d.rows, d.Ratios[name] = append(d.rows, row), row.Beside.Ratio
}

func (d *document) table() string {
	servers := "one server"
	if d.Servers > 1 {
		servers = fmt.Sprintf("%d servers", d.Servers)
	}
	var s strings.Builder
	fmt.Fprintf(&s, "%s; %s\n\n%s", d.Machine, servers, figures.Header)
	for _, row := range d.rows {
		s.WriteString(row.Markdown())
	}
	return s.String()
}

// publish writes the file and prints the table or the document.
func (d *document) publish(o options, stdout io.Writer) error {
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("directory of the figures: %w", err)
	}
	table := d.table()
	if err := os.WriteFile(filepath.Join(o.dir, "migration.md"), []byte(table), 0o644); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	if !o.json {
		_, err := io.WriteString(stdout, table)
		return err
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	return encoder.Encode(d)
}
