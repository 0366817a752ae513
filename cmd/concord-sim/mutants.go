package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"

	"github.com/concord-dev/concord/sim/mutant"
)

// dropRules runs the mutants: the protocol without one of its rules each. The exit code is
// that of a violation if one of them is not as it says.
func (o options) dropRules(out io.Writer) (int, error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	root, err := mutant.Root(ctx)
	if err != nil {
		return 0, err
	}
	mutants, err := mutant.All()
	if err != nil {
		return 0, err
	}
	if o.names != "" {
		if mutants, err = mutant.Select(mutants, strings.Split(o.names, ",")); err != nil {
			return 0, err
		}
	}
	budgets := [][]string{
		{"--quiet", "--shrink=false", "--from", strconv.FormatUint(o.from, 10), "--seeds", strconv.FormatUint(o.seeds, 10)},
		{"--exhaustive", "--preemptions", "1"},
	}
	if o.only != "" {
		budgets = [][]string{{"--exhaustive", "--world", o.only, "--preemptions", strconv.Itoa(o.preemptions)}}
		for i := range mutants {
			mutants[i].Find = nil
		}
	}
	right, err := mutant.Check(ctx, mutant.Config{
		Root: root, Package: "cmd/concord-sim", Parallel: o.parallel, Budgets: budgets, Verbose: o.names != "",
	}, mutants, out)
	if err != nil || right {
		return 0, err
	}
	return exitViolation, nil
}
