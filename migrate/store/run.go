package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/concord-dev/concord/migrate/progress"
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
	threads  Threads // of transactions

	mu       sync.Mutex // guards the fields below
	result   Result
	frontier *progress.Frontier[string, Progress, Failure]
	fence    Fence
	// moved is when the run last got on, and hindered why it waits since. Values that fail do not count: they may fail
	// for that very reason.
	moved    time.Time
	hindered error
	// ownFence is set when the StorageVersion itself is among the values to rewrite.
	// Writing it moves the fence, so it is written when everything else is done.
	ownFence *chunk

	refencing sync.Locker // held while Refence is asked, so that it is asked once per change
}

func newRun(e *Engine, target Target, opts Options, told func(Report)) *run {
	r := &run{
		kv:       e.kv,
		target:   target,
		opts:     opts,
		budget:   newBudget(opts.MemoryBytes),
		threads:  opts.Threads,
		result:   Result{Progress: opts.Resume.Progress},
		frontier: progress.NewFrontier[string, Progress, Failure](opts.Resume.After, opts.Resume.Progress, Progress.plus, opts.MaxNamed),
		fence:    Fence{Key: target.FenceKey, Revision: target.FenceRevision},
		moved:    opts.Clock.Now(),
	}
	r.patience = patience{clock: opts.Clock, bound: opts.Patience, told: r.hinder}
	if r.threads == nil {
		r.threads = newGoroutines(opts.UnderWay)
	}
	r.refencing = r.threads.NewLock()
	r.progress = progress.NewTeller(r.report, told)
	return r
}

// all rewrites every page, then the StorageVersion if it is one of the values, and
// proves at the end that the fence stood throughout.
func (r *run) all(ctx context.Context) error {
	if own, ok := r.threads.(goroutines); ok {
		defer own.end()
	}
	if err := r.pages(ctx); err != nil {
		return err
	}
	if c := r.ownFence; c != nil {
		if err := r.settle(ctx, c); err != nil {
			return err
		}
	}
	return r.fenced(ctx, func(fence Fence) error {
		return r.patiently(ctx, func(ctx context.Context) error { return r.kv.Prove(ctx, fence) })
	})
}

