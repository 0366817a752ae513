package fence

import (
	"context"
	"fmt"
	"slices"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/coalesce"
)

const (
	// maxPuts is how many objects are written at once, and maxPutBytes how large their values
	// may be together: etcd takes 128 operations, those of the parts counted in, and 1.5 MiB.
	maxPuts     = 32
	maxPutBytes = 512 << 10
)

// put is a fenced write: it is made if the object and the StorageVersion are at these
// revisions.
type put struct {
	key           string
	revision      int64
	value         []byte
	lease         clientv3.LeaseID
	fenceKey      string
	fenceRevision int64
	// getOnFailure asks for the object if it is not written.
	getOnFailure bool
}

// txn returns the put as compares, what is done if they hold, and what is read if not.
func (p put) txn() (compares []clientv3.Cmp, then, otherwise []clientv3.Op) {
	compares = []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(p.key), "=", p.revision),
		clientv3.Compare(clientv3.ModRevision(p.fenceKey), "=", p.fenceRevision),
	}
	then = []clientv3.Op{clientv3.OpPut(p.key, string(p.value), clientv3.WithLease(p.lease))}
	otherwise = []clientv3.Op{clientv3.OpGet(p.fenceKey)}
	if p.getOnFailure {
		otherwise = append(otherwise, clientv3.OpGet(p.key))
	}
	return compares, then, otherwise
}

// puts makes fenced writes, each of them on its own conditions; but those that are made
// together are made at one revision.
type puts = coalesce.Calls[put, attempt]

func newPuts(kv clientv3.KV) *puts {
	return &puts{Fits: putFits, Make: func(ctx context.Context, batch []put) ([]attempt, error) {
		return tryAll(ctx, kv, batch)
	}}
}

// putFits leaves a second write of the same object to the next transaction: etcd refuses one
// that writes a key twice.
func putFits(batch []put, next put) bool {
	size := len(next.value)
	for _, p := range batch {
		size += len(p.value)
	}
	return len(batch) < maxPuts && size <= maxPutBytes &&
		!slices.ContainsFunc(batch, func(p put) bool { return p.key == next.key })
}

// tryAll runs one transaction with one inside for each write.
func tryAll(ctx context.Context, kv clientv3.KV, batch []put) ([]attempt, error) {
	if len(batch) == 1 {
		a, err := try(ctx, kv, batch[0])
		return []attempt{a}, err
	}
	ops, reads := make([]clientv3.Op, len(batch)), make([]int, len(batch))
	for i, p := range batch {
		compares, then, otherwise := p.txn()
		ops[i], reads[i] = clientv3.OpTxn(compares, then, otherwise), len(otherwise)
	}
	resp, err := kv.Txn(ctx).Then(ops...).Commit()
	if err != nil {
		return nil, err
	}
	tried := make([]attempt, min(len(resp.Responses), len(batch)))
	for i := range tried {
		inner := resp.Responses[i].GetResponseTxn()
		if inner == nil {
			return nil, fmt.Errorf("etcd answered write %d of %d with no transaction", i+1, len(batch))
		}
		if tried[i], err = readAttempt((*clientv3.TxnResponse)(inner), resp.Header.Revision, reads[i]); err != nil {
			return nil, err
		}
	}
	return tried, nil
}

// try runs one transaction for one write.
func try(ctx context.Context, kv clientv3.KV, p put) (attempt, error) {
	compares, then, otherwise := p.txn()
	resp, err := kv.Txn(ctx).If(compares...).Then(then...).Else(otherwise...).Commit()
	if err != nil {
		return attempt{}, err
	}
	return readAttempt(resp, resp.Header.Revision, len(otherwise))
}
