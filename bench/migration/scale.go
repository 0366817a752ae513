package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
	"github.com/concord-dev/concord/testbed/load"
)

// scaled has the measurements of migrations of one number of custom resources. The server is used for nothing
// else and keeps no custom resource in memory, so that all growth of its memory is the migration's.
type scaled struct {
	cluster *stage.Cluster
	stored  *corpus.Stored
	// perLeg is how many rounds there are in each leg.
	perLeg          int
	full, noop, raw []corpus.Span
	// rounds counts all rounds, also the first two, which are not measured.
	rounds int
	// before is the memory that the server needs before the first round, and extra is how much more it held at
	// most since then, in bytes.
	before, extra int64
}

const (
	// legs is how often all sizes are measured, from the first to the last and back in turns, because the speed
	// of the machine changes over time.
	legs = 4
	// legObjects is how many objects are migrated in a leg at each size. Small sizes take several rounds for
	// it, at least one and at most -leg-rounds: the time of a single short migration depends mostly on its
	// start, and its memory on when garbage happened to be collected.
	legObjects = 200_000
)

// scale measures migrations of each of the numbers of objects.
func (b *bench) scale(ctx context.Context) (err error) {
	for _, n := range b.options.scale {
		one, prepareErr := b.prepareScaled(ctx, n)
		if one != nil {
			defer func() { err = errors.Join(err, one.cluster.Close()) }()
		}
		if prepareErr != nil {
			return fmt.Errorf("%d objects: %w", n, prepareErr)
		}
		b.scaled = append(b.scaled, one)
	}
	for _, one := range b.scaled {
		if err := one.rest(ctx); err != nil {
			return err
		}
		b.logf("migrating %d objects twice, uncounted", one.stored.Objects())
		if err := one.warm(ctx); err != nil {
			return fmt.Errorf("%d objects: %w", one.stored.Objects(), err)
		}
	}
	leg := slices.Clone(b.scaled)
	for range legs {
		for _, one := range leg {
			if err := b.runScaled(ctx, one); err != nil {
				return err
			}
		}
		slices.Reverse(leg)
	}
	for _, one := range b.scaled {
		if err := one.end(ctx); err != nil {
			return err
		}
	}
	return nil
}

// prepareScaled starts a cluster and stores n objects. The caller closes the cluster, also after an error.
func (b *bench) prepareScaled(ctx context.Context, n int) (*scaled, error) {
	b.logf("storing %d objects, which no server keeps in memory", n)
	cluster, err := stage.New(ctx, fmt.Sprint("scale-", n), 1)
	if err != nil {
		return nil, err
	}
	one := &scaled{cluster: cluster, perLeg: max(1, min(b.options.legRounds, legObjects/n))}
	// Kubernetes' garbage collector would watch these objects, and the server's watch cache hold
	// them. The quota controller watches namespaced resources only, and these have no namespace.
	servers, err := corpus.Open(ctx, cluster, append(slices.Clone(b.options.serverArgs), "--enable-garbage-collector=false")...)
	if err != nil {
		return one, err
	}
	if err := corpus.PostCRD(ctx, servers.Clients[0], corpus.Rewritten, "v2"); err != nil {
		return one, err
	}
	one.stored, err = corpus.CustomResources.FillUnwatched(ctx, servers, n)
	return one, err
}

// runScaled runs the rounds of one leg at one size.
func (b *bench) runScaled(ctx context.Context, one *scaled) error {
	for range one.perLeg {
		b.logf("migrating %d objects, round %d of %d", one.stored.Objects(), len(one.full)+1, legs*one.perLeg)
		if err := one.round(ctx); err != nil {
			return fmt.Errorf("%d objects: %w", one.stored.Objects(), err)
		}
	}
	return nil
}

// warm runs two rounds whose times do not count. Their memory does count. etcd's file grows in them to the size
// that it needs for three revisions of each object.
func (s *scaled) warm(ctx context.Context) error {
	err := s.round(ctx)
	if err == nil {
		err = s.round(ctx)
	}
	s.full, s.noop, s.raw = nil, nil, nil
	return err
}

// end checks that all objects are migrated, and reads the highest memory of the server.
func (s *scaled) end(ctx context.Context) error {
	if err := s.stored.Check(ctx, s.stored.Objects()); err != nil {
		return err
	}
	peak, err := s.cluster.Servers[0].Run().PeakResident()
	s.extra = peak - s.before
	return err
}

// settling is the time between two readings of a server's memory. The memory has settled if it changes by at
// most settledWithin bytes in that time.
const settling, settledWithin = time.Second, 1 << 20

