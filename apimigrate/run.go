package apimigrate

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

	"github.com/concord-dev/concord/progress"
)

const (
	// minBackoff and maxBackoff bound the time between two attempts at the same thing.
	minBackoff = 50 * time.Millisecond
	maxBackoff = 5 * time.Second
	// attempts is how often the server may fail at one object. Once so many objects in a row
	// have failed for it, the next ones are tried once only, until one does not fail.
	attempts = 4
	inARow   = 50
	// beginnings bounds how often a list begins again because its token was too old and the
	// server knew no place to go on.
	beginnings = 5
)

// run is one call of Engine.Run.
type run struct {
	api      API
	target   Target
	opts     Options
	progress *progress.Teller[Report]
	gate     *gate
	patience *patience
	// webhook is the patience with conversion webhooks and KMS plugins.
	webhook *patience

	mu       sync.Mutex // guards what follows
	resource schema.GroupVersionResource
	version  int // of the target's versions, the one that is used
	result   Result
	frontier frontier
	failing  int // objects in a row that the server failed at
}

func newRun(api API, target Target, opts Options, told func(Report)) *run {
	r := &run{
		api: api, target: target, opts: opts, gate: newGate(opts),
		patience: &patience{bound: opts.Patience}, webhook: &patience{bound: opts.WebhookPatience},
		resource: target.WithVersion(target.Versions[0]),
		result:   Result{Progress: opts.Resume.Progress},
		frontier: frontier{maxNamed: opts.MaxNamed, cursor: Cursor{Continue: opts.Resume.Continue, Progress: opts.Resume.Progress}},
	}
	r.progress = progress.NewTeller(r.report, told)
	return r
}

// object is what was listed of an object.
type object struct {
	types.NamespacedName
	uid             types.UID
	resourceVersion string
}

// page is a listed page whose objects are being migrated.
type page struct {
	// after is the token of the page behind it.
	after  string
	left   int
	counts Progress
	failed []Failure
}

// frontier is how far the pages of a run, which end in any order, are all done.
type frontier struct {
	cursor   Cursor
	pending  []*page
	maxNamed int
}

// advance moves the cursor behind the pages that are done. The last page has none behind
// it, and leaves the cursor where it is.
func (f *frontier) advance() {
	for len(f.pending) > 0 && f.pending[0].left == 0 && f.pending[0].after != "" {
		first := f.pending[0]
		f.pending = f.pending[1:]
		f.cursor.Continue = first.after
		f.cursor.Progress = f.cursor.Progress.plus(first.counts)
		room := f.maxNamed - len(f.cursor.Failed)
		f.cursor.Failed = append(f.cursor.Failed, first.failed[:max(0, min(room, len(first.failed)))]...)
	}
}

// task is an object of a page.
type task struct {
	object
	page *page
}

func (r *run) all(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	tasks := make(chan task, r.opts.PageSize)
	group.Go(func() error {
		defer close(tasks)
		return r.list(ctx, tasks)
	})
	for range r.opts.MaxParallel {
		group.Go(func() error { return r.work(ctx, tasks) })
	}
	return group.Wait()
}

// work migrates objects until there are no more. It takes them only when they may be
// patched, so that they are in the order of the list.
func (r *run) work(ctx context.Context, tasks <-chan task) error {
	for {
		begun, err := r.gate.enter(ctx)
		if err != nil {
			return err
		}
		t, ok := <-tasks
		if !ok {
			r.gate.leave(begun, verdict{answer: unable})
			return nil
		}
		if err := r.migrate(ctx, t, begun); err != nil {
			return err
		}
		r.progress.Tell()
	}
}

