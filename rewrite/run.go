package rewrite

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"
)

// run is one call of Engine.Run.
type run struct {
	kv       KV
	target   Target
	opts     Options
	progress func(Progress)

	mu     sync.Mutex // guards what follows
	result Result
	fence  Fence
	// ownFence is set when the StorageVersion itself is among the values to rewrite.
	// Writing it moves the fence, so it is written when everything else is done.
	ownFence *Entry

	refencing sync.Mutex // held while Refence is asked, so that it is asked once per change
	reporting sync.Mutex // held while progress is called, so that the counts come in order
}

func newRun(kv KV, target Target, opts Options, progress func(Progress)) *run {
	if progress == nil {
		progress = func(Progress) {}
	}
	return &run{
		kv:       kv,
		target:   target,
		opts:     opts,
		progress: progress,
		fence:    Fence{Key: target.FenceKey, Revision: target.FenceRevision},
	}
}

// all rewrites every page, then the StorageVersion if it is one of the values, and
// proves at the end that the fence stood throughout.
func (r *run) all(ctx context.Context) error {
	if err := r.pages(ctx); err != nil {
		return err
	}
	if r.ownFence != nil {
		if err := r.settle(ctx, []Entry{*r.ownFence}); err != nil {
			return err
		}
	}
	_, err := r.fenced(ctx, nil)
	return err
}

// pages reads all pages and has each rewritten, up to Workers of them at a time.
func (r *run) pages(ctx context.Context) error {
	submit := func(ctx context.Context, page Page) error { return r.rewrite(ctx, page) }
	wait := func() error { return nil }
	if r.opts.Workers > 1 {
		group, groupCtx := errgroup.WithContext(ctx)
		group.SetLimit(r.opts.Workers)
		ctx = groupCtx
		submit = func(ctx context.Context, page Page) error {
			group.Go(func() error { return r.rewrite(ctx, page) })
			return nil
		}
		wait = group.Wait
	}
	readErr := r.read(ctx, submit)
	// A failed worker ends the reading, so its error is the cause of the other.
	if err := wait(); err != nil {
		return err
	}
	return readErr
}

func (r *run) read(ctx context.Context, submit func(context.Context, Page) error) error {
	pager := newPager(r.kv, r.target.Prefix, r.opts.PageKeys, r.opts.PageBytes)
	for !pager.done {
		page, err := pager.pageAcrossCompaction(ctx)
		if err != nil {
			return err
		}
		r.note(func(result *Result) {
			result.Revision = page.Revision
			if result.Expected == 0 {
				result.Expected = page.Count
			}
		})
		if err := submit(ctx, page); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) note(change func(*Result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.result)
}

// rewrite settles one page and reports progress.
func (r *run) rewrite(ctx context.Context, page Page) error {
	entries := make([]Entry, 0, len(page.Entries))
	for _, e := range page.Entries {
		if e.Key == r.target.FenceKey {
			r.note(func(*Result) { r.ownFence = &e })
			continue
		}
		entries = append(entries, e)
	}
	if err := r.settle(ctx, entries); err != nil {
		return err
	}
	r.report()
	return nil
}

// report tells the progress. Whoever is told may be slow: meanwhile others go on.
func (r *run) report() {
	r.reporting.Lock()
	defer r.reporting.Unlock()
	var counts Progress
	r.note(func(result *Result) { counts = result.Progress })
	r.progress(counts)
}

// settle judges and writes entries until none of them is open. Keys that changed after
// they were read are judged anew as they are then.
func (r *run) settle(ctx context.Context, entries []Entry) error {
	r.note(func(result *Result) { result.Total += int64(len(entries)) })
	for len(entries) > 0 {
		puts, err := r.judgeAll(ctx, entries)
		if err != nil {
			return err
		}
		entries = nil
		for _, batch := range batches(puts, r.opts.TxnKeys, r.opts.TxnBytes) {
			changed, err := r.write(ctx, batch)
			if err != nil {
				return err
			}
			entries = append(entries, changed...)
		}
	}
	return nil
}

// judgeAll returns the puts for the entries that need one and counts the others.
func (r *run) judgeAll(ctx context.Context, entries []Entry) ([]Put, error) {
	puts := make([]Put, 0, len(entries))
	var failures []Failure
	for _, e := range entries {
		j := r.target.judge(ctx, e)
		if err := ctx.Err(); err != nil {
			return nil, err // whatever failed may have failed for this
		}
		switch {
		case j.failure != nil:
			failures = append(failures, *j.failure)
		case j.put != nil:
			puts = append(puts, *j.put)
		}
	}
	r.note(func(result *Result) {
		result.AlreadyCurrent += int64(len(entries) - len(puts) - len(failures))
	})
	r.fail(failures...)
	return puts, nil
}

func (r *run) fail(failures ...Failure) {
	r.note(func(result *Result) {
		result.Failures += int64(len(failures))
		room := r.opts.MaxNamed - len(result.Failed)
		result.Failed = append(result.Failed, failures[:max(0, min(room, len(failures)))]...)
	})
}

// write commits a batch and returns the entries that had changed, as they are now. What
// cannot be written in one transaction is halved until the culprit is alone.
func (r *run) write(ctx context.Context, batch []Put) ([]Entry, error) {
	committed, err := r.fenced(ctx, batch)
	switch {
	case err == nil:
		return r.tally(batch, committed), nil
	case !errors.Is(err, ErrTooLarge) && !errors.Is(err, ErrLeaseLost):
		return nil, err
	case len(batch) > 1:
		half := len(batch) / 2
		first, err := r.write(ctx, batch[:half])
		if err != nil {
			return nil, err
		}
		second, err := r.write(ctx, batch[half:])
		return append(first, second...), err
	case errors.Is(err, ErrTooLarge):
		r.fail(*newFailure(batch[0].Key, TooLarge, err))
		return nil, nil
	}
	return r.leaseLost(ctx, batch[0], err)
}

// tally counts the outcomes of a transaction and returns the entries to judge anew.
func (r *run) tally(batch []Put, committed Committed) []Entry {
	var changed []Entry
	r.note(func(result *Result) {
		for i, o := range committed.Outcomes {
			switch {
			case o.Written:
				result.Rewritten++
				result.Bytes += int64(len(batch[i].Value))
				if batch[i].Key == r.fence.Key {
					r.fence.Revision = committed.Revision
				}
			case o.Current != nil:
				result.Changed++
				changed = append(changed, *o.Current)
			default:
				result.Gone++
			}
		}
	})
	return changed
}

// leaseLost finds out what became of an entry whose lease had gone when it was written.
// With its lease an object goes too, unless a client has moved it to another one.
func (r *run) leaseLost(ctx context.Context, put Put, cause error) ([]Entry, error) {
	page, err := r.kv.Range(ctx, put.Key, put.Key+"\x00", 1, 0)
	if err != nil {
		return nil, err
	}
	switch {
	case len(page.Entries) == 0:
		r.note(func(result *Result) { result.Gone++ })
		return nil, nil
	case page.Entries[0].ModRevision != put.ModRevision:
		r.note(func(result *Result) { result.Changed++ })
		return page.Entries, nil
	}
	r.fail(*newFailure(put.Key, LeaseLost, cause))
	return nil, nil
}

// fenced commits puts under the fence. If the fence has moved and the target's Refence
// still finds the rewrite allowed, they are committed under the new one.
func (r *run) fenced(ctx context.Context, puts []Put) (Committed, error) {
	for {
		r.mu.Lock()
		fence := r.fence
		r.mu.Unlock()
		committed, err := r.kv.Commit(ctx, fence, puts)
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
	revision, err := r.target.Refence(ctx)
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
