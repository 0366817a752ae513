package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/concord-dev/concord/bench/figures"
	"github.com/concord-dev/concord/bench/stage"
)

// ways are the ways of migrating one resource, with what each took.
type ways struct {
	rewrite, raw, update, apply []span
}

// measureRewrite brings objects to another encoding in all ways, in turns, while one
// server, and then three, run and watch.
func measureRewrite(ctx context.Context, b *bench) error {
	for _, servers := range []int{1, 3} {
		s, err := b.newSide(ctx, fmt.Sprintf("%s-%d", b.name, servers), true, servers)
		if err != nil {
			return err
		}
		if err := createCRD(ctx, s.clients, rewritten, "v2"); err != nil {
			return err
		}
		for _, resource := range []corpus{customCorpus, policyCorpus} {
			if err := b.rewriteAll(ctx, s, resource); err != nil {
				return fmt.Errorf("%s: %w", resource.name, err)
			}
		}
		if err := s.cluster.Close(); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) rewriteAll(ctx context.Context, s *side, resource corpus) error {
	stored, err := resource.fill(ctx, s, b.size.objects)
	if err != nil {
		return err
	}
	// The first migration also makes the server build what it needs; it is not counted.
	if _, err := stored.migrate(ctx, "warm"); err != nil {
		return err
	}
	var w ways
	for i := range b.size.rewrites {
		if err := w.round(ctx, stored, i, b.size.sampled); err != nil {
			return err
		}
	}
	b.emitWays(stored, w)
	return nil
}

// round measures every way once. The raw writes of the old bytes undo the rewrites.
func (w *ways) round(ctx context.Context, stored *stored, i, sampled int) error {
	raw, err := stored.restore(ctx, len(stored.puts))
	if err != nil {
		return err
	}
	rewrite, err := stored.migrate(ctx, fmt.Sprint("round-", i))
	if err != nil {
		return err
	}
	w.raw, w.rewrite = append(w.raw, raw), append(w.rewrite, rewrite)
	single := []struct {
		spans *[]span
		write apiWrite
	}{{&w.update, getAndPut}, {&w.apply, applyNothing}}
	if i%2 == 1 {
		slices.Reverse(single)
	}
	for _, way := range single {
		if _, err := stored.restore(ctx, sampled); err != nil {
			return err
		}
		done, err := stored.oneByOne(ctx, sampled, way.write)
		if err != nil {
			return err
		}
		*way.spans = append(*way.spans, done)
	}
	return nil
}

func (b *bench) emitWays(stored *stored, w ways) {
	const target = 20
	running := "one server"
	if n := len(stored.side.clients); n > 1 {
		running = fmt.Sprintf("%d servers", n)
	}
	title := fmt.Sprintf("rewrite of %d %s, %s", len(stored.puts), stored.corpus.name, running)
	row := func(figure string, spans, beside []span, what string, end func(span) time.Time) figures.Row {
		value, samples := rate(spans, end)
		other, others := rate(beside, end)
		return figures.Row{Figure: figure, Unit: "objects/s", Value: value, Note: fmt.Sprintf("%d bytes each", stored.valueBytes())}.
			Compare(what, other).Keep(samples, others)
	}
	b.emit(row(title, w.rewrite, w.update, "by GET and PUT, one after the other", span.written).Judged(figures.RatioAtLeast(target)))
	b.emit(row(title, w.rewrite, w.apply, "by an empty apply, one after the other", span.written).Judged(figures.RatioAtLeast(target)))
	b.emit(row(title, w.rewrite, w.raw, "by raw etcd transactions", span.written))
	b.emit(row(title+", until every watch cache has them", w.rewrite, w.raw, "by raw etcd transactions", span.watched))
}

// apiWrite migrates one object by one write. listed is what a list has told of it.
type apiWrite func(ctx context.Context, c *stage.Client, path string, listed []byte) error

// getAndPut is how kube-storage-version-migrator migrates an object.
func getAndPut(ctx context.Context, c *stage.Client, path string, _ []byte) error {
	body, err := c.Do(ctx, http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	_, err = c.Do(ctx, http.MethodPut, path, jsonType, body)
	return err
}

// applyNothing is how kube-controller-manager's migrator does it, with what it knows of
// an object from a list.
func applyNothing(ctx context.Context, c *stage.Client, path string, listed []byte) error {
	_, err := c.Do(ctx, http.MethodPatch, path+"?fieldManager=storage-version-migrator-controller", "application/apply-patch+yaml", listed)
	return err
}

// oneByOne migrates the first n objects by API writes through one server.
func (s *stored) oneByOne(ctx context.Context, n int, write apiWrite) (span, error) {
	listed, err := s.list(ctx, n)
	if err != nil {
		return span{}, err
	}
	client := s.side.clients[0]
	began := time.Now()
	for i, metadata := range listed {
		path := s.corpus.path + "/" + s.corpus.object(i)
		if err := write(ctx, client, path, metadata); err != nil {
			return span{}, fmt.Errorf("%s: %w", path, err)
		}
	}
	end := time.Now()
	if err := s.check(ctx, n); err != nil {
		return span{}, fmt.Errorf("after %d API writes: %w", n, err)
	}
	return span{objects: n, began: began, end: end, seen: end}, nil
}

// list returns what an empty apply needs of the first n objects, in order.
func (s *stored) list(ctx context.Context, n int) ([][]byte, error) {
	listed := make([][]byte, n)
	for i := range n {
		body, err := s.side.clients[0].Do(ctx, http.MethodGet, s.corpus.path+"/"+s.corpus.object(i), "", nil)
		if err != nil {
			return nil, err
		}
		id, err := identityOf(body)
		if err != nil {
			return nil, err
		}
		listed[i] = marshal(fields{
			"apiVersion": string(s.corpus.current), "kind": s.corpus.kind,
			"metadata": fields{"name": id.Metadata.Name, "uid": id.Metadata.UID, "resourceVersion": id.Metadata.ResourceVersion},
		})
	}
	return listed, nil
}

// span is how long it took to write objects: until the last one is written, and until
// every server's watch cache has seen it.
type span struct {
	objects          int
	began, end, seen time.Time
}

func (s span) written() time.Time { return s.end }
func (s span) watched() time.Time { return s.seen }

// rate returns the objects per second over all spans, and of each.
func rate(spans []span, end func(span) time.Time) (overall float64, each []float64) {
	var objects, seconds float64
	for _, s := range spans {
		took := end(s).Sub(s.began).Seconds()
		objects, seconds = objects+float64(s.objects), seconds+took
		each = append(each, float64(s.objects)/took)
	}
	return objects / seconds, each
}

// awaitSeen waits until every server's watch cache has the object as of the revision.
func (s *stored) awaitSeen(ctx context.Context, object string, revision int64) error {
	path := fmt.Sprintf("%s/%s?resourceVersion=%d", s.corpus.path, object, revision)
	for _, client := range s.side.clients {
		// The server waits itself, and answers 504 after some seconds.
		err := eventually(ctx, "a watch cache is up to date", func(ctx context.Context) error {
			_, err := client.Do(ctx, http.MethodGet, path, "", nil)
			var status *stage.StatusError
			if errors.As(err, &status) && status.Code != http.StatusGatewayTimeout {
				return fmt.Errorf("%s: %w", path, err)
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}
