package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/load"
)

// maxLoaded is how many objects are migrated beside clients, and maxStock how many by
// Kubernetes' own migrator, which takes about ten milliseconds for each.
const maxLoaded, maxStock = 20_000, 2000

// beside has the measurements of migrations that ran beside clients of one kind, an open or a closed loop.
type beside struct {
	// idle and busy are the durations of requests without and with a migration, in milliseconds; with a migration
	// means from the change of the storage version until the watch cache has the last object.
	idle, busy []float64
	spans      []corpus.Span
}

// p99Ratio is the 99th percentile of the durations with a migration, divided by that without.
func (b beside) p99Ratio() float64 {
	return figures.Quantile(b.busy, 0.99) / figures.Quantile(b.idle, 0.99)
}

// loadName is the name of an open or a closed loop.
func loadName(open bool) string {
	if open {
		return "open loop"
	}
	return "closed loop"
}

// migrator is a migrator whose migrations are measured beside clients.
type migrator struct {
	name    string
	rounds  int
	stored  *corpus.Stored
	migrate func(ctx context.Context, round int, storage string) (corpus.Flipped, error)
	// loads has the measurements beside the open loop (true) and the closed loop (false).
	loads map[bool]*beside
}

// besideClients measures migrations beside clients of the migrated resource, each with the change of the storage
// version before it: migrations by Concord, and on a stock server those by Kubernetes' own migrator.
func (b *bench) besideClients(ctx context.Context) error {
	b.ours, b.stock = map[bool]*beside{true: {}, false: {}}, map[bool]*beside{true: {}, false: {}}
	return errors.Join(b.besideOurs(ctx), b.besideStock(ctx))
}

func (b *bench) besideOurs(ctx context.Context) (err error) {
	cluster, err := stage.New(ctx, "beside-clients", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	servers, err := corpus.Open(ctx, cluster, b.options.serverArgs...)
	if err != nil {
		return err
	}
	if err := corpus.CreateCRD(ctx, servers.Clients, corpus.Rewritten, "v2"); err != nil {
		return err
	}
	n := min(b.options.objects, maxLoaded)
	b.logf("storing %d objects", n)
	stored, err := corpus.CustomResources.Fill(ctx, servers, n)
	if err != nil {
		return err
	}
	if _, err := stored.Migrate(ctx, "warm"); err != nil {
		return err
	}
	return b.beside(ctx, migrator{name: "Concord", rounds: b.options.rounds, stored: stored, loads: b.ours,
		migrate: func(ctx context.Context, _ int, storage string) (corpus.Flipped, error) {
			return stored.FlipAndMigrate(ctx, storage)
		}})
}

func (b *bench) besideStock(ctx context.Context) (err error) {
	cluster, err := stage.New(ctx, "stock", 1)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Close()) }()
	cluster.Stock()
	if err := cluster.Start(ctx); err != nil {
		return err
	}
	client, err := cluster.Servers[0].Client()
	if err != nil {
		return err
	}
	servers := &corpus.Servers{Cluster: cluster, Clients: []*stage.Client{client}}
	if err := corpus.CreateCRD(ctx, servers.Clients, corpus.Rewritten, "v2"); err != nil {
		return err
	}
	n := min(b.options.objects, maxStock)
	b.logf("creating %d objects in a stock server", n)
	stored, err := corpus.CustomResources.Fill(ctx, servers, n)
	if err != nil {
		return err
	}
	if _, err := cluster.Servers[0].StartMigrator(); err != nil {
		return err
	}
	return b.beside(ctx, migrator{name: "Kubernetes' own migrator", rounds: 1, stored: stored, loads: b.stock,
		migrate: func(ctx context.Context, round int, storage string) (corpus.Flipped, error) {
			return stored.FlipAndMigrateStock(ctx, fmt.Sprintf("to-%s-%d", storage, round), storage)
		}})
}

// beside lets a migrator work beside the open and the closed loop in turns. The storage version is v2 at first,
// and changes each time.
func (b *bench) beside(ctx context.Context, m migrator) error {
	for i := range m.rounds {
		for _, one := range []struct {
			open    bool
			storage string
		}{{true, "v1"}, {false, "v2"}} {
			if err := b.loaded(ctx, m, i, one.open, one.storage); err != nil {
				return fmt.Errorf("%s, %s: %w", m.name, loadName(one.open), err)
			}
		}
	}
	return nil
}

func (b *bench) loaded(ctx context.Context, m migrator, round int, open bool, storage string) error {
	l := &corpus.Load{Client: m.stored.Servers.Clients[0], Path: m.stored.Path, Open: open, Rate: b.options.rate}
	if err := m.stored.Servers.AwaitCalm(ctx); err != nil {
		return err
	}
	loading, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	go func() { defer close(ended); l.Run(loading) }()
	began := time.Now().Add(settle)
	if err := load.Pause(ctx, settle+b.options.idle); err != nil {
		return err
	}
	flipped, err := m.migrate(ctx, round, storage)
	stop()
	<-ended
	if err := errors.Join(err, l.Err()); err != nil {
		return err
	}
	idle, busy := l.Took(began, flipped.Changed), l.Took(flipped.Changed, flipped.Watched())
	flip := l.Took(flipped.Changed, flipped.Began())
	b.logf("%s, %s: %.0f objects/s; p50 and p99 of clients %.1f and %.1f ms, before %.1f and %.1f ms, at the flip %.1f and %.1f ms (%d, %d and %d requests)",
		m.name, loadName(open), perSecond(flipped.Span), figures.Median(busy), figures.Quantile(busy, 0.99),
		figures.Median(idle), figures.Quantile(idle, 0.99), figures.Median(flip), figures.Quantile(flip, 0.99), len(busy), len(idle), len(flip))
	of := m.loads[open]
	of.idle, of.busy, of.spans = append(of.idle, idle...), append(of.busy, busy...), append(of.spans, flipped.Span)
	return nil
}

func perSecond(s corpus.Span) float64 {
	return float64(s.Objects()) / s.Written().Sub(s.Began()).Seconds()
}
