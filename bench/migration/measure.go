package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/load"
)

// bench collects the measurements.
type bench struct {
	options  options
	progress io.Writer

	custom, builtin corpus.Ways
	valueBytes      [2]int // of a custom resource and of a built-in one, in the old encoding
	// idle and busy are the latencies of client writes, in milliseconds, without a migration and
	// during one; yielding is how long these migrations took, which give way to the clients.
	idle, busy []float64
	yielding   []corpus.Span
	scaled     []*scaled
	// ours and stock are the measurements of Concord and of Kubernetes' own migrator beside an
	// open loop of clients (true) and a closed one (false).
	ours, stock map[bool]*beside
}

func (b *bench) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(b.progress, format+"\n", args...)
}

// maxRepeatedly is up to how many objects are migrated through the API in every round. With
// more objects only the first round does so, since each object takes milliseconds.
const maxRepeatedly = 20_000

func (b *bench) measure(ctx context.Context) (err error) {
	cluster, err := stage.New(ctx, "migration", b.options.servers)
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
	b.logf("storing %d objects of each resource", b.options.objects)
	policies, err := b.fill(ctx, corpus.Policies, servers)
	if err != nil {
		return err
	}
	custom, err := b.fill(ctx, corpus.CustomResources, servers)
	if err != nil {
		return err
	}
	b.valueBytes = [2]int{custom.ValueBytes(), policies.ValueBytes()}
	for i := range b.options.rounds {
		b.logf("round %d of %d", i+1, b.options.rounds)
		if err := b.builtin.Round(ctx, policies, i, b.options.sampled); err != nil {
			return err
		}
		if err := b.custom.Round(ctx, custom, i, b.options.sampled); err != nil {
			return err
		}
		if i > 0 && b.options.objects > maxRepeatedly {
			continue
		}
		if err := b.builtin.RoundThroughAPI(ctx, policies, i, b.options.sampled); err != nil {
			return err
		}
		if err := b.custom.RoundThroughAPI(ctx, custom, i, b.options.sampled); err != nil {
			return err
		}
	}
	b.logf("timing client writes")
	return b.foreground(ctx, custom)
}

// fill stores objects and migrates them once. That first migration is not measured: in it the
// servers build what they need for all of them.
func (b *bench) fill(ctx context.Context, c corpus.Corpus, servers *corpus.Servers) (*corpus.Stored, error) {
	stored, err := c.Fill(ctx, servers, b.options.objects)
	if err != nil {
		return nil, err
	}
	_, err = stored.Migrate(ctx, "warm")
	return stored, err
}

const (
	// settle is how long the writers write before a migration begins.
	settle = 500 * time.Millisecond
	// maxRounds is how many migrations are run at most to get enough samples of client writes,
	// and maxYielding is how many objects each of them writes. Such a migration gives way to the
	// clients and takes so long that garbage is collected now and then, as without a migration.
	maxRounds, maxYielding = 40, 10_000
)

// foreground times client writes during migrations at the servers' default settings, and
// without one, in turns. Both take as long, so that a collection of garbage, which lengthens
// writes whether or not there is a migration, has the same chance to fall into either.
func (b *bench) foreground(ctx context.Context, stored *corpus.Stored) error {
	w, err := newWriters(ctx, stored.Servers)
	if err != nil {
		return err
	}
	for i := 0; i < maxRounds && (i < b.options.rounds || len(b.busy) < b.options.samples); i++ {
		objects := min(stored.Objects(), maxYielding)
		if _, err := stored.Restore(ctx, objects); err != nil {
			return err
		}
		if err := stored.Servers.AwaitCalm(ctx); err != nil {
			return err
		}
		stop := w.start(ctx)
		settled := load.Pause(ctx, settle)
		span, err := stored.Migrate(ctx, fmt.Sprint("foreground-", i))
		busy, stopErr := stop()
		if err = errors.Join(settled, err, stopErr); err != nil {
			return err
		}
		b.yielding = append(b.yielding, span.Of(objects))
		b.busy = append(b.busy, busy.Took(span.Began(), span.Written())...)

		if err := stored.Servers.AwaitCalm(ctx); err != nil {
			return err
		}
		stop = w.start(ctx)
		settled = load.Pause(ctx, settle)
		began := time.Now()
		err = load.Pause(ctx, span.Written().Sub(span.Began()))
		idle, stopErr := stop()
		if err = errors.Join(settled, err, stopErr); err != nil {
			return err
		}
		b.idle = append(b.idle, idle.Took(began, time.Now())...)
		b.logf("%d client writes timed during migrations, %d without", len(b.busy), len(b.idle))
	}
	return nil
}
