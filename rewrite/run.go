package rewrite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/concord-dev/concord/progress"
	"github.com/concord-dev/concord/workers"
)

// run is one call of Engine.Run.
type run struct {
	patience
	kv       KV
	target   Target
	opts     Options
	progress *progress.Teller[Report]
	budget   *budget
	pacer    *pacer

	mu       sync.Mutex // guards what follows
	result   Result
	frontier *progress.Frontier[string, Progress, Failure]
	fence    Fence
	// ownFence is set when the StorageVersion itself is among the values to rewrite.
	// Writing it moves the fence, so it is written when everything else is done.
	ownFence *chunk

	refencing sync.Mutex // held while Refence is asked, so that it is asked once per change
}

func newRun(e *Engine, target Target, opts Options, told func(Report)) *run {
	r := &run{
		patience: patience{opts.Clock, opts.Patience},
		kv:       e.kv,
		target:   target,
		opts:     opts,
		budget:   newBudget(opts.MemoryBytes),
		pacer:    newPacer(opts.Yield, opts.Workers, opts.Clock, &e.crowd),
		result:   Result{Progress: opts.Resume.Progress},
		frontier: progress.NewFrontier[string, Progress, Failure](opts.Resume.After, opts.Resume.Progress, Progress.plus, opts.MaxNamed),
		fence:    Fence{Key: target.FenceKey, Revision: target.FenceRevision},
	}
	r.progress = progress.NewTeller(r.report, told)
	return r
}

// all rewrites every page, then the StorageVersion if it is one of the values, and
// proves at the end that the fence stood throughout.
func (r *run) all(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	var governing sync.WaitGroup
	if r.opts.Yield.MaxAddedLatency > 0 {
		governing.Go(func() {
			workers.Loop(ctx, "rewrite-pace", func(ctx context.Context) { r.pacer.govern(ctx, r.probe) })
		})
	}
	defer governing.Wait()
	defer stop()
	if err := r.pages(ctx); err != nil {
		return err
	}
	if c := r.ownFence; c != nil {
		if err := r.settle(ctx, c); err != nil {
			return err
		}
	}
	_, err := r.fenced(ctx, nil)
	return err
}

// probe reads one small value from the store's newest state, as its clients do.
func (r *run) probe(ctx context.Context) (revision int64, err error) {
	err = within(ctx, func(ctx context.Context) error {
		page, err := r.kv.Range(ctx, r.target.FenceKey, r.target.FenceKey+"\x00", 1, 0)
		revision = page.Revision
		return err
	})
	return revision, err
}

