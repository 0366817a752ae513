package rewrite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
)

// Etcd is a KV in etcd.
type Etcd struct {
	kv clientv3.KV
	// commit sends a transaction whose reply is expected to have at most so many bytes.
	commit func(ctx context.Context, txn *etcdserverpb.TxnRequest, maxReply int) (*etcdserverpb.TxnResponse, error)
	// open begins to read a range as a stream.
	open func(ctx context.Context, start, end string, revision int64) (receive func() (Page, error), err error)
	// conflicting is how many of the next transactions are expected to meet keys that have
	// changed.
	conflicting atomic.Int32
	// streamless says that etcd has no streams, which are new in 3.7.
	streamless atomic.Bool
}

// NewEtcd returns a KV over an etcd client. Replies are bounded for a *clientv3.Client
// with a connection; one to an etcd in the same process has none.
func NewEtcd(kv clientv3.KV) *Etcd {
	client, ok := kv.(*clientv3.Client)
	if !ok || client.ActiveConnection() == nil {
		return &Etcd{kv: kv, commit: unconnected{kv}.commit, open: unconnected{kv}.open}
	}
	remote := clientv3.RetryKVClient(client)
	return &Etcd{kv: clientv3.NewKVFromKVClient(boundedReplies{remote}, client), commit: connected{remote}.commit, open: connected{remote}.open}
}

// connected sends transactions and receives streams as they are: clientv3 would copy every value.
type connected struct{ etcdserverpb.KVClient }

func (c connected) commit(ctx context.Context, txn *etcdserverpb.TxnRequest, maxReply int) (*etcdserverpb.TxnResponse, error) {
	// As clientv3 does: who waits for an etcd that restarts is bounded by ctx. What is too large
	// is for etcd to say, which has a setting for it.
	resp, err := c.Txn(ctx, txn, grpc.WaitForReady(true), grpc.MaxCallSendMsgSize(math.MaxInt32), grpc.MaxCallRecvMsgSize(maxReply))
	if err != nil {
		return nil, clientv3.ContextError(ctx, err)
	}
	return resp, nil
}

// unconnected does the same by a KV that has no connection.
type unconnected struct{ clientv3.KV }

func (u unconnected) commit(ctx context.Context, txn *etcdserverpb.TxnRequest, _ int) (*etcdserverpb.TxnResponse, error) {
	cmps, then, _ := transactionOf(txn)
	resp, err := u.Txn(ctx).If(cmps...).Then(then...).Commit()
	return (*etcdserverpb.TxnResponse)(resp), err
}

// transactionOf says in clientv3's words what is in a transaction of Commit.
func transactionOf(txn *etcdserverpb.TxnRequest) (cmps []clientv3.Cmp, then, otherwise []clientv3.Op) {
	for _, c := range txn.Compare {
		cmps = append(cmps, clientv3.Compare(clientv3.ModRevision(string(c.Key)), "=", c.GetModRevision()))
	}
	return cmps, operationsOf(txn.Success), operationsOf(txn.Failure)
}

