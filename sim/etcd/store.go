// Package etcd is a simulated etcd: one linearizable key-value store in memory, with
// transactions, revisions, reads of the past, compaction and a log of events. Its one
// conformance suite also runs against a real embedded etcd. It has no locks: a simulated
// world is single-threaded. Of etcd it leaves out leases, sorting, filters and auth.
package etcd

import (
	"bytes"
	"context"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Event is one change of one key. Events of one transaction have the same revision.
type Event struct {
	Key      string
	Revision int64
	// KV is the key's KeyValue now, nil if it was deleted. It is not to be changed.
	KV *mvccpb.KeyValue
	// Prev is the key's KeyValue before, nil if it did not exist.
	Prev *mvccpb.KeyValue
}

// Store is the simulated etcd. The zero value is not usable: call New.
type Store struct {
	revision  int64
	compacted int64
	keys      []*key // every key that ever was, sorted
	named     map[string]*key
	log       []Event
}

// key is a key with all that it ever had.
type key struct {
	name    string
	now     *mvccpb.KeyValue // nil: deleted
	history []version        // the last one is now's
}

// version is a key's KeyValue from a revision on.
type version struct {
	revision int64
	kv       *mvccpb.KeyValue // nil: deleted
}

var _ clientv3.KV = (*Store)(nil)

// New returns an empty store at revision 1, as a new etcd is.
func New() *Store { return &Store{revision: 1, named: map[string]*key{}} }

// Revision returns the store's revision.
func (s *Store) Revision() int64 { return s.revision }

// Log returns all events since the beginning, in order. It is not to be changed.
func (s *Store) Log() []Event { return s.log }

// Lookup returns a key's KeyValue now, nil if it does not exist. It is not to be changed.
func (s *Store) Lookup(name string) *mvccpb.KeyValue {
	if k := s.named[name]; k != nil {
		return k.now
	}
	return nil
}

// Scan visits the keys that begin with prefix, in order, as they are now.
func (s *Store) Scan(prefix string, visit func(kv *mvccpb.KeyValue)) {
	for _, k := range s.keys[s.first(prefix):] {
		if !strings.HasPrefix(k.name, prefix) {
			return
		}
		if k.now != nil {
			visit(k.now)
		}
	}
}

// first returns the index of the first key that is not before a name.
func (s *Store) first(name string) int {
	i, _ := slices.BinarySearchFunc(s.keys, name, func(k *key, name string) int { return strings.Compare(k.name, name) })
	return i
}

// at returns the key's KeyValue at a revision.
func (k *key) at(revision int64) *mvccpb.KeyValue {
	for _, v := range slices.Backward(k.history) {
		if v.revision <= revision {
			return v.kv
		}
	}
	return nil
}

// Do implements clientv3.KV. The whole operation is one step.
func (s *Store) Do(_ context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if err := s.check(op); err != nil {
		return clientv3.OpResponse{}, err
	}
	t := txn{s: s, revision: s.revision + 1}
	path, err := t.choose(op, nil)
	if err != nil {
		return clientv3.OpResponse{}, err
	}
	response := t.apply(op, &path)
	if t.wrote {
		s.revision = t.revision
	}
	setHeader(response, &etcdserverpb.ResponseHeader{Revision: s.revision})
	return response, nil
}

// Write puts a value as Put does, for a server whose requests are not simulated. It
// returns the revision.
func (s *Store) Write(name, value string) int64 {
	s.revision++
	t := txn{s: s, revision: s.revision}
	t.putValue(s.key(name), []byte(value))
	return s.revision
}

// setHeader puts the header on the outermost response. Those inside of a transaction
// have one that says nothing of use, as etcd's.
func setHeader(r clientv3.OpResponse, header *etcdserverpb.ResponseHeader) {
	switch {
	case r.Put() != nil:
		r.Put().Header = header
	case r.Get() != nil:
		r.Get().Header = header
	case r.Del() != nil:
		r.Del().Header = header
	case r.Txn() != nil:
		r.Txn().Header = header
	}
}

// txn is one operation being applied.
type txn struct {
	s        *Store
	revision int64
	wrote    bool
}

// choose evaluates all compares, nested ones included, and refuses reads at revisions that
// are not kept, before anything is written, as etcd does. It returns the outcomes in the
// order in which apply meets the transactions.
func (t *txn) choose(op clientv3.Op, path []bool) ([]bool, error) {
	if !op.IsTxn() {
		return path, t.readable(op)
	}
	cmps, then, otherwise := op.Txn()
	holds := !slices.ContainsFunc(cmps, func(c clientv3.Cmp) bool { return !t.s.holds(c) })
	path = append(path, holds)
	branch := otherwise
	if holds {
		branch = then
	}
	for _, inner := range branch {
		var err error
		if path, err = t.choose(inner, path); err != nil {
			return nil, err
		}
	}
	return path, nil
}

func (t *txn) readable(op clientv3.Op) error {
	switch revision := op.Rev(); {
	case !op.IsGet():
	case revision > t.s.revision:
		return rpctypes.ErrFutureRev
	case revision > 0 && revision < t.s.compacted:
		return rpctypes.ErrCompacted
	}
	return nil
}

func (t *txn) apply(op clientv3.Op, path *[]bool) clientv3.OpResponse {
	switch {
	case op.IsGet():
		return (*clientv3.GetResponse)(t.get(op)).OpResponse()
	case op.IsPut():
		return (*clientv3.PutResponse)(t.put(op)).OpResponse()
	case op.IsDelete():
		return (*clientv3.DeleteResponse)(t.delete(op)).OpResponse()
	default:
		return (*clientv3.TxnResponse)(t.txn(op, path)).OpResponse()
	}
}

func (t *txn) txn(op clientv3.Op, path *[]bool) *etcdserverpb.TxnResponse {
	_, branch, otherwise := op.Txn()
	r := &etcdserverpb.TxnResponse{Succeeded: (*path)[0]}
	if !r.Succeeded {
		branch = otherwise
	}
	*path = (*path)[1:]
	for _, inner := range branch {
		r.Responses = append(r.Responses, nested(t.apply(inner, path)))
	}
	return r
}

func nested(r clientv3.OpResponse) *etcdserverpb.ResponseOp {
	switch {
	case r.Put() != nil:
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: (*etcdserverpb.PutResponse)(r.Put())}}
	case r.Get() != nil:
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: (*etcdserverpb.RangeResponse)(r.Get())}}
	case r.Del() != nil:
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: (*etcdserverpb.DeleteRangeResponse)(r.Del())}}
	default:
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: (*etcdserverpb.TxnResponse)(r.Txn())}}
	}
}

