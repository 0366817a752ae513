// Command server measures concord kube-apiserver beside the stock kube-apiserver of the same
// module, each on an etcd of its own, in turns and in one run:
//
//	go run ./bench/server [-rounds N] [-crds N] [-only PART,…] [-quick]
//
// Of each figure the median over rounds counts, and the ratio is what matters. The table goes to
// stdout, progress to stderr. It exits with 1 when a measurement fails, not when a figure misses
// its target. The part overload needs chrt of util-linux.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/server/kube"
	"github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/process"
)

// The roles in which this program starts itself (process.Self).
const (
	ours     = "concord"
	theirs   = "stock"
	etcd     = "etcd"
	flooding = "flood"
)

func main() {
	process.Serve(map[string]func(context.Context, []string) error{
		ours:     stage.Command(kube.NewCommand),
		theirs:   func(context.Context, []string) error { return cli.RunNoErrOutput(stock.Command()) },
		etcd:     func(context.Context, []string) error { etcdmain.Main(os.Args); return nil },
		flooding: runFlood,
	})
	stage.Main("server", run)
}

// options are the options on the command line.
type options struct {
	rounds, crds int
	// only names the parts that are measured; empty: all of them.
	only string
	// writes is how many requests of each kind are timed in a round.
	writes int
	// settle is how long a server is left alone after a start and before a flood, idle is how long
	// both servers are left alone before their memory is measured, and flood is how long a server is
	// kept saturated in a round.
	settle, idle, flood time.Duration
}

func parse(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{writes: 300, settle: 30 * time.Second, idle: 150 * time.Second, flood: 10 * time.Second}
	flags.IntVar(&o.rounds, "rounds", 7, "how often each side is measured, in turns")
	flags.IntVar(&o.crds, "crds", 1000, "CRDs that are created")
	flags.StringVar(&o.only, "only", "", "the parts that are measured, with commas between, of: "+strings.Join(partNames(), ", ")+" (default all)")
	quick := flags.Bool("quick", false, "two minutes, to see that it works: two rounds, 20 CRDs, figures of no worth")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	if *quick {
		o = options{only: o.only, rounds: 2, crds: 20, writes: 30, settle: 3 * time.Second, idle: time.Second, flood: 2 * time.Second}
	}
	if flags.NArg() > 0 || o.rounds < 1 || o.crds < o.rounds {
		return options{}, errors.New("no arguments, at least a round, and a CRD for every round are needed")
	}
	if o.only != "" && strings.Contains(o.only, "holdings") && !strings.Contains(o.only, "crds") {
		return options{}, errors.New("-only holdings needs crds")
	}
	for name := range strings.SplitSeq(o.only, ",") {
		if name != "" && !slices.Contains(partNames(), name) {
			return options{}, fmt.Errorf("-only has %q, which is none of: %s", name, strings.Join(partNames(), ", "))
		}
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "concord-bench-")
	if err != nil {
		return fmt.Errorf("temporary directory (set TMPDIR to one that can be written): %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &bench{options: o, progress: stderr, dir: dir, samples: map[key][]float64{}}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.measure(ctx); err != nil {
		return err
	}
	return b.publish(stdout)
}
