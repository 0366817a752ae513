package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/testbed/load"
)

// key names the samples of one figure of one side, one sample a round.
type key struct{ figure, role string }

type bench struct {
	options
	progress io.Writer
	dir      string
	sides    []*side // ours, the stock one
	samples  map[key][]float64
	created  int // objects so far, for names
}

func (b *bench) close() error {
	var errs []error
	for _, s := range b.sides {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

func (b *bench) add(s *side, figure string, value float64) {
	k := key{figure, s.role}
	b.samples[k] = append(b.samples[k], value)
	fmt.Fprintf(b.progress, "%s %s: %.3g\n", s.role, figure, value)
}

// turns measures both sides in every round; the side that goes first changes from round to round.
func (b *bench) turns(ctx context.Context, what string, measure func(ctx context.Context, s *side, round int) error) error {
	for round := range b.rounds {
		for i := range b.sides {
			s := b.sides[(i+round)%len(b.sides)]
			fmt.Fprintf(b.progress, "%s, round %d of %d, %s\n", what, round+1, b.rounds, s.role)
			if err := measure(ctx, s, round); err != nil {
				return fmt.Errorf("%s of %s: %w", what, s.role, err)
			}
		}
	}
	return nil
}

// anew starts both servers, each with a new etcd, and ends those that there were.
func (b *bench) anew(ctx context.Context) error {
	if err := b.close(); err != nil {
		return err
	}
	b.sides = nil
	for _, role := range []string{ours, theirs} {
		s, err := newSide(ctx, b.dir, role)
		if s != nil {
			b.sides = append(b.sides, s)
		}
		if err != nil {
			return err
		}
		if err := s.begin(ctx); err != nil { // the first start fills etcd
			return err
		}
	}
	return nil
}

func (b *bench) measure(ctx context.Context) error {
	if err := b.anew(ctx); err != nil {
		return err
	}
	if b.chosen("start") {
		if err := b.restart(ctx); err != nil {
			return err
		}
	}
	for _, s := range b.sides {
		if err := s.define(ctx, "widgets"); err != nil {
			return err
		}
		if err := s.established(ctx, "widgets"); err != nil {
			return err
		}
	}
	// For 2 s after it is established a CRD's first requests wait, in kube-apiserver too.
	if err := load.Pause(ctx, b.settle); err != nil {
		return err
	}
	for _, part := range parts {
		if !b.chosen(part.name) {
			continue
		}
		if err := part.measure(b, ctx); err != nil {
			return err
		}
	}
	return nil
}

// parts are measured in this order after the start.
var parts = []struct {
	name    string
	measure func(*bench, context.Context) error
}{
	{"writes", (*bench).writeAll},
	{"first-write", func(b *bench, ctx context.Context) error { return b.turns(ctx, "first-write", b.firstWrite) }},
	{"crds", (*bench).defineAll},
	{"holdings", (*bench).holdings},
	// These parts store as many objects as the server can write, so they come last.
	{"saturation", func(b *bench, ctx context.Context) error { return b.turns(ctx, "saturation", b.saturate) }},
	{"overload", (*bench).overloadAll},
}

func partNames() []string {
	names := []string{"start"}
	for _, part := range parts {
		names = append(names, part.name)
	}
	return names
}

// chosen says whether a part is measured.
func (b *bench) chosen(name string) bool {
	return b.only == "" || slices.Contains(strings.Split(b.only, ","), name)
}

// restart measures starts on an etcd in use, in turns, and then the memory of both servers after a
// time in which they had nothing to do. In that time Go's runtime has collected garbage, which it
// does every two minutes; before that the figure would be about the garbage of a start.
func (b *bench) restart(ctx context.Context) error {
	for round := range b.rounds {
		for i := range b.sides {
			s := b.sides[(i+round)%len(b.sides)]
			fmt.Fprintf(b.progress, "start, round %d of %d, %s\n", round+1, b.rounds, s.role)
			if err := s.stop(ctx); err != nil {
				return err
			}
			took, err := s.start(ctx)
			if err != nil {
				return err
			}
			b.add(s, ready, took.Seconds())
			// The work that a start leaves behind is done before the other one is timed.
			if err := load.Pause(ctx, b.settle); err != nil {
				return err
			}
		}
		if err := load.Pause(ctx, b.idle); err != nil {
			return err
		}
		if err := b.memories(idle); err != nil {
			return err
		}
	}
	return nil
}

// memories reads the memory of both servers.
func (b *bench) memories(figure string) error {
	for _, s := range b.sides {
		memory, err := s.memory()
		if err != nil {
			return err
		}
		b.add(s, figure, memory)
	}
	return nil
}

// writeAll times creates and updates of every kind. The sides take turns with each object, since the
// machine's speed differs from minute to minute. Both servers are restarted for every round, since
// the speed of one process differs from that of the next by a tenth and more.
func (b *bench) writeAll(ctx context.Context) error {
	for round := range b.rounds {
		for _, s := range b.sides {
			if err := s.stop(ctx); err != nil {
				return err
			}
			if err := s.begin(ctx); err != nil {
				return err
			}
		}
		if err := load.Pause(ctx, b.settle/6); err != nil {
			return err
		}
		for _, k := range kinds {
			fmt.Fprintf(b.progress, "writes of %s, round %d of %d\n", k.name, round+1, b.rounds)
			if err := b.writeKind(ctx, k); err != nil {
				return fmt.Errorf("writes of %s: %w", k.name, err)
			}
		}
	}
	return nil
}

// writeKind times a round's creates and updates of one kind.
func (b *bench) writeKind(ctx context.Context, k kind) error {
	times := map[key][]float64{}
	for i := range b.writes {
		b.created++
		name := fmt.Sprintf("o%d", b.created)
		for turn := range b.sides {
			s := b.sides[(turn+i)%len(b.sides)]
			created, err := timed(func() error { _, err := s.do(ctx, "POST", k.path, k.body(name, "", 1)); return err })
			if err != nil {
				return err
			}
			// Without a resourceVersion an update of a custom resource is refused.
			version, err := s.version(ctx, k.path+"/"+name)
			if err != nil {
				return err
			}
			updated, err := timed(func() error { _, err := s.do(ctx, "PUT", k.path+"/"+name, k.body(name, version, 2)); return err })
			if err != nil {
				return err
			}
			for verb, took := range map[string]float64{create: created, update: updated} {
				figure := key{latency(verb, k.name), s.role}
				times[figure] = append(times[figure], took)
			}
		}
	}
	for _, verb := range []string{create, update} {
		for _, s := range b.sides {
			figure := latency(verb, k.name)
			b.pool(s, figure, times[key{figure, s.role}])
		}
	}
	return nil
}

// pool adds the latencies of a round to those of the other rounds, with which they are judged together.
func (b *bench) pool(s *side, figure string, times []float64) {
	k := key{figure, s.role}
	b.samples[k] = append(b.samples[k], times...)
	fmt.Fprintf(b.progress, "%s %s: p50 %.3g, p99 %.3g\n", s.role, figure, figures.Quantile(times, 0.5), figures.Quantile(times, 0.99))
}

// firstWrite measures the time from the request for a CRD until its first object is stored, by a
// client that repeats a failed request at once.
func (b *bench) firstWrite(ctx context.Context, s *side, round int) error {
	plural := fmt.Sprintf("firsts%d", round)
	begin := time.Now()
	if err := s.define(ctx, plural); err != nil {
		return err
	}
	k := custom(plural)
	if err := await(ctx, s.server.Run(), func(ctx context.Context) error {
		_, err := s.do(ctx, "POST", k.path, k.body("first", "", 1))
		return err
	}); err != nil {
		return err
	}
	b.add(s, first, time.Since(begin).Seconds())
	return nil
}

// timed returns how many milliseconds a request takes.
func timed(send func() error) (float64, error) {
	begin := time.Now()
	err := send()
	return float64(time.Since(begin)) / float64(time.Millisecond), err
}

const clients = 32

// saturate lets clients create ConfigMaps without a pause.
func (b *bench) saturate(ctx context.Context, s *side, round int) error {
	until, cancel := context.WithTimeout(ctx, b.flood)
	defer cancel()
	begin := time.Now()
	all := load.Closed(until, clients, 0, func(client, n int) error {
		name := fmt.Sprintf("flood-%d-%d-%d", round, client, n)
		_, err := s.do(ctx, "POST", kinds[0].path, kinds[0].body(name, "", 1))
		return err
	})
	b.add(s, saturated, float64(len(all))/time.Since(begin).Seconds())
	return all.Err()
}

// defineAll creates the CRDs, and waits until the migrations that concord began for them have ended.
func (b *bench) defineAll(ctx context.Context) error {
	if err := b.turns(ctx, "crds", b.define); err != nil {
		return err
	}
	for _, s := range b.sides {
		if s.role == ours {
			return s.migrated(ctx)
		}
	}
	return nil
}

// define creates a round's share of the CRDs, and waits until all are established.
func (b *bench) define(ctx context.Context, s *side, round int) error {
	first, last := b.crds*round/b.rounds, b.crds*(round+1)/b.rounds
	begin := time.Now()
	for n := first; n < last; n++ {
		if err := s.define(ctx, plural(n)); err != nil {
			return err
		}
	}
	for n := first; n < last; n++ {
		if err := s.established(ctx, plural(n)); err != nil {
			return err
		}
	}
	b.add(s, defined, time.Since(begin).Seconds())
	return nil
}

func plural(n int) string { return fmt.Sprintf("kind%ds", n) }

// used is of how many CRDs the objects are requested before open files are counted.
const used = 50

// holdings measures the memory, open files and connections of both servers when all CRDs exist and
// some are in use, after a time in which the servers had nothing to do, like restart.
func (b *bench) holdings(ctx context.Context) error {
	for _, s := range b.sides {
		for n := range min(used, b.crds) {
			// A new storage answers 429 until its watch cache is filled.
			if err := s.served(ctx, "/apis/"+group+"/v1/"+plural(n)); err != nil {
				return fmt.Errorf("holdings of %s: %w", s.role, err)
			}
		}
		s.admin.Close()
	}
	for round := range b.rounds {
		fmt.Fprintf(b.progress, "holdings, round %d of %d\n", round+1, b.rounds)
		if err := load.Pause(ctx, b.idle); err != nil {
			return err
		}
		if err := b.memories(full); err != nil {
			return err
		}
		for _, s := range b.sides {
			open, connections, err := s.descriptors()
			if err != nil {
				return err
			}
			b.add(s, files, float64(open))
			b.add(s, sockets, float64(connections))
		}
	}
	return nil
}