func (t *txn) get(op clientv3.Op) *etcdserverpb.RangeResponse {
	revision := op.Rev()
	if revision <= 0 {
		revision = t.revision
	}
	r := &etcdserverpb.RangeResponse{}
	t.s.scan(op.KeyBytes(), op.RangeBytes(), revision, func(kv *mvccpb.KeyValue) {
		r.Count++
		switch {
		case op.IsCountOnly():
		case op.Limit() > 0 && int64(len(r.Kvs)) == op.Limit():
			r.More = true
		default:
			r.Kvs = append(r.Kvs, view(kv, op.IsKeysOnly()))
		}
	})
	return r
}

// view copies a key for a reader.
func view(kv *mvccpb.KeyValue, keysOnly bool) *mvccpb.KeyValue {
	c := &mvccpb.KeyValue{Key: kv.Key, CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision, Version: kv.Version}
	if !keysOnly {
		c.Value = bytes.Clone(kv.Value)
	}
	return c
}

func (t *txn) put(op clientv3.Op) *etcdserverpb.PutResponse {
	prev := t.putValue(t.s.key(string(op.KeyBytes())), bytes.Clone(op.ValueBytes()))
	r := &etcdserverpb.PutResponse{}
	if op.IsPrevKV() && prev != nil {
		r.PrevKv = view(prev, false)
	}
	return r
}

