// Package store brings stored values to one encoding inside the server
// and counts the stored values (census).
//
// It reads raw values page by page, decodes and encodes only those whose envelope does
// not say the encoding wanted, and writes each back in a transaction of its own that compares
// its key and the resource's StorageVersion: one object, one transaction, one revision, as
// every client and watch cache of Kubernetes takes it. Speed comes from many of them under
// way at once. There is no admission, no webhook and no
// validation on that way: an object that is stored stays migratable.
package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"strings"
	"time"

	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/migrate/pace"
)

// Target says which values are rewritten, to which encoding, and under which permission.
type Target struct {
	GroupResource schema.GroupResource
	// Encoding is the group/version that every value is to have afterwards.
	Encoding agree.Encoding
	// Prefix is the raw key prefix of the resource, with a slash at its end.
	Prefix string
	// FenceKey is the raw key of the resource's StorageVersion, FenceRevision the
	// ModRevision at which it was found to allow this rewrite. It must have been read
	// before Run is called, so that the first page is newer.
	FenceKey      string
	FenceRevision int64
	// Refence is asked when the StorageVersion is found changed: it returns the
	// revision at which it read that the rewrite is still allowed (same uid, same
	// epoch, agreement on Encoding; another server has merely joined or left), or
	// ErrFenced, wrapped with the cause, if it is not, or another error if that could
	// not be found out. Nil means that any change ends the run.
	Refence func(ctx context.Context) (int64, error)
	// Codec decodes every version that may be stored and encodes Encoding. It is used
	// by several goroutines at once. It may be nil where there is Convert.
	Codec machinery.Codec
	// Convert, if not nil, replaces Codec: it converts the plaintexts of a piece of a page at once. A piece has at
	// most Options.PieceKeys values and Options.PieceBytes bytes, except for a single larger value. It returns one
	// Converted for each, in order, is called by several goroutines at once, and calls hindered with each error
	// after which it asks again, and with nil when it has an answer.
	Convert func(ctx context.Context, plains [][]byte, hindered func(error)) []Converted
	// Shortcut, if not nil, does for many plaintexts what Codec does, in less time; where
	// it is not ok Codec is asked. The shortcut's output is verified like Codec's.
	Shortcut func(plain []byte, from agree.Encoding) (out []byte, ok bool)
	// New makes the empty object to decode into, as the resource's storage does. Without
	// one a codec takes a custom resource with a top-level field "items" for a list.
	New func() machinery.Object
	// Transformer encrypts and decrypts; nil for values that are not encrypted. Its errors concern the value, except
	// for those that wrap ErrKeysUnavailable.
	Transformer value.Transformer
}

// Validate says which field is missing or malformed.
func (t *Target) Validate() error {
	switch {
	case t.GroupResource.Resource == "":
		return errors.New("a rewrite needs a resource")
	case t.Encoding == "":
		return fmt.Errorf("the rewrite of %s needs an encoding", t.GroupResource)
	case !strings.HasSuffix(t.Prefix, "/") || strings.Trim(t.Prefix, "/") == "":
		return fmt.Errorf("the rewrite of %s needs a key prefix that ends in a slash, not %q", t.GroupResource, t.Prefix)
	case t.FenceKey == "" || t.FenceRevision <= 0:
		return fmt.Errorf("the rewrite of %s needs the key and the revision of its StorageVersion", t.GroupResource)
	case t.Convert == nil && (t.Codec == nil || t.New == nil):
		return fmt.Errorf("the rewrite of %s needs a codec and what makes an empty object", t.GroupResource)
	}
	return nil
}

// Converted is the result of Target.Convert for one plaintext: the one to store, or an error
// and its class.
type Converted struct {
	Plain  []byte
	Reason Reason
	Err    error
}

func (t *Target) transformer() value.Transformer {
	if t.Transformer == nil {
		return identity.NewEncryptCheckTransformer()
	}
	return t.Transformer
}

