// Package api brings stored objects to the encoding that their server writes, where
// the store cannot be reached: through the API, by an empty patch of each.
//
// It lists metadata only, page by page, and patches several objects at a time, as many as
// the server takes. A patch carries the uid and the resourceVersion that were listed, so
// that it never undoes another write. The encoding that comes of it is the server's affair:
// the caller has to see that all servers agree on one, from before the first page until
// after the last patch. A write that overtakes a patch is then in that encoding, too.
//
// An object that the server cannot read makes every list fail that it is in. The engine goes
// around it, with a continue token of its own making, where the server names it.
package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

// API is the part of an API server that the engine needs. No call is repeated: errors that
// pass are returned, with the delay that the server suggests, if any, as apierrors has it.
type API interface {
	// List returns a page of at most limit objects, the first one if from is empty. That one
	// has to be consistent: it shows all writes that were answered before.
	List(ctx context.Context, resource schema.GroupVersionResource, limit int64, from string) (*metav1.PartialObjectMetadataList, error)
	Get(ctx context.Context, resource schema.GroupVersionResource, object types.NamespacedName) (*metav1.PartialObjectMetadata, error)
	// Patch applies a JSON merge patch.
	Patch(ctx context.Context, resource schema.GroupVersionResource, object types.NamespacedName, patch []byte) error
}

// Target says what is migrated.
type Target struct {
	schema.GroupResource
	// Versions are the versions in which the resource may be served, the stored one first. Objects are read and
	// patched in that version only, since another one may lack fields of objects that are stored in it already. The
	// other versions are for lists, if an object cannot be converted to the first.
	Versions []string
}

// Options bound what a run asks of the server. The zero value of a field means its default.
type Options struct {
	// MaxParallel limits the patches under way. There are fewer while the server answers that it is too busy. Default:
	// 128.
	MaxParallel int
	// Gentle keeps so few patches under way that hardly any waits for another at the server, by how
	// long they take; or that none takes longer by more than MaxAdded, if that is not 0.
	Gentle   bool
	MaxAdded time.Duration
	// Pacer makes the run give way to clients. Nil: it does not.
	Pacer *pace.Pacer
	// PageSize is how many objects are listed at a time, at most: fewer at first, and of large ones. Default: 500.
	PageSize int
	// MaxNamed bounds Result.Failed; all failures are counted. Default: 1000.
	MaxNamed int
	// Failed, if not nil, is called for every failure of the run, by several goroutines at once. A run that resumes at
	// a cursor may meet a failure again.
	Failed func(Failure)
	// Resume is where to go on; the zero Cursor is the beginning.
	Resume Cursor
	// Patience is how long the server may be busy or away, for everybody, before the run
	// fails. If it was so only for some objects, while others were written, these fail instead:
	// then, or after twice as long while others still are. Default: 1 min.
	Patience time.Duration
	// WebhookPatience is how long a conversion webhook, or a KMS plugin, that the server does
	// not reach is waited for, before objects fail for it; and many objects in a row that no list
	// can read. Default: 30 s.
	WebhookPatience time.Duration
	// Clock defaults to the real one.
	Clock clock.WithTicker
}