// rest measures the memory that the server needs before the first migration. That memory shrinks for some
// seconds, which rest waits for: garbage of the server's start outlives more than one collection.
func (s *scaled) rest(ctx context.Context) error {
	server := s.cluster.Servers[0]
	err := corpus.Eventually(ctx, "the server's memory has settled", func(ctx context.Context) (err error) {
		before := s.before
		if err := s.stored.Servers.Rest(ctx); err != nil {
			return err
		}
		if s.before, err = resting(ctx, server, s.stored.Servers.Clients[0]); err != nil {
			return err
		}
		if change := s.before - before; change > settledWithin || change < -settledWithin {
			return errors.Join(fmt.Errorf("it changed by %d KiB", change>>10), load.Pause(ctx, settling))
		}
		return nil
	})
	return errors.Join(err, server.Run().ResetPeak())
}

// resting returns the memory that a server needs: what it holds, without the free part of Go's heap, which may
// have been returned to the system or not.
func resting(ctx context.Context, server *stage.Server, client *stage.Client) (int64, error) {
	held, err := server.Run().Resident()
	if err != nil {
		return 0, err
	}
	spare, err := client.FreeHeap(ctx)
	return held - spare, err
}

// round measures a migration of all objects, and then one that has nothing to do.
func (s *scaled) round(ctx context.Context) error {
	i := s.rounds
	s.rounds++
	if i > 0 {
		if err := s.cluster.Compact(ctx); err != nil {
			return err
		}
		raw, err := s.stored.Restore(ctx, s.stored.Objects())
		if err != nil {
			return err
		}
		s.raw = append(s.raw, raw)
	}
	for _, way := range []struct {
		name  string
		spans *[]corpus.Span
	}{{"full", &s.full}, {"noop", &s.noop}} {
		if err := s.stored.Servers.AwaitCalm(ctx); err != nil {
			return err
		}
		span, err := s.stored.Migrate(ctx, fmt.Sprint(way.name, "-", i))
		if err != nil {
			return err
		}
		*way.spans = append(*way.spans, span)
	}
	return nil
}

// objects is how many objects each round migrates.
func (s *scaled) objects() int { return s.full[0].Objects() }

// perObject returns the time per object in the median round, in milliseconds, and rawPerObject the same for raw
// transactions.
func (s *scaled) perObject() float64    { return perObject(s.full) }
func (s *scaled) rawPerObject() float64 { return perObject(s.raw) }

func perObject(spans []corpus.Span) float64 {
	return 1e3 * medianSeconds(spans, corpus.Span.Written) / float64(spans[0].Objects())
}

// mib is the extra memory in MiB.
func (s *scaled) mib() float64 { return float64(s.extra) / (1 << 20) }

// addScale adds the measurements at each size, and how much the sizes differ.
func (d *document) addScale(all []*scaled) {
	for i, s := range all {
		n := s.objects()
		full := d.add(fmt.Sprintf("rewrite of %d custom resources that no server keeps in memory", n), s.full, corpus.Span.Written)
		noop := d.add(fmt.Sprintf("the same %d with nothing to do", n), s.noop, corpus.Span.Written)
		d.rows = append(d.rows,
			figures.Row{Figure: fmt.Sprintf("time per object, %d objects", n), Unit: "ms", Value: s.perObject(), Note: fmt.Sprintf("median of %d", len(s.full))}.
				Compare("raw limit", s.rawPerObject()),
			figures.Row{Figure: fmt.Sprintf("extra resident memory, %d objects", n), Unit: "MiB", Value: s.mib()}.Judged(figures.AtMost(200)))
		var bound *figures.Target
		if i == len(all)-1 { // with fewer objects the cost that does not grow with their number dominates
			bound = figures.RatioAtLeast(5)
		}
		d.compare(fmt.Sprintf("noop/full, %d objects", n), "", noop, full, bound)
	}
	if len(all) > 1 {
		d.spread(all)
	}
}

// spread compares the time per object at the size where it is longest with that at the size where it is shortest.
func (d *document) spread(all []*scaled) {
	order := func(a, b *scaled) int { return cmp.Compare(a.perObject(), b.perObject()) }
	low, high := slices.MinFunc(all, order), slices.MaxFunc(all, order)
	row := figures.Row{Figure: "timePerObject highest/lowest", Unit: "ms", Value: high.perObject(), Note: fmt.Sprintf("%d objects", high.objects())}.
		Compare(fmt.Sprintf("with %d objects", low.objects()), low.perObject()).Judged(figures.RatioAtMost(1.15))
	d.rows, d.Ratios[row.Figure] = append(d.rows, row), row.Beside.Ratio
}
