package api

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// lister submits the objects of all pages of a run, in the order of the list.
type lister struct {
	*run
	tasks chan<- task
	// size is the number of objects to ask for. It is halved after a page that could not be read, because one object
	// may be the cause, and set to nextPage after a page that could. most is half of the number that took the
	// server too long, if that has happened. Invariant: 1 <= size <= most.
	size, most int
	// slow counts the times that even one object took it too long, and most was given up.
	slow int
	// submitted says that an object was submitted.
	submitted bool
	// outage is the patience with a server that can read none of many objects in a row.
	outage *patience
}

// maxSlow bounds how often a run takes it that lists take too long for a reason that passes.
const maxSlow = 10

func newLister(r *run, tasks chan<- task) *lister {
	return &lister{run: r, tasks: tasks, size: min(FirstPage, r.opts.PageSize), most: r.opts.PageSize, outage: &patience{bound: r.opts.WebhookPatience, forget: 3 * maxBackoff}}
}

// place is where a list goes on.
type place struct {
	// end says that there is nothing more.
	end bool
	// token is a continue token of the server or of the same format; empty at the beginning.
	token string
	// left is how many objects there are from here on; uncounted if the server did not say.
	left int64
}

const uncounted int64 = -1

// unreadable says that a page cannot be read in any version, however often it is asked for, because of its objects or
// for reasons of the server, or because it takes the server too long.
type unreadable struct {
	reason Reason
	err    error
}

func (u *unreadable) Error() string { return "list the objects: " + u.err.Error() }

func (u *unreadable) Unwrap() error { return u.err }

func (l *lister) all(ctx context.Context) error {
	from := place{token: l.opts.Resume.Continue, left: uncounted}
	for begun, moved := 1, 0; ; {
		next, err := l.step(ctx, from)
		resumed := l.opts.Resume.Continue != "" && begun == 1 && !l.submitted
		switch goOn, tooOld := expired(err); {
		case tooOld && goOn != "" && goOn != from.token && moved < beginnings:
			from = place{token: goOn, left: uncounted}
			moved++
			continue
		case tooOld && from.token != "" && begun < beginnings, resumed && apierrors.IsBadRequest(err):
			// Objects that were written already need no write now. Those of this run are counted again.
			l.begin(resumed)
			from = place{left: uncounted}
			begun, moved = begun+1, 0
			continue
		case errors.Is(err, errNoWay):
			l.blocked = err
			return nil
		case err != nil:
			return err
		}
		if next.token != from.token {
			moved = 0
		}
		if from = next; from.end {
			return nil
		}
	}
}

// step submits the next page, or goes around the objects of it that cannot be read, and
// returns the place after it.
func (l *lister) step(ctx context.Context, from place) (next place, err error) {
	tries := 1
	if l.size == 1 {
		tries = attempts // it may be the server
	}
	list, err := l.page(ctx, from.token, l.size, tries)
	var bad *unreadable
	switch {
	case errors.As(err, &bad) && l.size > 1:
		l.size /= 2
		return from, nil
	case errors.As(err, &bad):
		return l.around(ctx, from, bad)
	case err != nil:
		return place{}, err
	}
	l.size = nextPage(list, l.most)
	return l.submit(ctx, list)
}

func (l *lister) submit(ctx context.Context, list *metav1.PartialObjectMetadataList) (next place, err error) {
	l.submitted = true
	next = place{end: list.Continue == "", token: list.Continue, left: behind(list)}
	p := l.listed(len(list.Items), next.token, next.left)
	for i := range list.Items {
		if err := l.task(ctx, &list.Items[i], p); err != nil {
			return place{}, err
		}
	}
	return next, nil
}

