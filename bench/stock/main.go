// Command stock measures migrations of custom resources in a stock kube-apiserver: those of
// "concord controllers", of kube-storage-version-migrator, of kube-controller-manager and of
// Cluster API's migrator, on the same server, in turns and in one run:
//
//	go run ./bench/stock [-objects N] [-others N] [-rounds N] [-memory-objects N] [-controllers FILE] [-dir DIR]
//
// Each way of migrating has a CRD and objects of its own; the CRD's storage version is changed
// before each migration. The objects are migrated first alone and then beside clients of them: an
// open loop of 100 writes and 100 reads a second, whose latencies count from when a request was
// due. "concord controllers" runs as a process of its own, as it is deployed.
//
// The table is written to a file, stock.md, and to stdout. It exits with 1 when a measurement
// fails, not when a figure misses its target.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/process"
)

// options are the options on the command line.
type options struct {
	// objects is how many objects Concord migrates, others how many each of the other migrators,
	// whose time per object is the same for any number of objects.
	objects, others, rounds int
	// memoryObjects is how many objects are migrated to measure memory; with 0 memory is not measured.
	memoryObjects int
	// controllers is the program concord-controllers; if it is empty the program is built.
	controllers string
	dir         string
}

func main() { stage.Main("stock", run) }

func parse(args []string, stderr io.Writer) (options, error) {
	flags := flag.NewFlagSet("stock", flag.ContinueOnError)
	flags.SetOutput(stderr)
	o := options{}
	flags.IntVar(&o.objects, "objects", 10_000, "objects that Concord migrates")
	flags.IntVar(&o.others, "others", 2000, "objects that each other way migrates, one after the other")
	flags.IntVar(&o.rounds, "rounds", 1, "how often each way is measured")
	flags.IntVar(&o.memoryObjects, "memory-objects", 100_000, "objects that Concord migrates while its memory is measured; 0: none")
	flags.StringVar(&o.controllers, "controllers", "", "the program concord-controllers (default: it is built)")
	flags.StringVar(&o.dir, "dir", "stock-figures", "directory of the table")
	if err := flags.Parse(args); err != nil {
		return options{}, err
	}
	switch {
	case flags.NArg() > 0:
		return options{}, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case o.objects < 100 || o.others < 100 || o.rounds < 1 || o.memoryObjects < 0:
		return options{}, errors.New("at least 100 objects and a round are needed")
	}
	return o, nil
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	ctrllog.SetLogger(logr.Discard()) // the logger of the client that migrates as Cluster API does
	o, err := parse(args, stderr)
	if err != nil {
		return err
	}
	b := &bench{options: o, progress: stderr}
	if o.controllers == "" {
		program, remove, err := build(ctx)
		if err != nil {
			return err
		}
		defer remove()
		b.options.controllers = program
	}
	if err := b.measure(ctx); err != nil {
		return err
	}
	table := b.table()
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return fmt.Errorf("directory of the figures: %w", err)
	}
	if err := os.WriteFile(filepath.Join(o.dir, "stock.md"), []byte(table), 0o644); err != nil {
		return fmt.Errorf("write the figures: %w", err)
	}
	_, err = io.WriteString(stdout, table)
	return err
}

// build builds the program concord-controllers as it is released.
func build(ctx context.Context) (program string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "concord-bench-")
	if err != nil {
		return "", nil, fmt.Errorf("directory of the program: %w", err)
	}
	program = filepath.Join(dir, "concord-controllers")
	remove = func() { _ = os.RemoveAll(dir) }
	if _, err := process.Go(ctx, "build", "-o", program, "-ldflags=-s -w", "github.com/concord-dev/concord/cmd/concord-controllers"); err != nil {
		remove()
		return "", nil, err
	}
	return program, remove, nil
}
