package etcd

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MaxTxnOps is etcd's --max-txn-ops.
const MaxTxnOps = 128

// Doer carries out one operation.
type Doer interface {
	Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error)
}

// KV makes a clientv3.KV of a Doer: all its methods come down to Do.
type KV struct{ Doer }

var _ clientv3.KV = KV{}

// Put implements clientv3.KV.
func (k KV) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	r, err := k.Do(ctx, clientv3.OpPut(key, val, opts...))
	return r.Put(), err
}

// Get implements clientv3.KV.
func (k KV) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	r, err := k.Do(ctx, clientv3.OpGet(key, opts...))
	return r.Get(), err
}

// Delete implements clientv3.KV.
func (k KV) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	r, err := k.Do(ctx, clientv3.OpDelete(key, opts...))
	return r.Del(), err
}

// GetStream implements clientv3.KV. The keys that are asked for come in one piece.
func (k KV) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	r, err := k.Get(ctx, key, opts...)
	if err != nil {
		return nil, err
	}
	pieces := make(chan clientv3.RangeStreamResponse, 1)
	pieces <- clientv3.RangeStreamResponse{RangeResponse: (*etcdserverpb.RangeResponse)(r)}
	close(pieces)
	return pieces, nil
}

// Compact implements clientv3.KV. Compaction belongs to the Store.
func (k KV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, errors.New("the simulated etcd is compacted by its owner")
}

// Txn implements clientv3.KV.
func (k KV) Txn(ctx context.Context) clientv3.Txn { return &building{ctx: ctx, kv: k} }

// building is a transaction that is being put together.
type building struct {
	ctx             context.Context
	kv              KV
	cmps            []clientv3.Cmp
	then, otherwise []clientv3.Op
}

// If implements clientv3.Txn.
func (b *building) If(cmps ...clientv3.Cmp) clientv3.Txn {
	b.cmps = append(b.cmps, cmps...)
	return b
}

// Then implements clientv3.Txn.
func (b *building) Then(ops ...clientv3.Op) clientv3.Txn {
	b.then = append(b.then, ops...)
	return b
}

// Else implements clientv3.Txn.
func (b *building) Else(ops ...clientv3.Op) clientv3.Txn {
	b.otherwise = append(b.otherwise, ops...)
	return b
}

// Commit implements clientv3.Txn.
func (b *building) Commit() (*clientv3.TxnResponse, error) {
	r, err := b.kv.Do(b.ctx, clientv3.OpTxn(b.cmps, b.then, b.otherwise))
	return r.Txn(), err
}

// Put implements clientv3.KV.
func (s *Store) Put(ctx context.Context, key, val string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	return KV{s}.Put(ctx, key, val, opts...)
}

// Get implements clientv3.KV.
func (s *Store) Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	return KV{s}.Get(ctx, key, opts...)
}

// Delete implements clientv3.KV.
func (s *Store) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return KV{s}.Delete(ctx, key, opts...)
}

// GetStream implements clientv3.KV.
func (s *Store) GetStream(ctx context.Context, key string, opts ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return KV{s}.GetStream(ctx, key, opts...)
}

// Txn implements clientv3.KV.
func (s *Store) Txn(ctx context.Context) clientv3.Txn { return KV{s}.Txn(ctx) }

// Compact implements clientv3.KV: reads before the revision fail from now on.
func (s *Store) Compact(_ context.Context, revision int64, _ ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	switch {
	case revision <= s.compacted:
		return nil, rpctypes.ErrCompacted
	case revision > s.revision:
		return nil, rpctypes.ErrFutureRev
	}
	s.compacted = revision
	return &clientv3.CompactResponse{Header: &etcdserverpb.ResponseHeader{Revision: s.revision}}, nil
}

// check refuses the operations that etcd refuses before it looks at any key.
func (s *Store) check(op clientv3.Op) error {
	if err := checkOp(op, MaxTxnOps); err != nil {
		return err
	}
	if !op.IsTxn() {
		return nil
	}
	_, then, otherwise := op.Txn()
	for _, branch := range [][]clientv3.Op{then, otherwise} {
		if _, _, err := overlaps(branch); err != nil {
			return err
		}
	}
	return nil
}

func checkOp(op clientv3.Op, room int) error {
	if !op.IsTxn() {
		if len(op.KeyBytes()) == 0 {
			return rpctypes.ErrEmptyKey
		}
		return nil
	}
	cmps, then, otherwise := op.Txn()
	n := max(len(cmps), len(then), len(otherwise))
	if n > room {
		return rpctypes.ErrTooManyOps
	}
	for _, branch := range [][]clientv3.Op{then, otherwise} {
		for _, inner := range branch {
			if err := checkOp(inner, room-n); err != nil {
				return err
			}
		}
	}
	return nil
}

// interval is a range of keys that is deleted.
type interval struct{ start, end string }

func (i interval) has(key string) bool {
	switch i.end {
	case "":
		return key == i.start
	case "\x00":
		return key >= i.start
	}
	return key >= i.start && key < i.end
}

// overlaps returns the keys that a list of operations may put and delete, or an error if a key
// could be written twice. The branches of a nested transaction exclude each other.
func overlaps(ops []clientv3.Op) (puts map[string]bool, deletes []interval, err error) {
	for _, op := range ops {
		if op.IsDelete() {
			deletes = append(deletes, interval{string(op.KeyBytes()), string(op.RangeBytes())})
		}
	}
	add := func(key string, safe map[string]bool) error {
		if puts[key] && !safe[key] {
			return rpctypes.ErrDuplicateKey
		}
		for _, d := range deletes {
			if d.has(key) {
				return rpctypes.ErrDuplicateKey
			}
		}
		if puts == nil {
			puts = map[string]bool{}
		}
		puts[key] = true
		return nil
	}
	for _, op := range ops {
		if !op.IsTxn() {
			continue
		}
		_, then, otherwise := op.Txn()
		thenPuts, thenDeletes, err := overlaps(then)
		if err != nil {
			return nil, nil, err
		}
		elsePuts, elseDeletes, err := overlaps(otherwise)
		if err != nil {
			return nil, nil, err
		}
		for key := range thenPuts {
			if err := add(key, nil); err != nil {
				return nil, nil, err
			}
		}
		for key := range elsePuts {
			if err := add(key, thenPuts); err != nil {
				return nil, nil, err
			}
		}
		deletes = append(append(deletes, thenDeletes...), elseDeletes...)
	}
	for _, op := range ops {
		if op.IsPut() {
			if err := add(string(op.KeyBytes()), nil); err != nil {
				return nil, nil, err
			}
		}
	}
	return puts, deletes, nil
}
