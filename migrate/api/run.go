package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/concord-dev/concord/migrate/progress"
	"github.com/concord-dev/concord/workers"
)

const (
	// minBackoff and maxBackoff bound the time between two attempts at the same thing.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	// jitter is the part of the time between two attempts at an object that is added to it at
	// random: objects that failed together do not come back together.
	jitter = 0.5
	// attempts is how often the server may fail at one object. Once inARow objects in a row have failed for
	// reasons of the server, the following ones are tried only once, until one succeeds.
	attempts = 4
	inARow   = 50
	// beginnings bounds how often a list whose token was too old begins again, since the server knew no
	// place to go on, and how often it goes on at one place for which the server gave another token.
	beginnings = 5
)

// run is one call of Engine.Run.
type run struct {
	api       API
	target    Target
	stored    schema.GroupVersionResource // through which objects are patched
	opts      Options
	progress  *progress.Teller[Report]
	turnstile *turnstile
	patience  *patience
	// webhook is the patience with conversion webhooks and KMS plugins.
	webhook *patience
	stuck   stuck
	turn    chan struct{} // full while an object is taken

	mu       sync.Mutex // guards the fields below
	result   Result
	frontier *frontier
	failing  int // objects in a row that the server failed at
	// moved is when a page was last listed, or an object was done with, and hindered the last error since. An object that
	// fails for a webhook that does not answer is hindered, too.
	moved    time.Time
	hindered error
	// blocked is why nothing behind a place could be listed. The objects before it were migrated.
	blocked error
}

func newRun(api API, target Target, opts Options, told func(Report)) *run {
	r := &run{
		api: api, target: target, stored: target.WithVersion(target.Versions[0]), opts: opts, turnstile: newTurnstile(opts), turn: make(chan struct{}, 1),
		patience: &patience{bound: opts.Patience}, webhook: &patience{bound: opts.WebhookPatience, forget: 3 * maxBackoff},
		result:   Result{Progress: opts.Resume.Progress},
		frontier: newFrontier(opts.Resume.Continue, opts.Resume.Progress, Progress.plus, opts.MaxNamed), moved: opts.Clock.Now(),
	}
	r.progress = progress.NewTeller(r.report, told)
	return r
}

// object is the listed metadata of an object.
type object struct {
	types.NamespacedName
	uid             types.UID
	resourceVersion string
}

// frontier is up to which page, by the token of the next one, everything is done.
type frontier = progress.Frontier[string, Progress, Failure]

var newFrontier = progress.NewFrontier[string, Progress, Failure]

// page is a listed page whose objects are being migrated.
type page struct {
	*progress.Piece[string, Progress, Failure]
	left int
	// last says that the run does not go beyond this page: the frontier stays before it.
	last bool
}

// task is an object of a page.
type task struct {
	object
	page *page
}

func (r *run) all(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	tasks := make(chan task, r.opts.PageSize)
	begin := func(f func() error) {
		group.Go(func() error { return workers.Do(ctx, "api engine", f) })
	}
	begin(func() error {
		defer close(tasks)
		return newLister(r, tasks).all(ctx)
	})
	for range r.opts.MaxParallel {
		begin(func() error { return r.work(ctx, tasks) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return r.blocked
}

// work migrates objects until there are no more.
func (r *run) work(ctx context.Context, tasks <-chan task) error {
	for {
		t, begun, err := r.next(ctx, tasks)
		if err != nil || t.page == nil {
			return err
		}
		if err := r.migrate(ctx, t, begun); err != nil {
			return err
		}
		r.progress.Tell()
	}
}

// next takes an object, if there is one more, and waits until it may be patched: one after
// the other, so that patches begin in the order of the list.
func (r *run) next(ctx context.Context, tasks <-chan task) (t task, begun time.Time, err error) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	t, ok := <-tasks
	if !ok {
		return task{}, time.Time{}, nil
	}
	if begun, err = r.turnstile.enter(ctx); err != nil {
		return task{}, time.Time{}, err
	}
	return t, begun, nil
}

// wait waits before the server is asked again, if it is worth it.
func (r *run) wait(ctx context.Context, cause error, d time.Duration) error {
	if judge(cause).answer == busy && !r.patience.lasts(r.opts.Clock.Now()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, cause)
	}
	return waitOr(ctx, r.opts.Clock, d, nil)
}

// migrate has one object written. The turnstile was entered for it.
func (r *run) migrate(ctx context.Context, t task, begun time.Time) error {
	over := &passedOver{}
	defer r.stuck.done(over)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": t.uid, "resourceVersion": t.resourceVersion}})
	if err != nil {
		return err // strings always have a form in JSON
	}
	alone := &patience{bound: r.opts.WebhookPatience} // with what this object needs
	for failed, backoff := 0, minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := r.api.Patch(ctx, r.stored, t.NamespacedName, patch)
		v := judge(err)
		r.turnstile.leave(begun, v)
		if ctx.Err() != nil {
			return ctx.Err() // the patch may have failed for this
		}
		switch v.answer {
		case written:
			r.patience.answered()
			r.stuck.took()
			if !alone.since.IsZero() {
				r.webhook.answered()
			}
			r.took(t.page, Progress{Patched: 1})
			return nil
		case unable:
			return err
		case busy:
			r.note(t.page, Progress{Throttled: 1})
			now := r.opts.Clock.Now()
			r.stuck.refused(over, now, v.everybody)
			if r.stuck.itself(over, now.Sub(over.since), r.opts.Patience, r.patience.lasts(now)) {
				return r.refused(ctx, t, v.reason, err)
			}
		case away:
			// Other objects may need no webhook, so only this object's own success shows that the webhook is back.
			r.patience.answered()
			now := r.opts.Clock.Now()
			if lasts := alone.lasts(now); !r.webhook.lasts(now) || !lasts {
				return r.refused(ctx, t, v.reason, err)
			}
		case unsure:
			r.patience.answered()
			if v.reason == WebhookFailed {
				r.webhook.answered()
			}
			if failed++; failed >= r.worth() {
				return r.refused(ctx, t, v.reason, err)
			}
		case refused:
			r.patience.answered()
			return r.refused(ctx, t, v.reason, err)
		}
		r.hinder(err)
		if err := r.wait(ctx, err, max(v.after, wait.Jitter(backoff, jitter))); err != nil {
			return err
		}
		if begun, err = r.turnstile.enter(ctx); err != nil {
			return err
		}
	}
}