func (l *lister) task(ctx context.Context, m *metav1.PartialObjectMetadata, p *page) error {
	select {
	case l.tasks <- taskOf(m, p):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func taskOf(m *metav1.PartialObjectMetadata, p *page) task {
	return task{page: p, object: object{
		NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}, uid: m.UID, resourceVersion: m.ResourceVersion,
	}}
}

// behind is how many objects there are behind a page.
func behind(list *metav1.PartialObjectMetadataList) int64 {
	switch {
	case list.Continue == "":
		return 0
	case list.RemainingItemCount == nil:
		return uncounted
	}
	return *list.RemainingItemCount
}

// page reads a page in the stored version. If that fails because of the content of the page, other versions are tried:
// a server that cannot convert an object to one version may be able to convert it to another, and the lists of all
// versions have the same objects. A version for which the server is busy is tried again: a few times or, if the server
// is busy in general, as long as patience lasts. The next page begins with the stored version again. The error is an
// unreadable if each version failed tries times, or several objects took too long.
func (l *lister) page(ctx context.Context, token string, limit, tries int) (*metav1.PartialObjectMetadataList, error) {
	wasAway := false
	var cause *unreadable // what is told of the page: what named objects, or else what came first
	for version, failed, busyFor, backoff := 0, 0, 0, minBackoff; ; {
		list, err := l.list(ctx, version, token, limit)
		_, tooOld := expired(err)
		switch {
		case err == nil:
			l.patience.answered()
			if wasAway {
				l.webhook.answered()
			}
			return list, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case tooOld || apierrors.IsBadRequest(err) || lasting(err) || version == 0 && apierrors.IsNotFound(err):
			return nil, err
		}
		l.hinder(err)
		v := judge(err)
		pause := max(v.after, backoff)
		switch {
		case v.answer == busy && apierrors.IsTimeout(err) && l.tooMany(limit):
			return nil, &unreadable{reason: v.reason, err: err}
		case v.answer == busy:
			busyFor++
		case v.answer == away:
			wasAway = true
			l.patience.answered()
			if !l.webhook.lasts(l.opts.Clock.Now()) {
				return nil, fmt.Errorf("list the objects: %w", err)
			}
		default:
			l.patience.answered()
			named := len(unreadKeys(err)) > 0
			if named || cause == nil {
				cause = &unreadable{reason: v.reason, err: err}
			}
			if named {
				tries = 1 // it is for these objects
			}
			if failed++; failed >= tries*len(l.target.Versions) {
				return nil, cause
			}
			if tries == 1 {
				pause = v.after
			}
		}
		if pause > 0 {
			if err := l.wait(ctx, err, pause); err != nil {
				return nil, fmt.Errorf("list the objects: %w", err)
			}
		}
		if v.answer != busy || version > 0 && !v.everybody && busyFor >= attempts {
			version, busyFor = (version+1)%len(l.target.Versions), 0
		}
		if v.answer == busy || version == 0 {
			backoff = min(2*backoff, maxBackoff)
		}
	}
}

// list reads a page in a version. If the server does not serve the stored version, that may be temporary.
func (l *lister) list(ctx context.Context, version int, token string, limit int) (*metav1.PartialObjectMetadataList, error) {
	for tried, backoff := 1, minBackoff; ; tried, backoff = tried+1, 2*backoff {
		list, err := l.api.List(ctx, l.target.WithVersion(l.target.Versions[version]), int64(limit), token)
		if version > 0 || !apierrors.IsNotFound(err) {
			return list, err
		}
		if tried == 2*attempts {
			return nil, fmt.Errorf("version %s, which is stored, is not served: serve it (served: true in a CustomResourceDefinition, --runtime-config for others), since patches through another may take fields from objects that are in it already: %w", l.stored.Version, err)
		}
		if err := waitOr(ctx, l.opts.Clock, backoff, nil); err != nil {
			return nil, err
		}
	}
}

// tooMany records that a list of this size took the server too long, and reports whether the size may be the cause.
// Then at most half as many objects are asked for from now on, because each list that takes too long may take the
// server a minute. If a single object takes too long, the size is not the cause.
func (l *lister) tooMany(limit int) bool {
	if limit > 1 {
		l.most = limit / 2
		return true
	}
	if l.most < l.opts.PageSize && l.slow < maxSlow {
		l.slow++
		l.most = l.opts.PageSize
	}
	return false
}

// begin forgets where the list was, and if nothing was listed yet the progress made before.
func (r *run) begin(first bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first {
		r.result.Progress = Progress{}
	}
	r.frontier = newFrontier("", Progress{}, Progress.plus, r.opts.MaxNamed)
}

// listed begins a page with this number of objects, and records the number of objects behind it, if known.
func (r *run) listed(objects int, after string, behind int64) *page {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.moved, r.hindered = r.opts.Clock.Now(), nil
	p := &page{Piece: r.frontier.Begin(after), left: objects, last: after == ""}
	r.frontier.Count(p.Piece, Progress{Total: int64(objects)})
	r.result.Total += int64(objects)
	if r.result.Expected == 0 && after != "" && behind >= 0 {
		r.result.Expected = r.result.Total + behind
	}
	r.pass(p)
	return p
}