// list submits the objects of all pages.
func (r *run) list(ctx context.Context, tasks chan<- task) error {
	token, resumed := r.opts.Resume.Continue, r.opts.Resume.Continue != ""
	for begun := 1; ; {
		list, err := r.page(ctx, token)
		switch place, tooOld := expired(err); {
		case tooOld && place != "" && place != token:
			token = place
			continue
		case tooOld && token != "" && begun < beginnings, resumed && apierrors.IsBadRequest(err):
			// What was written already needs no write now. If this run did it, it is counted again.
			r.begin(resumed)
			token, resumed = "", false
			begun++
			continue
		case err != nil:
			return err
		}
		resumed = false
		p := r.listed(list)
		for i := range list.Items {
			m := &list.Items[i]
			t := task{page: p, object: object{
				NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, uid: m.UID, resourceVersion: m.ResourceVersion,
			}}
			select {
			case tasks <- t:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if token = list.Continue; token == "" {
			return nil
		}
	}
}

// page reads a page. While that fails other versions are tried: a server that cannot bring
// some object to one version may be able to bring it to another.
func (r *run) page(ctx context.Context, token string) (*metav1.PartialObjectMetadataList, error) {
	wasAway := false
	for failed, backoff := 0, minBackoff; ; {
		list, err := r.api.List(ctx, r.served(), int64(r.opts.PageSize), token)
		_, tooOld := expired(err)
		switch {
		case err == nil:
			r.patience.answered()
			if wasAway {
				r.webhook.answered()
			}
			return list, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case tooOld || apierrors.IsBadRequest(err) || lasting(err):
			return nil, err
		}
		v := judge(err)
		switch v.answer {
		case busy:
		case away:
			wasAway = true
			r.patience.answered()
			if !r.webhook.lasts(r.opts.Clock.Now()) {
				return nil, fmt.Errorf("list the objects: %w", err)
			}
		default:
			r.patience.answered()
			if failed++; failed >= attempts*len(r.target.Versions) {
				return nil, fmt.Errorf("list the objects: %w", err)
			}
		}
		if err := r.wait(ctx, err, max(v.after, backoff)); err != nil {
			return nil, fmt.Errorf("list the objects: %w", err)
		}
		if r.otherVersion() {
			backoff = min(2*backoff, maxBackoff)
		}
	}
}

// wait waits before the server is asked again, if it is worth it.
func (r *run) wait(ctx context.Context, cause error, d time.Duration) error {
	if judge(cause).answer == busy && !r.patience.lasts(r.opts.Clock.Now()) {
		return fmt.Errorf("%w: %w", ErrUnavailable, cause)
	}
	return waitOr(ctx, r.opts.Clock, d, nil)
}

func (r *run) served() schema.GroupVersionResource {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.resource
}

// otherVersion turns to the next version, and says whether that is the first one again.
func (r *run) otherVersion() (first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version = (r.version + 1) % len(r.target.Versions)
	r.resource = r.target.WithVersion(r.target.Versions[r.version])
	return r.version == 0
}

// begin forgets where the list was, and if nothing was listed yet what was done before.
func (r *run) begin(first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.result.Progress = Progress{}
	}
	for _, p := range r.frontier.pending {
		p.after = "" // they end where nothing goes on
	}
	r.frontier = frontier{maxNamed: r.opts.MaxNamed}
}

func (r *run) listed(list *metav1.PartialObjectMetadataList) *page {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := int64(len(list.Items))
	p := &page{after: list.Continue, left: len(list.Items), counts: Progress{Total: n}}
	r.result.Total += n
	if r.result.Expected == 0 && list.RemainingItemCount != nil {
		r.result.Expected = r.result.Total + *list.RemainingItemCount
	}
	r.frontier.cursor.Progress.Expected = r.result.Expected
	r.frontier.pending = append(r.frontier.pending, p)
	r.frontier.advance()
	return p
}

// migrate has one object written. The gate was entered for it.
func (r *run) migrate(ctx context.Context, t task, begun time.Time) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": t.uid, "resourceVersion": t.resourceVersion}})
	if err != nil {
		return err // strings always have a form in JSON
	}
	var busySince time.Time
	alone := &patience{bound: r.opts.WebhookPatience} // with what this object needs
	for failed, backoff := 0, minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		err := r.api.Patch(ctx, r.served(), t.NamespacedName, patch)
		v := judge(err)
		r.gate.leave(begun, v)
		if ctx.Err() != nil {
			return ctx.Err() // whatever failed may have failed for this
		}
		switch v.answer {
		case written:
			r.patience.answered()
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
			if busySince.IsZero() {
				busySince = now
			}
			if now.Sub(busySince) >= 2*r.opts.Patience {
				// Others were taken meanwhile: it is this object.
				return r.refused(ctx, t, v.reason, err)
			}
		case away:
			// Others may need no webhook: only this object's own success says that it is back.
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
		if err := r.wait(ctx, err, max(v.after, backoff)); err != nil {
			return err
		}
		if begun, err = r.gate.enter(ctx); err != nil {
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

// refused looks what became of an object that the server does not take: one that was
// written or deleted meanwhile is done, whatever the reason was.
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
	f := Failure{NamespacedName: t.NamespacedName, Reason: reason, Detail: detail(cause)}
	if r.opts.Failed != nil {
		r.opts.Failed(f)
	}
	what := Progress{}
	what.Failed[reason]++
	r.mu.Lock()
	if len(r.result.Failed) < r.opts.MaxNamed {
		r.result.Failed = append(r.result.Failed, f)
	}
	t.page.failed = append(t.page.failed, f)
	if reason == WebhookFailed || reason == DoesNotDecode || judge(cause).answer == unsure {
		r.failing++
	}
	r.mu.Unlock()
	r.end(t.page, what)
	return nil
}

// look reads an object's metadata, patiently.
func (r *run) look(ctx context.Context, name types.NamespacedName) (*metav1.PartialObjectMetadata, error) {
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		found, err := r.api.Get(ctx, r.served(), name)
		if err == nil || judge(err).answer != busy {
			return found, err
		}
		if err := r.wait(ctx, err, max(judge(err).after, backoff)); err != nil {
			return nil, err
		}
	}
}

// gone says that an object does not exist; an error that says no more than "not found" may
// also be about its resource.
func gone(err error) bool {
	var status apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

// took ends an object that needs no more.
func (r *run) took(p *page, what Progress) {
	r.mu.Lock()
	r.failing = 0
	r.mu.Unlock()
	r.end(p, what)
}

// end counts what became of an object.
func (r *run) end(p *page, what Progress) {
	r.note(p, what)
	r.mu.Lock()
	defer r.mu.Unlock()
	p.left--
	r.frontier.advance()
}

func (r *run) note(p *page, what Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.result.Progress = r.result.plus(what)
	p.counts = p.counts.plus(what)
}

// report is how far the run is.
func (r *run) report() Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Report{Progress: r.result.Progress, Cursor: r.frontier.cursor}
}
