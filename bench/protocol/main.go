// Command protocol measures what the protocol (DESIGN section 3) costs and how fast it
// is, beside the same server without it and beside the ways of existing systems:
//
//	go run ./bench/protocol [-only name,...] [-objects N] [-quick] [-o json]
//
// What is compared is measured in turns, so that what else happens on the machine meets
// both sides: ratios are what counts. The figures come as rows of a Markdown table; with
// -o json the rows go to stderr and stdout is one JSON document. It exits with 1 when a
// measurement fails, not when a figure misses its target. All default measurements
// together take less than ten minutes on two cores. Two of them read /proc, hence need
// Linux.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// measure is one measurement.
type measure struct {
	name, about string
	run         func(context.Context, *bench) error
}

var measures = []measure{
	{"latency", "latency of writes with the protocol and without", measureLatency},
	{"start", "time from start to ready with the protocol and without", measureStart},
	{"plan", "concord apis, and time from start to ready with the API plan and without", measurePlan},
	{"crds", "agreement on 1,000 CRDs after three servers started", measureCRDs},
	{"stall", "longest write when a CRD's storage version changes", measureStall},
	{"saturated", "the same under writers without a pause", measureSaturated},
	{"descriptors", "open files and etcd connections with 50 CRDs in use", measureDescriptors},
	{"crash", "agreement after SIGKILL", measureCrash},
	{"rewrite", "rewriting beside one API write per object and beside raw etcd", measureRewrite},
}

// bench is what all measurements use.
type bench struct {
	size  size
	stage *stage.Stage
	// table takes the rows as they come, progress what is going on.
	table, progress io.Writer
	rows            []figures.Row
	unwritten       error  // why a row could not be written
	name            string // of the measurement that runs
}

func (b *bench) emit(row figures.Row) {
	row.Measure = b.name
	b.rows = append(b.rows, row)
	if _, err := io.WriteString(b.table, row.Markdown()); b.unwritten == nil {
		b.unwritten = err
	}
}

func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, "%s: %s\n", b.name, fmt.Sprintf(format, args...))
}

func main() { stage.Main("protocol", run) }

// options are what the command line says.
type options struct {
	chosen []measure
	size   size
	json   bool
}

func parse(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("protocol", flag.ContinueOnError)
	flags.SetOutput(stderr)
	only := flags.String("only", "", "measure only these, comma-separated: "+strings.Join(names(), ", "))
	objects := flags.Int("objects", full.objects, "objects of each resource that are rewritten")
	quick := flags.Bool("quick", false, "small counts, to see that everything works; the figures are worth nothing")
	output := flags.String("o", "", `"json" for one JSON document on stdout`)
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if flags.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *output != "" && *output != "json" {
		return options{}, fmt.Errorf("-o %s: only json is known", *output)
	}
	o := options{size: full, json: *output == "json"}
	if *quick {
		o.size = small
	}
	flags.Visit(func(f *flag.Flag) {
		if f.Name == "objects" {
			o.size.objects = *objects
		}
	})
	if o.size.objects < o.size.sampled {
		return options{}, fmt.Errorf("-objects %d: at least %d are needed", o.size.objects, o.size.sampled)
	}
	var err error
	o.chosen, err = choose(*only)
	return o, err
}

func names() []string {
	var all []string
	for _, m := range measures {
		all = append(all, m.name)
	}
	return all
}

// choose returns the named measurements in their usual order; all if none is named.
func choose(only string) ([]measure, error) {
	if only == "" {
		return measures, nil
	}
	wanted := strings.Split(only, ",")
	for _, name := range wanted {
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("-only %s: there are %s", name, strings.Join(names(), ", "))
		}
	}
	var chosen []measure
	for _, m := range measures {
		if slices.Contains(wanted, m.name) {
			chosen = append(chosen, m)
		}
	}
	return chosen, nil
}

// document is what -o json prints.
type document struct {
	Machine string        `json:"machine"`
	Seconds float64       `json:"seconds"`
	Figures []figures.Row `json:"figures"`
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	s, err := stage.New()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	b := &bench{size: o.size, stage: s, table: stdout, progress: stderr}
	if o.json {
		b.table = stderr
	}
	started := time.Now()
	failed := b.all(ctx, o.chosen)
	if !o.json {
		return failed
	}
	encoder := json.NewEncoder(stdout)
	encoder.SetIndent("", "  ")
	return errors.Join(failed, encoder.Encode(document{Machine: stage.Machine(), Seconds: time.Since(started).Seconds(), Figures: b.rows}))
}

// all runs measurements. One that fails does not keep the others from being made.
func (b *bench) all(ctx context.Context, chosen []measure) error {
	_, b.unwritten = fmt.Fprintf(b.table, "%s\n\n%s", stage.Machine(), figures.Header)
	var errs []error
	for _, m := range chosen {
		b.name = m.name
		b.logf("%s", m.about)
		began := time.Now()
		if err := m.run(ctx, b); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", m.name, err), b.stage.Clear())
		}
		if ctx.Err() != nil {
			break
		}
		b.logf("done in %.0f s", time.Since(began).Seconds())
	}
	return errors.Join(append(errs, b.unwritten)...)
}