// worth is how often an object may be tried that the server fails at.
func (r *run) worth() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing >= inARow {
		return 1
	}
	return attempts
}

// refused checks an object that the server did not accept: if it was written or deleted in the meantime it is done,
// whatever the reason was.
func (r *run) refused(ctx context.Context, t task, reason Reason, cause error) error {
	now, err := r.look(ctx, t.NamespacedName)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case gone(err):
		r.took(t.page, Progress{Gone: 1})
		return nil
	case errors.Is(err, ErrUnavailable):
		return err
	case err == nil && now.UID != t.uid:
		r.took(t.page, Progress{Gone: 1})
		return nil
	case err == nil && now.ResourceVersion != t.resourceVersion:
		r.took(t.page, Progress{Overtaken: 1})
		return nil
	}
	answer := judge(cause).answer
	r.mu.Lock()
	if reason == WebhookFailed || reason == DoesNotDecode || answer == unsure {
		r.failing++
	}
	if answer == away {
		r.hindered = cause
	} else {
		r.moved, r.hindered = r.opts.Clock.Now(), nil
	}
	r.mu.Unlock()
	r.fail(t.page, Failure{NamespacedName: t.NamespacedName, Reason: reason, Detail: detail(cause)})
	return nil
}

// fail names an object that could not be migrated, and ends it.
func (r *run) fail(p *page, f Failure) {
	if r.opts.Failed != nil {
		r.opts.Failed(f)
	}
	r.mu.Lock()
	if len(r.result.Failed) < r.opts.MaxNamed {
		r.result.Failed = append(r.result.Failed, f)
	}
	r.frontier.Name(p.Piece, f)
	r.mu.Unlock()
	what := Progress{}
	what.Failed[f.Reason]++
	r.end(p, what)
}

// look reads an object's metadata, patiently.
func (r *run) look(ctx context.Context, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		found, err := r.api.Get(ctx, r.stored, name)
		if err == nil || judge(err).answer != busy {
			return found, err
		}
		if err := r.wait(ctx, err, max(judge(err).after, backoff)); err != nil {
			return nil, err
		}
	}
}

// gone reports whether an object does not exist; an error that only says "not found" may also concern its resource.
func gone(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

// hinder reports an error after which the server is asked again.
func (r *run) hinder(err error) {
	r.mu.Lock()
	r.hindered = err
	r.mu.Unlock()
	r.progress.Tell()
}

// took ends an object that needs no more.
func (r *run) took(p *page, what Progress) {
	r.mu.Lock()
	r.failing = 0
	r.moved, r.hindered = r.opts.Clock.Now(), nil
	r.mu.Unlock()
	r.end(p, what)
}

// end counts what became of an object.
func (r *run) end(p *page, what Progress) {
	r.note(p, what)
	r.mu.Lock()
	defer r.mu.Unlock()
	p.left--
	r.pass(p)
}

// pass has the frontier pass a page that is done.
func (r *run) pass(p *page) {
	if p.left == 0 && !p.last {
		r.frontier.End(p.Piece)
	}
}

func (r *run) note(p *page, what Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Progress = r.result.plus(what)
	r.frontier.Count(p.Piece, what)
}

// report is how far the run is.
func (r *run) report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := Report{Progress: r.result.Progress, Cursor: r.cursor()}
	if r.hindered != nil && r.opts.Clock.Since(r.moved) >= maxBackoff { // others pass in a moment
		report.Hindered, report.Overloaded = detail(r.hindered), overloaded(r.hindered)
	}
	return report
}

// cursor is how far everything is done.
func (r *run) cursor() (c Cursor) {
	c.Continue, c.Progress, c.Failed = r.frontier.Now()
	c.Progress.Expected = r.result.Expected
	return c
}
