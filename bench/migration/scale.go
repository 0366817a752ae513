package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// scaled is what a migration of a number of custom resources takes, by a server of its own
// that keeps none of them in memory: what grows is the migration's.
type scaled struct {
	full, noop corpus.Span
	// extra is how much more memory the server held at most than before, in bytes.
	extra int64
}

// scale migrates each number of objects, smallest first.
func (b *bench) scale(ctx context.Context) error {
	for _, n := range b.options.scale {
		b.logf("migrating %d objects, which no server keeps in memory", n)
		one, err := b.scaleTo(ctx, n)
		if err != nil {
			return fmt.Errorf("%d objects: %w", n, err)
		}
		b.scaled = append(b.scaled, one)
	}
	return nil
}

func (b *bench) scaleTo(ctx context.Context, n int) (one scaled, err error) {
	cluster, err := b.stage.Cluster(ctx, fmt.Sprint("scale-", n), true, 1)
	if err != nil {
		return scaled{}, err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	servers, err := corpus.Open(ctx, cluster)
	if err != nil {
		return scaled{}, err
	}
	if err := corpus.PostCRD(ctx, servers.Clients[0], corpus.Rewritten, "v2"); err != nil {
		return scaled{}, err
	}
	stored, err := corpus.CustomResources.FillUnwatched(ctx, servers, n)
	if err != nil {
		return scaled{}, err
	}
	one.full, one.extra, err = measured(ctx, cluster.Servers[0], stored, "full")
	if err != nil {
		return scaled{}, err
	}
	if err := stored.Check(ctx, n); err != nil {
		return scaled{}, err
	}
	one.noop, err = stored.Migrate(ctx, "noop")
	return one, err
}

// measured migrates and says how much the server's memory grew meanwhile.
func measured(ctx context.Context, server *stage.Server, stored *corpus.Stored, name string) (corpus.Span, int64, error) {
	before, err := server.Resident()
	if err != nil {
		return corpus.Span{}, 0, err
	}
	if err := server.ResetPeak(); err != nil {
		return corpus.Span{}, 0, err
	}
	span, err := stored.Migrate(ctx, name)
	if err != nil {
		return corpus.Span{}, 0, err
	}
	peak, err := server.PeakResident()
	return span, peak - before, err
}

// addScale adds what was measured at each size, beside the smallest.
func (d *document) addScale(all []scaled) {
	if len(all) == 0 {
		return
	}
	perObject := func(s scaled) float64 {
		return s.full.Written().Sub(s.full.Began()).Seconds() / float64(s.full.Objects()) * 1e3
	}
	mib := func(s scaled) float64 { return float64(s.extra) / (1 << 20) }
	smallest := all[0]
	for i, s := range all {
		n := s.full.Objects()
		full := d.add(fmt.Sprintf("rewrite of %d custom resources that no server keeps in memory", n), []corpus.Span{s.full}, corpus.Span.Written)
		noop := d.add(fmt.Sprintf("the same %d with nothing to do", n), []corpus.Span{s.noop}, corpus.Span.Written)
		time := figures.Row{Figure: fmt.Sprintf("time per object, %d objects", n), Unit: "ms", Value: perObject(s)}
		memory := figures.Row{Figure: fmt.Sprintf("extra resident memory, %d objects", n), Unit: "MiB", Value: mib(s)}.Judged(figures.AtMost(150))
		if i > 0 {
			beside := fmt.Sprintf("with %d objects", smallest.full.Objects())
			time = time.Compare(beside, perObject(smallest)).Judged(figures.RatioAtMost(1.15))
			memory = memory.Compare(beside, mib(smallest))
			d.Ratios[fmt.Sprintf("timePerObject%d/%d", n, smallest.full.Objects())] = time.Beside.Ratio
			d.Ratios[fmt.Sprintf("extraMemory%d/%d", n, smallest.full.Objects())] = memory.Beside.Ratio
		}
		d.rows = append(d.rows, time, memory)
		d.compare(fmt.Sprintf("noop/full, %d objects", n), "", noop, full, figures.RatioAtLeast(5))
	}
}