// Options bound what a run takes of memory, CPU and the store. The zero value of a
// field means its default.
type Options struct {
	// UnderWay limits the transactions under way, each of them for one object. With 1 everything happens in the
	// calling goroutine and in key order, except for the yielding. Default: DefaultUnderWay.
	UnderWay int
	// PageKeys and PageBytes limit a page. If pages would be long, etcd sends pieces of its own size instead. Bytes
	// are estimated from the page before; a page never has more than MaxReply, except for a single larger value.
	// Defaults: 4000 and 3 MiB.
	PageKeys, PageBytes int
	// PieceKeys and PieceBytes bound the entries judged together, and so converted by one call
	// of Target.Convert; a larger single value goes alone. Defaults: 100 and 1 MiB.
	PieceKeys, PieceBytes int
	// MemoryBytes limits the values held at a time, each counted twice: as it was read and as it is written. With less
	// than MaxReply there is one page at a time. Bytes that etcd has sent and that are not received yet come on top of
	// it. Default: 6 MiB.
	MemoryBytes int
	// MaxNamed bounds Result.Failed; all failures are counted. Default: 1000.
	MaxNamed int
	// Failed, if not nil, is called for every failure of the run, by several goroutines at once. A run that resumes at
	// a cursor may meet a failure again.
	Failed func(Failure)
	// Threads has the transactions of a piece under way at once; nil: goroutines, as many in all
	// as UnderWay. Where it is given pieces are settled one after the other.
	Threads Threads
	// Resume is where to go on; the zero Cursor is the beginning.
	Resume Cursor
	// Pacer makes the run give way to clients. Nil: it does not.
	Pacer *pace.Pacer
	// Patience is how long the store, or the encryption provider, may be unavailable before the
	// run fails; less than 20 ms means that it fails at once. Default: 1 min.
	Patience time.Duration
	// Clock defaults to the real one.
	Clock clock.Clock
}

// DefaultUnderWay is how many transactions a run has under way at once. etcd syncs its log once for all writes that
// arrived meanwhile, so that with few of them most of the time is spent waiting for the disk.
const DefaultUnderWay = 256

// pieces is how many pieces of pages are decoded, encoded and written at a time: most of the
// time one waits for the store.
func (o Options) pieces() int {
	cpus := runtime.GOMAXPROCS(0)
	return min(o.UnderWay, max(cpus, min(16, 4*cpus)))
}

func (o Options) withDefaults() Options {
	o.UnderWay = cmp.Or(o.UnderWay, DefaultUnderWay)
	o.PageKeys = cmp.Or(o.PageKeys, 4000)
	o.PageBytes = cmp.Or(o.PageBytes, 3<<20)
	o.PieceKeys = cmp.Or(o.PieceKeys, 100)
	o.PieceBytes = cmp.Or(o.PieceBytes, 1<<20)
	o.MemoryBytes = cmp.Or(o.MemoryBytes, 6<<20)
	o.MaxNamed = cmp.Or(o.MaxNamed, 1000)
	o.Patience = cmp.Or(o.Patience, time.Minute)
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return o
}

// Progress counts keys. Invariant: at the end of a run that returns no error,
// Total = Rewritten + AlreadyCurrent + Gone + Failures.
type Progress struct {
	// Expected is the number of keys in the range when it was first read. Clients add and delete objects during the
	// run, so that Total may end up on either side of it.
	Expected int64
	// Total is how many keys were read.
	Total int64
	// Rewritten were written in the encoding wanted.
	Rewritten int64
	// AlreadyCurrent counts values that needed no write, for example because a client had rewritten them.
	AlreadyCurrent int64
	// Gone were deleted between being read and being written.
	Gone int64
	// Changed counts how often a key had changed between being read and being written, so that it was judged again.
	Changed int64
	// Failures could not be rewritten and are as they were. ByReason divides them.
	Failures int64
	ByReason Counts
	// Bytes is the size of the values written.
	Bytes int64
}

// plus adds up the counts of two parts of a run. Expected is p's.
func (p Progress) plus(q Progress) Progress {
	p.Total += q.Total
	p.Rewritten += q.Rewritten
	p.AlreadyCurrent += q.AlreadyCurrent
	p.Gone += q.Gone
	p.Changed += q.Changed
	p.Failures += q.Failures
	for i, n := range q.ByReason {
		p.ByReason[i] += n
	}
	p.Bytes += q.Bytes
	return p
}

