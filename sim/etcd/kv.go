package etcd

import (
	"context"
	"errors"
	"fmt"

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

// Compact implements clientv3.KV.
func (k KV) Compact(context.Context, int64, ...clientv3.CompactOption) (*clientv3.CompactResponse, error) {
	return nil, errors.New("compaction is not simulated")
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

// Delete deletes as clientv3.KV does.
func (s *Store) Delete(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	return KV{s}.Delete(ctx, key, opts...)
}

// check refuses what etcd refuses before it looks at any key, and what is not simulated.
func check(op clientv3.Op) error {
	if !op.IsTxn() {
		if len(op.KeyBytes()) == 0 {
			return rpctypes.ErrEmptyKey
		}
		return nil
	}
	cmps, then, otherwise := op.Txn()
	if max(len(cmps), len(then), len(otherwise)) > MaxTxnOps {
		return rpctypes.ErrTooManyOps
	}
	for i := range cmps {
		if c := cmps[i].GetCompare(); c.Target != etcdserverpb.Compare_MOD || c.Result != etcdserverpb.Compare_EQUAL || len(c.RangeEnd) > 0 {
			return fmt.Errorf("the compare %v is not simulated: only that a key's ModRevision equals one is", c)
		}
	}
	for _, branch := range [][]clientv3.Op{then, otherwise} {
		puts := map[string]bool{}
		for _, inner := range branch {
			switch key := string(inner.KeyBytes()); {
			case inner.IsTxn():
				return errors.New("a transaction in a transaction is not simulated")
			case inner.IsDelete() && len(branch) > 1:
				return errors.New("a delete beside other operations of a transaction is not simulated")
			case key == "":
				return rpctypes.ErrEmptyKey
			case puts[key] && inner.IsPut():
				return rpctypes.ErrDuplicateKey
			default:
				puts[key] = puts[key] || inner.IsPut()
			}
		}
	}
	return nil
}
