package main

import (
	"context"
	"fmt"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/bench/figures"
)

// measureRewrite brings objects to another encoding in all ways, in turns, while one
// server, and then three, run and watch.
func measureRewrite(ctx context.Context, b *bench) error {
	for _, servers := range []int{1, 3} {
		s, err := b.newSide(ctx, fmt.Sprintf("%s-%d", b.name, servers), true, servers)
		if err != nil {
			return err
		}
		if err := corpus.CreateCRD(ctx, s.clients, corpus.Rewritten, "v2"); err != nil {
			return err
		}
		for _, resource := range []corpus.Corpus{corpus.CustomResources, corpus.Policies} {
			if err := b.rewriteAll(ctx, s, resource); err != nil {
				return fmt.Errorf("%s: %w", resource.Name, err)
			}
		}
		if err := s.cluster.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) rewriteAll(ctx context.Context, s *side, resource corpus.Corpus) error {
	stored, err := resource.Fill(ctx, s.servers(), b.size.objects)
	if err != nil {
		return err
	}
	// The first migration also makes the server build what it needs; it is not counted.
	if _, err := stored.Migrate(ctx, "warm"); err != nil {
		return err
	}
	var w corpus.Ways
	for i := range b.size.rewrites {
		if err := w.Round(ctx, stored, i, b.size.sampled); err != nil {
			return err
		}
	}
	b.emitWays(stored, w)
	return nil
}

func (b *bench) emitWays(stored *corpus.Stored, w corpus.Ways) {
	const target = 20
	running := "one server"
	if n := len(stored.Servers.Clients); n > 1 {
		running = fmt.Sprintf("%d servers", n)
	}
	title := fmt.Sprintf("rewrite of %d %s, %s", stored.Objects(), stored.Corpus.Name, running)
	row := func(figure string, spans, beside []corpus.Span, what string, end func(corpus.Span) time.Time) figures.Row {
		value, samples := corpus.Rate(spans, end)
		other, others := corpus.Rate(beside, end)
		return figures.Row{Figure: figure, Unit: "objects/s", Value: value, Note: fmt.Sprintf("%d bytes each", stored.ValueBytes())}.
			Compare(what, other).Keep(samples, others)
	}
	b.emit(row(title, w.Rewrite, w.Update, "by PUT, one after the other", corpus.Span.Written).Judged(figures.RatioAtLeast(target)))
	b.emit(row(title, w.Rewrite, w.Apply, "by an empty apply, one after the other", corpus.Span.Written).Judged(figures.RatioAtLeast(target)))
	b.emit(row(title, w.Rewrite, w.Raw, "by raw etcd transactions", corpus.Span.Written))
	b.emit(row(title+", until every watch cache has them", w.Rewrite, w.Raw, "by raw etcd transactions", corpus.Span.Watched))
}