// Report is how far a run is.
type Report struct {
	Progress
	// Cursor is where another run could go on. Behind it some things may be done already.
	Cursor Cursor
	// Hindered is the last error for which nothing has got on for a while; else empty. Overloaded says of it that
	// the store or the API server does not answer: rewrites of other resources wait, too.
	Hindered   string
	Overloaded bool
}

// Reason is the class of a Failure.
type Reason string

// The reasons for which a stored value cannot be rewritten.
const (
	Undecryptable Reason = "Undecryptable" // the transformer cannot open it, or not seal it again
	Undecodable   Reason = "Undecodable"   // the codec cannot decode or convert it
	Unconverted   Reason = "Unconverted"   // the converter refused it or did not answer
	Unencodable   Reason = "Unencodable"   // the codec cannot encode what it decoded
	WrongEncoding Reason = "WrongEncoding" // the codec's output is not in the encoding asked for
	TooLarge      Reason = "TooLarge"      // etcd takes no value of the new size
	LeaseLost     Reason = "LeaseLost"     // the etcd lease it hangs on does not exist
)

var reasons = [...]Reason{Undecryptable, Undecodable, Unconverted, Unencodable, WrongEncoding, TooLarge, LeaseLost}

// Counts counts failures by their reasons. Cursors that are kept hold it: reasons are only
// added to its end.
type Counts [len(reasons)]int64

// All goes through the reasons that were met, in a fixed order.
func (t Counts) All() iter.Seq2[Reason, int64] {
	return func(yield func(Reason, int64) bool) {
		for i, n := range t {
			if n > 0 && !yield(reasons[i], n) {
				return
			}
		}
	}
}

func (t *Counts) add(r Reason) { t[slices.Index(reasons[:], r)]++ }

// Failure names a stored value that could not be rewritten.
type Failure struct {
	Key    string
	Reason Reason
	// Detail is the error's text, shortened.
	Detail string
}

// Result is the outcome of a run. It includes the counts in Options.Resume.
type Result struct {
	Progress
	// Failed names the failures of this run, at most Options.MaxNamed of them, by key.
	Failed []Failure
	// Cursor is where another run can go on if this one ended with an error.
	Cursor Cursor
	// PeakBytes is the most bytes that were held at a time, as Options.MemoryBytes counts them.
	PeakBytes int64
}

// Engine rewrites stored values. It has no state of its own; runs may overlap.
type Engine struct{ kv KV }

// New returns an engine over kv.
func New(kv KV) *Engine { return &Engine{kv: kv} }

// Run brings every value of the target to its encoding. The result is valid, as far as it goes, also with an error.
// Values that cannot be rewritten are part of the result and not an error. No error means that every page was done and
// that the fence stood after the last write. ErrFenced means that the permission is gone; nothing was written after it
// went. Any other error comes from the store or ctx; Run may then be called again, from the cursor, and skips what is
// done. progress, if not nil, is called after every piece of a page and while the run waits for something, one call at a time and with counts that only
// grow; other pieces continue during a call until they have something to report.
func (e *Engine) Run(ctx context.Context, target Target, opts Options, progress func(Report)) (Result, error) {
	if err := target.Validate(); err != nil {
		return Result{}, err
	}
	if after := opts.Resume.After; after != "" && !strings.HasPrefix(after, target.Prefix) {
		return Result{}, fmt.Errorf("the rewrite of %s cannot go on behind %q", target.GroupResource, after)
	}
	r := newRun(e, target, opts.withDefaults(), progress)
	err := r.all(ctx)
	r.result.Cursor, r.result.PeakBytes = r.cursor(), r.budget.highest()
	slices.SortFunc(r.result.Failed, func(a, b Failure) int { return strings.Compare(a.Key, b.Key) })
	if err != nil {
		return r.result, fmt.Errorf("rewrite %s to %s: %w", target.GroupResource, target.Encoding, err)
	}
	return r.result, nil
}