func operationsOf(requests []*etcdserverpb.RequestOp) (ops []clientv3.Op) {
	for _, r := range requests {
		switch r := r.Request.(type) {
		case *etcdserverpb.RequestOp_RequestTxn:
			ops = append(ops, clientv3.OpTxn(transactionOf(r.RequestTxn)))
		case *etcdserverpb.RequestOp_RequestPut:
			lease := clientv3.WithLease(clientv3.LeaseID(r.RequestPut.Lease))
			ops = append(ops, clientv3.OpPut(string(r.RequestPut.Key), string(r.RequestPut.Value), lease))
		case *etcdserverpb.RequestOp_RequestRange:
			ops = append(ops, clientv3.OpGet(string(r.RequestRange.Key)))
		}
	}
	return ops
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

// afterConflict is how many transactions after one in which a key had changed are taken to
// have changed keys as well: clients are at work.
const afterConflict = 8

// Commit implements KV. Where no key has changed, which is the rule, one compare and one put
// for each is all that etcd has to be told. Only where one has is it asked for each by itself.
func (e *Etcd) Commit(ctx context.Context, fence Fence, puts []Put) (Committed, error) {
	if len(puts) <= 1 || e.conflicting.Load() > 0 && e.conflicting.Add(-1) >= 0 {
		return e.commitEach(ctx, fence, puts)
	}
	committed, ok, err := e.commitAll(ctx, fence, puts)
	if ok || err != nil {
		return committed, err
	}
	e.conflicting.Store(afterConflict)
	return e.commitEach(ctx, fence, puts)
}

// commitAll writes all or, where a key has changed or the fence has, nothing.
func (e *Etcd) commitAll(ctx context.Context, fence Fence, puts []Put) (_ Committed, ok bool, err error) {
	txn := &etcdserverpb.TxnRequest{
		Compare: make([]*etcdserverpb.Compare, 0, 1+len(puts)), Success: make([]*etcdserverpb.RequestOp, 0, len(puts)),
	}
	txn.Compare = append(txn.Compare, unchanged([]byte(fence.Key), fence.Revision))
	for _, p := range puts {
		key := []byte(p.Key)
		txn.Compare, txn.Success = append(txn.Compare, unchanged(key, p.ModRevision)), append(txn.Success, putOf(key, p))
	}
	resp, err := e.transact(ctx, txn, len(puts), MaxReply)
	if err != nil || !resp.Succeeded {
		return Committed{}, false, err
	}
	return Committed{Revision: resp.Header.GetRevision(), Outcomes: slices.Repeat([]Outcome{{Written: true}}, len(puts))}, true, nil
}

// commitEach writes those whose keys have not changed, if the fence has not.
func (e *Etcd) commitEach(ctx context.Context, fence Fence, puts []Put) (Committed, error) {
	maxReply := MaxReply // keys that have changed come with the values they have now
	if len(puts) == 1 {
		maxReply = math.MaxInt32
	}
	resp, err := e.transact(ctx, &etcdserverpb.TxnRequest{
		Compare: []*etcdserverpb.Compare{unchanged([]byte(fence.Key), fence.Revision)},
		Success: operations(puts),
	}, len(puts), maxReply)
	if err != nil {
		return Committed{}, err
	}
	if !resp.Succeeded {
		return Committed{}, fmt.Errorf("%q is not at revision %d: %w", fence.Key, fence.Revision, ErrFenced)
	}
	result := Committed{Revision: resp.Header.GetRevision(), Outcomes: make([]Outcome, len(puts))}
	for i, r := range resp.Responses {
		result.Outcomes[i] = outcome(r.GetResponseTxn())
	}
	return result, nil
}

// transact sends a transaction of one operation for each of n objects, if its compares hold.
func (e *Etcd) transact(ctx context.Context, txn *etcdserverpb.TxnRequest, n, maxReply int) (*etcdserverpb.TxnResponse, error) {
	resp, err := e.commit(ctx, txn, maxReply)
	switch {
	case err != nil:
		return nil, fmt.Errorf("write %d objects: %w", n, classify(err))
	case resp.Succeeded && len(resp.Responses) != n:
		return nil, fmt.Errorf("etcd answered %d of %d operations", len(resp.Responses), n)
	}
	return resp, nil
}

// unchanged holds if the key is at the revision.
func unchanged(key []byte, revision int64) *etcdserverpb.Compare {
	return &etcdserverpb.Compare{
		Key: key, Target: etcdserverpb.Compare_MOD, Result: etcdserverpb.Compare_EQUAL,
		TargetUnion: &etcdserverpb.Compare_ModRevision{ModRevision: revision},
	}
}

// operations nests a transaction for each put, so that every key has a result of its own.
func operations(puts []Put) []*etcdserverpb.RequestOp {
	ops := make([]*etcdserverpb.RequestOp, len(puts))
	for i, p := range puts {
		key := []byte(p.Key)
		ops[i] = &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestTxn{RequestTxn: &etcdserverpb.TxnRequest{
			Compare: []*etcdserverpb.Compare{unchanged(key, p.ModRevision)},
			Success: []*etcdserverpb.RequestOp{putOf(key, p)},
			Failure: []*etcdserverpb.RequestOp{{Request: &etcdserverpb.RequestOp_RequestRange{RequestRange: &etcdserverpb.RangeRequest{Key: key}}}},
		}}}
	}
	return ops
}

func putOf(key []byte, p Put) *etcdserverpb.RequestOp {
	put := &etcdserverpb.PutRequest{Key: key, Value: p.Value, Lease: p.Lease}
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: put}}
}

func outcome(txn *etcdserverpb.TxnResponse) Outcome {
	if txn.GetSucceeded() {
		return Outcome{Written: true}
	}
	if rs := txn.GetResponses(); len(rs) > 0 {
		if kvs := rs[0].GetResponseRange().GetKvs(); len(kvs) > 0 {
			current := entry(kvs[0])
			return Outcome{Current: &current}
		}
	}
	return Outcome{}
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

// passing recognises what an etcd says while it restarts, elects a leader or is overrun.
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
