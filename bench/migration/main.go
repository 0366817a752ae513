// Command migration measures how fast stored objects are migrated, and compares that with raw transactions of etcd
// and with existing migrators, on the same data and servers and in the same run:
//
//	go run ./bench/migration [-objects N] [-servers N] [-rounds N] [-scale N,N,...] [-only PART,...] [-dir DIR] [-o json]
//
// With -scale 10000,100000,1000000 it also measures, in some minutes, the time and memory that a migration takes at
// each of these numbers of objects. With -only loads it measures nothing but migrations beside clients of the
// migrated resource: an open loop of them, whose latencies count from when a request was due, and a closed loop
// that saturates the machine. Kubernetes' own migrator does the same on a stock server. The other parts are ways
// (each way of migrating, and how long clients of other resources wait) and scale (which needs -scale).
//
// The ways that are compared are measured in turns, and of each the median round counts: ratios are what matters. The
// table is written to a file, migration.md, and to stdout as well; with -o json stdout is one JSON document. It exits
// with 1 when a measurement fails, not when a figure misses its target.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/stage"
)

// options are the options on the command line.
type options struct {
	// objects is how many of each resource are migrated, sampled how many of them one by one.
	objects, sampled int
	servers, rounds  int
	// samples is how many client writes have to be seen with a migration and without.
	samples int
	// rate is how many requests a second the open loop makes.
	rate int
	// idle is how long clients are timed without a migration in a round.
	idle time.Duration
	// scale has the numbers of objects at which time per object and memory are measured, and legRounds is how many
	// rounds each leg has at most.
	scale     []int
	legRounds int
	dir       string
	json      bool
	// only are the parts that are measured.
	only       []string
	serverArgs []string
}

// The parts of the measurement, in their order.
const (
	ways    = "ways"
	scaling = "scale"
	loads   = "loads"
)

var parts = []string{ways, scaling, loads}

// has says whether a part is measured.
func (o *options) has(part string) bool { return slices.Contains(o.only, part) }

func main() { stage.Main("migration", run) }

func parse(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("migration", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{}
	flags.IntVar(&o.objects, "objects", 10_000, "objects of each resource")
	flags.IntVar(&o.servers, "servers", 1, "API servers that run and watch")
	flags.IntVar(&o.rounds, "rounds", 3, "how often each way is measured, what takes a fraction of a second three times as often")
	flags.IntVar(&o.samples, "samples", 10_000, "client writes that are timed with a migration, and without")
	flags.IntVar(&o.rate, "rate", corpus.OpenRate, "requests per second of the open loop")
	flags.DurationVar(&o.idle, "idle", 10*time.Second, "how long clients of the loads are timed without a migration in a round")
	flags.StringVar(&o.dir, "dir", "migration-figures", "directory of the table")
	flags.Func("scale", "numbers of objects, smallest first, at which time per object and memory are measured", o.addScale)
	flags.IntVar(&o.legRounds, "leg-rounds", 20, "at most how often each number of -scale is migrated before the next one has its turn")
	only := flags.String("only", "", "the parts that are measured, with commas between, of: "+strings.Join(parts, ", ")+" (default all)")
	flags.Func("server-arg", "an argument of the servers", func(a string) error { o.serverArgs = append(o.serverArgs, a); return nil })
	output := flags.String("o", "", `"json" for one JSON document on stdout`)
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case *output != "" && *output != "json":
		return options{}, fmt.Errorf("-o %s: only json is known", *output)
	case o.objects < 100 || o.servers < 1 || o.rounds < 1 || o.legRounds < 1 || o.samples < 100 || o.rate < 1 || o.idle <= 0:
		return options{}, errors.New("at least 100 objects, 100 samples, a server, a round, a request per second and a moment without a migration are needed")
	}
	if o.only = parts; *only != "" {
		o.only = strings.Split(*only, ",")
		if o.has(scaling) != (len(o.scale) > 0) {
			return options{}, errors.New("-scale and the part scale of -only need each other")
		}
	}
	for _, part := range o.only {
		if !slices.Contains(parts, part) {
			return options{}, fmt.Errorf("-only has %q, which is none of: %s", part, strings.Join(parts, ", "))
		}
	}
	o.sampled = min(o.objects, 300)
	o.json = *output == "json"
	return o, nil
}

func (o *options) addScale(list string) error {
	for text := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 100 || len(o.scale) > 0 && n <= o.scale[len(o.scale)-1] {
			return errors.New("numbers of at least 100, each larger than the one before, are needed")
		}
		o.scale = append(o.scale, n)
	}
	return nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	b := &bench{options: o, progress: stderr}
	for _, part := range []struct {
		name    string
		measure func(context.Context) error
	}{{ways, b.measure}, {scaling, b.scale}, {loads, b.besideClients}} {
		if !o.has(part.name) {
			continue
		}
		if err := part.measure(ctx); err != nil {
			return err
		}
	}
	return b.figures().publish(o, stdout)
}
