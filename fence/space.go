package fence

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NoSpaceMessage explains etcd's alarm NOSPACE to users, and how to end it.
const NoSpaceMessage = "etcd is out of space (alarm NOSPACE) and takes deletes only: delete what is not needed, " +
	"run etcdctl compact and etcdctl defrag or raise --quota-backend-bytes, then etcdctl alarm disarm"

// noSpace is the 503 to a write that etcd has no room for; it wraps etcd's own error.
type noSpace struct {
	*apierrors.StatusError
	cause error
}

var _ apierrors.APIStatus = noSpace{}

// Unwrap returns etcd's error.
func (e noSpace) Unwrap() error { return e.cause }

// NoteNoSpace makes writes through the client recognize etcd's NOSPACE error: they call told and return a 503 with
// Retry-After instead. Call it before the client is used.
func NoteNoSpace(client *clientv3.Client, told func()) {
	s := space{told}
	client.KV = spaceKV{client.KV, s}
	client.Lease = spaceLease{client.Lease, s}
}

type space struct{ told func() }

func (s space) explain(err error) error {
	if !errors.Is(err, rpctypes.ErrNoSpace) {
		return err
	}
	s.told()
	status := apierrors.NewServiceUnavailable("nothing was written, try again: " + NoSpaceMessage)
	status.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return noSpace{status, err}
}

type spaceKV struct {
	clientv3.KV
	space
}

// Put implements clientv3.KV.
func (kv spaceKV) Put(ctx context.Context, key, value string, opts ...clientv3.OpOption) (*clientv3.PutResponse, error) {
	resp, err := kv.KV.Put(ctx, key, value, opts...)
	return resp, kv.explain(err)
}

// Do implements clientv3.KV.
func (kv spaceKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	resp, err := kv.KV.Do(ctx, op)
	return resp, kv.explain(err)
}

// Txn implements clientv3.KV.
func (kv spaceKV) Txn(ctx context.Context) clientv3.Txn { return spaceTxn{kv.KV.Txn(ctx), kv.space} }

type spaceTxn struct {
	clientv3.Txn
	space
}

// If implements clientv3.Txn.
func (t spaceTxn) If(cs ...clientv3.Cmp) clientv3.Txn { return spaceTxn{t.Txn.If(cs...), t.space} }

// Then implements clientv3.Txn.
func (t spaceTxn) Then(ops ...clientv3.Op) clientv3.Txn { return spaceTxn{t.Txn.Then(ops...), t.space} }

// Else implements clientv3.Txn.
func (t spaceTxn) Else(ops ...clientv3.Op) clientv3.Txn { return spaceTxn{t.Txn.Else(ops...), t.space} }

// Commit implements clientv3.Txn.
func (t spaceTxn) Commit() (*clientv3.TxnResponse, error) {
	resp, err := t.Txn.Commit()
	return resp, t.explain(err)
}

type spaceLease struct {
	clientv3.Lease
	space
}

// Grant implements clientv3.Lease.
func (l spaceLease) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	resp, err := l.Lease.Grant(ctx, ttl)
	return resp, l.explain(err)
}