func (o Options) withDefaults() Options {
	o.MaxParallel = cmp.Or(o.MaxParallel, 128)
	o.PageSize = cmp.Or(o.PageSize, 500)
	o.MaxNamed = cmp.Or(o.MaxNamed, 1000)
	o.Patience = cmp.Or(o.Patience, time.Minute)
	o.WebhookPatience = cmp.Or(o.WebhookPatience, 30*time.Second)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// Progress counts objects. Invariant: at the end of a run that returns no error,
// Total = Patched + Overtaken + Gone + the sum of Failed.
type Progress struct {
	// Expected is the number of objects at the first list; 0 if the server does not report it.
	Expected int64
	// Total is how many objects were listed.
	Total int64
	// Patched were written by the server, or needed no write.
	Patched int64
	// Overtaken counts objects that clients wrote after they were listed.
	Overtaken int64
	// Gone were deleted after they were listed, and maybe created again.
	Gone int64
	// Failed counts the objects that could not be migrated.
	Failed Counts
	// Throttled is how often the server said that it is too busy.
	Throttled int64
}

func (p Progress) plus(q Progress) Progress {
	p.Total += q.Total
	p.Patched += q.Patched
	p.Overtaken += q.Overtaken
	p.Gone += q.Gone
	p.Throttled += q.Throttled
	for i, n := range q.Failed {
		p.Failed[i] += n
	}
	return p
}

// Cursor is a place in a run before which everything is done. It may be kept, and a later
// run go on there, as long as the servers agree on the same encoding throughout.
type Cursor struct {
	// Continue is the server's token for the page that comes next; empty at the beginning.
	Continue string
	// Progress counts what is done up to there.
	Progress Progress
	// Failed names the failures up to there that the run met, at most Options.MaxNamed. It is
	// not used to go on.
	Failed []Failure `json:"-"`
}

// Reason is why an object could not be migrated.
type Reason int

const (
	// DoesNotDecode: the server cannot read what is stored.
	DoesNotDecode Reason = iota
	// WebhookFailed: the conversion webhook refused the object or did not answer.
	WebhookFailed
	// Rejected: admission or validation refuses the object as it is, or the server cannot
	// write it for another reason of its own.
	Rejected
	// Conflict: the server answers with a conflict although the object was not written since.
	Conflict
	// TooLarge: the store does not take it.
	TooLarge

	reasons
)

// String names the reason as the status of a migration does.
func (r Reason) String() string {
	return [...]string{"DoesNotDecode", "ConversionWebhookFailed", "Rejected", "Conflict", "TooLarge"}[r]
}

// Counts counts failures by their reasons.
type Counts [reasons]int64

// Sum is the number of all.
func (c Counts) Sum() (sum int64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// Failure names an object that could not be migrated.
type Failure struct {
	types.NamespacedName
	Reason Reason
	// Detail is the error's text, shortened.
	Detail string
}

// Report is how far a run is.
type Report struct {
	Progress
	Cursor Cursor
	// Hindered is the server's last error where it has kept every object and page waiting for a while; else empty.
	// Overloaded says of it that the server, or etcd, has too much to do, or is away: other resources wait, too.
	Hindered   string
	Overloaded bool
}

// Result is the outcome of a run. It includes the counts in Options.Resume.
type Result struct {
	Progress
	// Failed names the failures of this run, at most Options.MaxNamed of them, by name.
	Failed []Failure
	// Cursor is where another run can go on if this one ended with an error.
	Cursor Cursor
}

// ErrUnavailable means that the server was busy or away for longer than Options.Patience.
var ErrUnavailable = errors.New("the server does not answer")

// Engine migrates objects through an API. It has no state of its own; runs may overlap.
type Engine struct{ api API }

// New returns an engine over an API.
func New(api API) *Engine { return &Engine{api: api} }

// Run has every object of the target written anew. The result is valid, as far as it goes,
// also with an error. Objects that cannot be migrated are in the result and no error. No
// error means that every object that was there when the run began was seen, and has been
// written since, is gone or is in the result. With an error Run may be called again, from the
// cursor. Objects behind one that cannot be read are migrated only where the server names that
// one, as kube-apiserver does since 1.37; elsewhere that is an error, which says where it is.
// progress, if not nil, is called after every object and every error, one call at a
// time and with counts that only grow; while a call takes its time, other objects go on.
func (e *Engine) Run(ctx context.Context, target Target, opts Options, progress func(Report)) (Result, error) {
	if target.Resource == "" || len(target.Versions) == 0 {
		return Result{}, errors.New("a migration through the API needs a resource and a version that is served")
	}
	r := newRun(e.api, target, opts.withDefaults(), progress)
	err := r.all(ctx)
	r.result.Cursor = r.cursor()
	slices.SortFunc(r.result.Failed, func(a, b Failure) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	if err != nil {
		return r.result, fmt.Errorf("migrate %s through the API: %w", target.GroupResource, err)
	}
	return r.result, nil
}