// putValue puts a value, which is the store's from then on, and returns the KeyValue before it.
func (t *txn) putValue(k *key, value []byte) (prev *mvccpb.KeyValue) {
	prev = k.now
	kv := &mvccpb.KeyValue{Key: []byte(k.name), Value: value, CreateRevision: t.revision, ModRevision: t.revision, Version: 1}
	if prev != nil {
		kv.CreateRevision, kv.Version = prev.CreateRevision, prev.Version+1
	}
	t.write(k, kv)
	return prev
}

func (t *txn) delete(op clientv3.Op) *etcdserverpb.DeleteRangeResponse {
	r := &etcdserverpb.DeleteRangeResponse{}
	var gone []*mvccpb.KeyValue
	t.s.scan(op.KeyBytes(), op.RangeBytes(), t.revision, func(kv *mvccpb.KeyValue) { gone = append(gone, kv) })
	for _, kv := range gone {
		r.Deleted++
		if op.IsPrevKV() {
			r.PrevKvs = append(r.PrevKvs, view(kv, false))
		}
		t.write(t.s.key(string(kv.Key)), nil)
	}
	return r
}

func (t *txn) write(k *key, kv *mvccpb.KeyValue) {
	t.wrote = true
	t.s.log = append(t.s.log, Event{Key: k.name, Revision: t.revision, KV: kv, Prev: k.now})
	k.now = kv
	k.history = append(k.history, version{revision: t.revision, kv: kv})
}

// key returns the key of a name, a new one if there never was one.
func (s *Store) key(name string) *key {
	if k := s.named[name]; k != nil {
		return k
	}
	k := &key{name: name}
	s.keys = slices.Insert(s.keys, s.first(k.name), k)
	s.named[k.name] = k
	return k
}

// scan visits the keys of a range as they were at a revision. No end means one key, an
// end of "\x00" all keys from the first on.
func (s *Store) scan(start, end []byte, revision int64, visit func(*mvccpb.KeyValue)) {
	if len(end) == 0 {
		if k := s.named[string(start)]; k != nil {
			if kv := k.at(revision); kv != nil {
				visit(kv)
			}
		}
		return
	}
	for _, k := range s.keys[s.first(string(start)):] {
		if (len(end) != 1 || end[0] != 0) && k.name >= string(end) {
			return
		}
		if kv := k.at(revision); kv != nil {
			visit(kv)
		}
	}
}

// holds evaluates a compare. A key that does not exist has revisions and version 0, and
// no value: a compare of its value never holds.
func (s *Store) holds(cmp clientv3.Cmp) bool {
	c := cmp.GetCompare()
	var kvs []*mvccpb.KeyValue
	s.scan(c.Key, c.RangeEnd, s.revision, func(kv *mvccpb.KeyValue) { kvs = append(kvs, kv) })
	if len(kvs) == 0 {
		if c.Target == etcdserverpb.Compare_VALUE {
			return false
		}
		kvs = []*mvccpb.KeyValue{{}}
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !result(c, order(c, kv)) })
}

// order compares the key's field with the compare's operand.
func order(c *etcdserverpb.Compare, kv *mvccpb.KeyValue) int {
	switch c.Target {
	case etcdserverpb.Compare_VERSION:
		return cmpInt(kv.Version, c.GetVersion())
	case etcdserverpb.Compare_CREATE:
		return cmpInt(kv.CreateRevision, c.GetCreateRevision())
	case etcdserverpb.Compare_MOD:
		return cmpInt(kv.ModRevision, c.GetModRevision())
	case etcdserverpb.Compare_LEASE:
		return cmpInt(kv.Lease, c.GetLease())
	default:
		return bytes.Compare(kv.Value, c.GetValue())
	}
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	default:
		return 0
	}
}

func result(c *etcdserverpb.Compare, order int) bool {
	switch c.Result {
	case etcdserverpb.Compare_EQUAL:
		return order == 0
	case etcdserverpb.Compare_NOT_EQUAL:
		return order != 0
	case etcdserverpb.Compare_GREATER:
		return order > 0
	default:
		return order < 0
	}
}
