package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
)

const (
	command = "github.com/concord-dev/concord/cmd/concord"
	// warmups are runs of concord apis before the first that counts.
	warmups = 3
)

// measurePlan times what planning costs: concord apis, which does nothing else, and starts
// with the plan and without, in turns.
func measurePlan(ctx context.Context, b *bench) error {
	if err := b.measureAPIs(ctx); err != nil {
		return err
	}
	ready := map[bool][]float64{}
	for i := range b.size.plans {
		for _, planned := range []bool{i%2 == 0, i%2 == 1} {
			took, err := b.startPlanned(ctx, fmt.Sprintf("plan-%v-%d", planned, i), planned)
			if err != nil {
				return err
			}
			ready[planned] = append(ready[planned], took.Seconds())
		}
	}
	b.emit(figures.Row{Figure: "start to ready on an empty etcd, median", Unit: "s", Value: figures.Median(ready[true])}.
		Compare("without the plan", figures.Median(ready[false])).
		Keep(ready[true], ready[false]).
		Judged(figures.RatioAtMost(1.05)))
	return nil
}

// measureAPIs times the command as an operator runs it, with the start of its process.
func (b *bench) measureAPIs(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "concord-plan-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program := filepath.Join(dir, "concord")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, command).CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", command, err, out)
	}
	var wall, cpu []float64
	for i := range warmups + b.size.apis {
		run := exec.CommandContext(ctx, program, "apis", "--emulation-version", "1.36")
		start := time.Now()
		if out, err := run.Output(); err != nil {
			return fmt.Errorf("concord apis: %w: %s", err, out)
		}
		if took := time.Since(start); i >= warmups {
			wall = append(wall, float64(took.Microseconds())/1000)
			cpu = append(cpu, float64((run.ProcessState.UserTime()+run.ProcessState.SystemTime()).Microseconds())/1000)
		}
	}
	b.emit(figures.Row{Figure: "concord apis, warm, median", Unit: "ms", Value: figures.Median(wall)}.Keep(wall, nil).Judged(figures.AtMost(100)))
	b.emit(figures.Row{Figure: "concord apis, warm, processor time, median", Unit: "ms", Value: figures.Median(cpu)}.Keep(cpu, nil))
	return nil
}

func (b *bench) startPlanned(ctx context.Context, name string, planned bool) (took time.Duration, err error) {
	cluster, err := b.stage.Cluster(ctx, name, true, 1)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	cluster.Unplanned = !planned
	server := cluster.Servers[0]
	if err := server.Start(); err != nil {
		return 0, err
	}
	ready, err := server.AwaitReady(ctx, corpus.ExactPoll)
	return ready.Sub(server.Started()), err
}
