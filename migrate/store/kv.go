package store

import (
	"context"
	"errors"

	"github.com/concord-dev/concord/agree"
)

// Errors of a KV on which callers can branch with errors.Is.
var (
	// ErrFenced means that the StorageVersion key is not at the revision a transaction
	// was to prove: that transaction wrote nothing.
	ErrFenced = agree.ErrFenced
	// ErrCompacted means that the revision to read at is not kept any more.
	ErrCompacted = errors.New("the revision to read at has been compacted")
	// ErrTooLarge means that the store takes no value of that many bytes, and has not written
	// it; or that a reply to a read is larger than is taken at a time.
	ErrTooLarge = errors.New("too large")
	// ErrUnavailable means that the store does not answer now, for example because it
	// restarts or has no leader. A value that a transaction was to write may have been written.
	ErrUnavailable = errors.New("the store does not answer")
	// errFull, together with ErrUnavailable, means that the store accepts no writes until somebody makes room: a run
	// waits for that as long as it takes.
	errFull = errors.New("the store has no space")
	// ErrKeysUnavailable, wrapped in a Transformer's error, means the same of the encryption
	// provider: nothing is known to be wrong with the value.
	ErrKeysUnavailable = errors.New("the encryption key is not at hand")
	// ErrLeaseLost means that a put names an etcd lease that does not exist, and so was not
	// made.
	ErrLeaseLost = errors.New("the etcd lease does not exist")
)

// Entry is one key of the store with the value it had at the revision read.
type Entry struct {
	Key         string
	Value       []byte
	ModRevision int64
	// Lease is the etcd lease the key hangs on, 0 if none.
	Lease int64
}

// Page is a piece of a range, in key order.
type Page struct {
	Entries []Entry
	// More says that the range continues behind the last entry.
	More bool
	// Count is the number of keys in the range from its start, including the page's. Pieces of a stream do not have
	// it.
	Count int64
	// Revision is the store's revision at which the page was read.
	Revision int64
}

// Put is one value to write, if the key is still as it was read.
type Put struct {
	Key   string
	Value []byte
	// ModRevision is the revision the key must still have. It is never 0: a rewrite
	// creates no key.
	ModRevision int64
	Lease       int64
}

// Fence is the compare that every transaction carries: the key of the resource's
// StorageVersion and the revision at which the permission to write was seen.
type Fence struct {
	Key      string
	Revision int64
}

// MaxReply limits the bytes that a Reader receives at a time, except for a single larger entry. It is the most memory
// that a read may need, however wrong the estimate of the values' sizes was.
const MaxReply = 4 << 20

// Reader reads ranges of raw values.
type Reader interface {
	// Range returns at most limit entries of the keys in [start, end), as they were at
	// revision. Revision 0 is a linearizable read of the newest state. It fails with
	// ErrCompacted if the store does not keep the revision any more, and with ErrTooLarge
	// if more than one entry is asked for and they have more than MaxReply bytes.
	Range(ctx context.Context, start, end string, limit, revision int64) (Page, error)
}

// KV is the part of the store that the engine needs.
type KV interface {
	Reader
	// Put writes one value in a transaction of its own, if its key is unchanged and the fence
	// holds: it fails with ErrFenced if the fence does not, and is not written if the key has
	// changed or is gone. The revision is the store's after the transaction; a value that was
	// written has it, and no other object does. A lost reply shows as another error; the same
	// put may then be tried again: if it was made, its key has changed. It fails with
	// ErrTooLarge if the value is too large for the store.
	Put(ctx context.Context, fence Fence, put Put) (written bool, revision int64, err error)
	// Prove fails with ErrFenced if the fence does not hold.
	Prove(ctx context.Context, fence Fence) error
}