// pages reads all pages, a few ahead, and has each piece of them rewritten, several
// at a time.
func (r *run) pages(ctx context.Context) error {
	if r.opts.UnderWay == 1 || r.opts.Threads != nil {
		return r.read(ctx, r.rewrite)
	}
	group, ctx := errgroup.WithContext(ctx)
	// About two pages wait, so that reading, CPU and store are busy together.
	chunks := make(chan *chunk, max(r.opts.pieces(), 2*r.opts.PageKeys/r.opts.PieceKeys))
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
	for range r.opts.pieces() {
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
		pager.atMost(r.ahead())
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
			if result.Expected == 0 {
				result.Expected = page.Count + result.Total
			}
		})
		for _, c := range r.split(page.Entries) {
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

// aheadFor is for how much time a page is read where the pace is bounded, and minAhead how many
// keys it has at the least: a long read lengthens requests, too, and the keys under way have to
// be looked at again after a crash.
const (
	aheadFor = 100 * time.Millisecond
	minAhead = 8
)

// ahead is how many keys are read at a time.
func (r *run) ahead() int {
	rate := r.opts.Pacer.Rate()
	if math.IsInf(rate, 1) {
		return r.opts.PageKeys
	}
	return min(r.opts.PageKeys, max(minAhead, int(rate*aheadFor.Seconds())))
}

// split divides a page into pieces that are judged together. The StorageVersion that is the
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
		if i-start == r.opts.PieceKeys || bytes+n > r.opts.PieceBytes {
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

// hinder tells of an error after which something is tried again; nil that there was an answer.
func (r *run) hinder(err error) {
	r.mu.Lock()
	r.hindered = err
	if err == nil {
		r.moved = r.opts.Clock.Now()
	}
	r.mu.Unlock()
	if err != nil {
		r.progress.Tell()
	}
}

// count adds to the counts of a chunk, and so to those of the run.
func (r *run) count(c *chunk, what Progress) {
	r.note(func(result *Result) {
		result.Progress = result.plus(what)
		r.frontier.Count(c.piece, what)
		if what.Rewritten+what.AlreadyCurrent+what.Gone > 0 {
			r.moved, r.hindered = r.opts.Clock.Now(), nil
		}
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
	report := Report{Progress: r.result.Progress, Cursor: r.cursor()}
	if r.hindered != nil && r.opts.Clock.Since(r.moved) >= hinderedAfter { // others pass in a moment
		report.Hindered, report.Overloaded = detail(r.hindered), errors.Is(r.hindered, ErrUnavailable)
	}
	return report
}

// cursor is how far everything is done.
func (r *run) cursor() (c Cursor) {
	c.After, c.Progress, c.Failed = r.frontier.Now()
	return c
}

// settle judges and writes the entries of a piece until none of them is open.
func (r *run) settle(ctx context.Context, c *chunk) error {
	defer func() { r.budget.grow(-c.held) }()
	r.count(c, Progress{Total: int64(len(c.entries))})
	puts, err := r.judgeAll(ctx, c, c.entries)
	if err != nil {
		return err
	}
	changed, err := r.writeAll(ctx, c, puts)
	if err != nil {
		return err
	}
	clear(c.entries) // else the values live as long as any other piece of their page
	c.entries = nil
	for _, p := range changed {
		if err := r.again(ctx, c, p); err != nil {
			return err
		}
	}
	r.note(func(*Result) { r.frontier.End(c.piece) })
	return nil
}

// writeAll writes values, several at a time, each in a transaction of its own. It returns
// the keys that were not written, without their values.
func (r *run) writeAll(ctx context.Context, c *chunk, puts []Put) (changed []Put, err error) {
	written := make([]bool, len(puts))
	err = r.threads.Each(ctx, len(puts), func(ctx context.Context, i int) (err error) {
		written[i], err = r.admitted(ctx, c, puts[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	for i, p := range puts {
		if !written[i] {
			changed = append(changed, Put{Key: p.Key, ModRevision: p.ModRevision})
		}
	}
	return changed, nil
}

// admitted writes a value when the pace allows it.
func (r *run) admitted(ctx context.Context, c *chunk, p Put) (written bool, err error) {
	waited, err := r.opts.Pacer.Admit(ctx, len(p.Value))
	if err != nil {
		return false, err
	}
	written, err = r.write(ctx, c, p)
	if waited && err == nil {
		r.progress.Tell() // the rest of the piece takes its time
	}
	return written, err
}

// again judges a value that was not written in its current state, until it is written or needs no write. Other pieces
// continue meanwhile, but no other value of this piece is in memory, because clients may have made all of them large.
func (r *run) again(ctx context.Context, c *chunk, p Put) error {
	for written := false; !written; {
		var page Page
		err := r.patiently(ctx, func(ctx context.Context) (err error) {
			page, err = r.kv.Range(ctx, p.Key, p.Key+"\x00", 1, 0)
			return err
		})
		switch {
		case err != nil:
			return err
		case len(page.Entries) == 0:
			r.count(c, Progress{Gone: 1})
			return nil
		case page.Entries[0].ModRevision == p.ModRevision: // so its lease has gone, and it has not
			r.fail(c, *newFailure(p.Key, LeaseLost, ErrLeaseLost))
			return nil
		}
		r.count(c, Progress{Changed: 1})
		held := 2 * int64(len(page.Entries[0].Value))
		r.budget.grow(held)
		puts, err := r.judgeAll(ctx, c, page.Entries)
		if err == nil && len(puts) == 1 {
			p = puts[0]
			written, err = r.admitted(ctx, c, p)
		}
		r.budget.grow(-held)
		if err != nil || len(puts) == 0 {
			return err
		}
	}
	return nil
}

// judgeAll returns the puts for the entries that need one and counts the others.
func (r *run) judgeAll(ctx context.Context, c *chunk, entries []Entry) ([]Put, error) {
	puts := make([]Put, 0, len(entries))
	var failures []Failure
	grown := int64(-size(entries))
	var judgements []judgement
	err := r.waiting(ctx, func(ctx context.Context) (err error) {
		judgements, err = r.target.judge(ctx, entries, r.hinder)
		return err
	})
	if ctx.Err() != nil {
		return nil, ctx.Err() // the judgement may have failed for this
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

// write writes a value, and counts it if it was written. It was not if its key has changed or
// its lease has gone.
func (r *run) write(ctx context.Context, c *chunk, p Put) (written bool, err error) {
	var revision int64
	err = r.fenced(ctx, func(fence Fence) error {
		// If the store did not say whether it has written, the next try finds out by the key: it has changed then, and
		// is judged again.
		return r.patiently(ctx, func(ctx context.Context) (err error) {
			written, revision, err = r.kv.Put(ctx, fence, p)
			return err
		})
	})
	switch {
	case errors.Is(err, ErrTooLarge):
		r.fail(c, *newFailure(p.Key, TooLarge, err))
		return true, nil
	case errors.Is(err, ErrLeaseLost):
		return false, nil
	case err != nil || !written:
		return false, err
	}
	if p.Key == r.target.FenceKey {
		r.note(func(*Result) { r.fence.Revision = revision })
	}
	r.count(c, Progress{Rewritten: 1, Bytes: int64(len(p.Value))})
	return true, nil
}

// fenced makes a call under the fence. If the fence has moved and the target's Refence still
// finds the rewrite allowed, it is made under the new one.
func (r *run) fenced(ctx context.Context, call func(Fence) error) error {
	for {
		r.mu.Lock()
		fence := r.fence
		r.mu.Unlock()
		err := call(fence)
		if !errors.Is(err, ErrFenced) || r.target.Refence == nil {
			return err
		}
		if err := r.refence(ctx, fence); err != nil {
			return err
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