// pages reads all pages, a few ahead, and has each piece of them rewritten, Workers at a
// time.
func (r *run) pages(ctx context.Context) error {
	if r.opts.Workers == 1 {
		return r.read(ctx, r.rewrite)
	}
	group, ctx := errgroup.WithContext(ctx)
	// About two pages wait, so that reading, CPU and store are busy together.
	chunks := make(chan *chunk, max(r.opts.Workers, 2*r.opts.PageKeys/r.opts.TxnKeys))
	begin := func(f func() error) {
		group.Go(func() error { return workers.Do(ctx, "rewrite", f) })
	}
	begin(func() error {
		defer close(chunks)
		return r.read(ctx, func(ctx context.Context, c *chunk) error {
			select {
			case chunks <- c:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	})
	for range r.opts.Workers {
		begin(func() error {
			for c := range chunks {
				if err := r.rewrite(ctx, c); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// read submits all pages in pieces, in key order.
func (r *run) read(ctx context.Context, submit func(context.Context, *chunk) error) error {
	pager := newPager(r.kv, r.target.Prefix, r.opts.PageKeys, r.opts.PageBytes)
	defer pager.close()
	pager.goOnBehind(r.opts.Resume.After)
	for !pager.done {
		if err := r.budget.take(ctx, MaxReply); err != nil {
			return err
		}
		pager.atMost(r.pacer.ahead(r.opts.PageKeys))
		var page Page
		err := r.patiently(ctx, func(ctx context.Context) (err error) {
			page, err = pager.pageAcrossCompaction(ctx)
			return err
		})
		if err != nil {
			return err
		}
		r.budget.grow(2*int64(size(page.Entries)) - MaxReply)
		r.note(func(result *Result) {
			result.Revision = page.Revision
			if result.Expected == 0 {
				result.Expected = page.Count + result.Total
			}
		})
		chunks := r.split(page.Entries)
		settled := page.inParts(len(chunks))
		for _, c := range chunks {
			c.settled = settled
			r.mu.Lock()
			c.piece = r.frontier.Begin(c.last)
			r.mu.Unlock()
			if c == r.ownFence {
				continue
			}
			if err := submit(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// split divides a page into what is written together. The StorageVersion that is the
// fence becomes a piece of its own, and does not count as held from then on.
func (r *run) split(entries []Entry) []*chunk {
	var chunks []*chunk
	start, bytes := 0, 0
	flush := func(end int) {
		if end > start {
			piece := entries[start:end:end]
			chunks = append(chunks, &chunk{entries: piece, last: piece[len(piece)-1].Key, held: 2 * int64(bytes)})
		}
		start, bytes = end, 0
	}
	for i, e := range entries {
		n := len(e.Value)
		if i-start == r.opts.TxnKeys || bytes+n > r.opts.TxnBytes {
			flush(i)
		}
		bytes += n
		if e.Key == r.target.FenceKey {
			bytes -= n
			flush(i)
			chunks = append(chunks, &chunk{entries: entries[i : i+1 : i+1], last: e.Key})
			r.ownFence = chunks[len(chunks)-1]
			r.budget.grow(-2 * int64(n))
			start = i + 1
		}
	}
	flush(len(entries))
	return chunks
}

func (r *run) note(change func(*Result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.result)
}

// count adds to what became of a chunk, and so of all.
func (r *run) count(c *chunk, what Progress) {
	r.note(func(result *Result) {
		result.Progress = result.plus(what)
		r.frontier.Count(c.piece, what)
	})
}

// rewrite settles one piece and reports progress.
func (r *run) rewrite(ctx context.Context, c *chunk) error {
	if err := r.settle(ctx, c); err != nil {
		return err
	}
	r.progress.Tell()
	return nil
}

// report is how far the run is.
func (r *run) report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Report{Progress: r.result.Progress, Cursor: r.cursor()}
}

// cursor is how far everything is done.
func (r *run) cursor() (c Cursor) {
	c.After, c.Progress, c.Failed = r.frontier.Now()
	return c
}

// settle judges and writes the entries of a piece until none of them is open. Keys that
// changed after they were read are judged anew as they are then.
func (r *run) settle(ctx context.Context, c *chunk) error {
	defer func() { r.budget.grow(-c.held) }()
	r.count(c, Progress{Total: int64(len(c.entries))})
	for entries := c.entries; len(entries) > 0; {
		puts, err := r.judgeAll(ctx, c, entries)
		if err != nil {
			return err
		}
		entries = nil
		for len(puts) > 0 {
			keys, err := r.pacer.admit(ctx, min(len(puts), r.opts.TxnKeys))
			if err != nil {
				return err
			}
			n := batch(puts, keys, r.opts.TxnBytes)
			changed, err := r.write(ctx, c, puts[:n])
			if err != nil {
				return err
			}
			puts, entries = puts[n:], append(entries, changed...)
			if len(puts) > 0 {
				r.progress.Tell() // where the pace is slow, the rest of the piece takes its time
			}
		}
	}
	settled := c.settled
	c.settled = nil  // it has the page, and the piece may wait for others before it
	clear(c.entries) // else the values live as long as any other piece of their page
	c.entries = nil
	r.note(func(*Result) { r.frontier.End(c.piece) })
	settled()
	return nil
}

// judgeAll returns the puts for the entries that need one and counts the others.
func (r *run) judgeAll(ctx context.Context, c *chunk, entries []Entry) ([]Put, error) {
	puts := make([]Put, 0, len(entries))
	var failures []Failure
	grown := int64(-size(entries))
	var judgements []judgement
	err := r.waiting(ctx, func(ctx context.Context) (err error) {
		judgements, err = r.target.judge(ctx, entries)
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err() // whatever failed may have failed for this
	}
	if err != nil {
		return nil, err
	}
	for _, j := range judgements {
		switch {
		case j.failure != nil:
			failures = append(failures, *j.failure)
		case j.put != nil:
			puts = append(puts, *j.put)
			grown += int64(len(j.put.Value))
		}
	}
	if grown > 0 {
		c.held += grown
		r.budget.grow(grown)
	}
	r.count(c, Progress{AlreadyCurrent: int64(len(entries) - len(puts) - len(failures))})
	r.fail(c, failures...)
	return puts, nil
}

func (r *run) fail(c *chunk, failures ...Failure) {
	if len(failures) == 0 {
		return
	}
	what := Progress{Failures: int64(len(failures))}
	for _, f := range failures {
		what.ByReason.add(f.Reason)
		if r.opts.Failed != nil {
			r.opts.Failed(f)
		}
	}
	r.count(c, what)
	r.note(func(result *Result) {
		room := r.opts.MaxNamed - len(result.Failed)
		result.Failed = append(result.Failed, failures[:max(0, min(room, len(failures)))]...)
		r.frontier.Name(c.piece, failures...)
	})
}

// write commits a batch and returns the entries that had changed, as they are now. What
// cannot be written in one transaction is halved until the culprit is alone.
func (r *run) write(ctx context.Context, c *chunk, batch []Put) ([]Entry, error) {
	committed, err := r.fenced(ctx, batch)
	switch {
	case err == nil:
		bytes := 0
		for _, p := range batch {
			bytes += len(p.Value)
		}
		r.pacer.wrote(len(batch), bytes, committed.Revision)
		return r.tally(c, batch, committed), nil
	case !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrLeaseLost):
		return nil, err
	case len(batch) > 1:
		half := len(batch) / 2
		first, err := r.write(ctx, c, batch[:half])
		if err != nil {
			return nil, err
		}
		second, err := r.write(ctx, c, batch[half:])
		return append(first, second...), err
	case errors.Is(err, ErrTooLarge):
		r.fail(c, *newFailure(batch[0].Key, TooLarge, err))
		return nil, nil
	}
	return r.leaseLost(ctx, c, batch[0], err)
}

// tally counts the outcomes of a transaction and returns the entries to judge anew.
func (r *run) tally(c *chunk, batch []Put, committed Committed) []Entry {
	var changed []Entry
	var what Progress
	for i, o := range committed.Outcomes {
		switch {
		case o.Written:
			what.Rewritten++
			what.Bytes += int64(len(batch[i].Value))
			if batch[i].Key == r.target.FenceKey {
				r.note(func(*Result) { r.fence.Revision = committed.Revision })
			}
		case o.Current != nil:
			what.Changed++
			changed = append(changed, *o.Current)
		default:
			what.Gone++
		}
	}
	r.count(c, what)
	return changed
}

// leaseLost finds out what became of an entry whose lease had gone when it was written.
// With its lease an object goes too, unless a client has moved it to another one.
func (r *run) leaseLost(ctx context.Context, c *chunk, put Put, cause error) ([]Entry, error) {
	var page Page
	err := r.patiently(ctx, func(ctx context.Context) (err error) {
		page, err = r.kv.Range(ctx, put.Key, put.Key+"\x00", 1, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	switch {
	case len(page.Entries) == 0:
		r.count(c, Progress{Gone: 1})
		return nil, nil
	case page.Entries[0].ModRevision != put.ModRevision:
		r.count(c, Progress{Changed: 1})
		return page.Entries, nil
	}
	r.fail(c, *newFailure(put.Key, LeaseLost, cause))
	return nil, nil
}

// fenced commits puts under the fence. If the fence has moved and the target's Refence
// still finds the rewrite allowed, they are committed under the new one.
func (r *run) fenced(ctx context.Context, puts []Put) (Committed, error) {
	for {
		r.mu.Lock()
		fence := r.fence
		r.mu.Unlock()
		committed, err := r.commit(ctx, fence, puts)
		if !errors.Is(err, ErrFenced) || r.target.Refence == nil {
			return committed, err
		}
		if err := r.refence(ctx, fence); err != nil {
			return Committed{}, err
		}
	}
}

// refence replaces a fence that was found moved, unless another worker has done so.
func (r *run) refence(ctx context.Context, moved Fence) error {
	r.refencing.Lock()
	defer r.refencing.Unlock()
	r.mu.Lock()
	replaced := r.fence != moved
	r.mu.Unlock()
	if replaced {
		return nil
	}
	var revision int64
	err := r.waiting(ctx, func(ctx context.Context) (err error) {
		if revision, err = r.target.Refence(ctx); err != nil && !errors.Is(err, ErrFenced) {
			err = fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("ask whether the rewrite is still allowed: %w", err)
	}
	if revision == moved.Revision {
		return fmt.Errorf("%q is said to be still at revision %d: %w", moved.Key, revision, ErrFenced)
	}
	r.mu.Lock()
	r.fence.Revision = revision
	r.mu.Unlock()
	return nil
}
