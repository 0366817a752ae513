package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	_ "github.com/concord-dev/concord/grpclimit" // many calls are under way beside a stream
)

// Etcd is a KV in etcd.
type Etcd struct {
	kv clientv3.KV
	// streamless says that etcd has no streams, which are new in 3.7.
	streamless atomic.Bool
}

// NewEtcd returns a KV over an etcd client. Replies are bounded for a *clientv3.Client
// with a connection; one to an etcd in the same process has none.
func NewEtcd(kv clientv3.KV) *Etcd {
	client, ok := kv.(*clientv3.Client)
	if !ok || client.ActiveConnection() == nil {
		return &Etcd{kv: kv}
	}
	return &Etcd{kv: clientv3.NewKVFromKVClient(boundedReplies{clientv3.RetryKVClient(client)}, client)}
}

// boundedReplies refuses replies of several values that are larger than MaxReply, by
// their announced length and hence before they take memory.
type boundedReplies struct{ etcdserverpb.KVClient }

// Range implements etcdserverpb.KVClient.
func (b boundedReplies) Range(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (*etcdserverpb.RangeResponse, error) {
	if in.GetLimit() != 1 {
		opts = append(slices.Clone(opts), grpc.MaxCallRecvMsgSize(MaxReply))
	}
	return b.KVClient.Range(ctx, in, opts...)
}

// RangeStream implements etcdserverpb.KVClient.
func (b boundedReplies) RangeStream(ctx context.Context, in *etcdserverpb.RangeRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[etcdserverpb.RangeStreamResponse], error) {
	return b.KVClient.RangeStream(ctx, in, append(slices.Clone(opts), grpc.MaxCallRecvMsgSize(MaxReply))...)
}

// Range implements Reader.
func (e *Etcd) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	resp, err := e.kv.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(limit), clientv3.WithRev(revision))
	if err != nil {
		return Page{}, readError(start, revision, err)
	}
	page := pageOf((*etcdserverpb.RangeResponse)(resp))
	page.Revision = cmp.Or(revision, resp.Header.GetRevision())
	return page, nil
}

func readError(start string, revision int64, err error) error {
	return fmt.Errorf("read from %q at revision %d: %w", start, revision, classify(err))
}

func pageOf(resp *etcdserverpb.RangeResponse) Page {
	page := Page{Entries: make([]Entry, len(resp.Kvs)), More: resp.More, Count: resp.Count}
	for i, kv := range resp.Kvs {
		page.Entries[i] = entry(kv)
	}
	return page
}

// Put implements KV. Where the put was not made, it is asked first whether the fence holds.
func (e *Etcd) Put(ctx context.Context, fence Fence, put Put) (written bool, revision int64, err error) {
	txn := e.kv.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(put.Key), "=", put.ModRevision),
		clientv3.Compare(clientv3.ModRevision(fence.Key), "=", fence.Revision),
	)
	txn = txn.Then(clientv3.OpPut(put.Key, string(put.Value), clientv3.WithLease(clientv3.LeaseID(put.Lease))))
	resp, err := txn.Else(clientv3.OpGet(fence.Key, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return false, 0, fmt.Errorf("write %s: %w", put.Key, classify(err))
	}
	if resp.Succeeded {
		return true, resp.Header.GetRevision(), nil
	}
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			if kv.ModRevision == fence.Revision {
				return false, resp.Header.GetRevision(), nil
			}
		}
	}
	return false, 0, fence.moved()
}

// Prove implements KV.
func (e *Etcd) Prove(ctx context.Context, fence Fence) error {
	resp, err := e.kv.Get(ctx, fence.Key, clientv3.WithKeysOnly())
	if err != nil {
		return readError(fence.Key, 0, err)
	}
	if len(resp.Kvs) != 1 || resp.Kvs[0].ModRevision != fence.Revision {
		return fence.moved()
	}
	return nil
}

func (f Fence) moved() error {
	return fmt.Errorf("%q is not at revision %d: %w", f.Key, f.Revision, ErrFenced)
}

func entry(kv *mvccpb.KeyValue) Entry {
	return Entry{Key: string(kv.Key), Value: kv.Value, ModRevision: kv.ModRevision, Lease: kv.Lease}
}

// classify joins etcd's error with the sentinel that the engine branches on.
func classify(err error) error {
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", ErrCompacted, err)
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return fmt.Errorf("%w: %w", ErrLeaseLost, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("%w: %w: %w", ErrUnavailable, errFull, err)
	case passing(err):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), overMessageLimit(err):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	}
	return err
}

// overMessageLimit recognises gRPC's own refusal of a message, which shares its code
// with errors that have other causes (no space, too many requests).
func overMessageLimit(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.ResourceExhausted && strings.Contains(s.Message(), "larger than max")
}

// passing recognises the errors of an etcd that restarts, elects a leader or is overrun.
func passing(err error) bool {
	if errors.Is(err, rpctypes.ErrTooManyRequests) {
		return true
	}
	code := status.Code(err)
	var etcd rpctypes.EtcdError
	if errors.As(err, &etcd) {
		code = etcd.Code()
	}
	return code == codes.Unavailable || code == codes.DeadlineExceeded
}
