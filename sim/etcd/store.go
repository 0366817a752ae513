// Package etcd is a simulated etcd: one linearizable key-value store in memory, with
// transactions, revisions, reads of the past and a log of events. Its one conformance
// suite also runs against a real embedded etcd. It has no locks: a simulated world is
// single-threaded. Of etcd it leaves out compaction, leases, sorting, filters and auth, and
// of transactions all that the protocol does not ask for: those it refuses.
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
	revision int64
	keys     []*key // every key that ever was, sorted
	named    map[string]*key
	log      []Event
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

var _ Doer = (*Store)(nil)

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

// Do implements Doer. The whole operation is one step.
func (s *Store) Do(_ context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	if err := check(op); err != nil {
		return clientv3.OpResponse{}, err
	}
	ops, succeeded := []clientv3.Op{op}, false
	if op.IsTxn() {
		cmps, then, otherwise := op.Txn()
		succeeded = !slices.ContainsFunc(cmps, func(c clientv3.Cmp) bool { return !s.holds(c) })
		if ops = otherwise; succeeded {
			ops = then
		}
	}
	for _, one := range ops {
		if one.IsGet() && one.Rev() > s.revision {
			return clientv3.OpResponse{}, rpctypes.ErrFutureRev
		}
	}
	t := txn{s: s, revision: s.revision + 1}
	var responses []*etcdserverpb.ResponseOp
	for _, one := range ops {
		responses = append(responses, t.apply(one))
	}
	if t.wrote {
		s.revision = t.revision
	}
	header := &etcdserverpb.ResponseHeader{Revision: s.revision}
	if op.IsTxn() {
		r := &clientv3.TxnResponse{Header: header, Succeeded: succeeded, Responses: responses}
		return r.OpResponse(), nil
	}
	if r := responses[0].GetResponsePut(); r != nil {
		r.Header = header
		return (*clientv3.PutResponse)(r).OpResponse(), nil
	}
	if r := responses[0].GetResponseRange(); r != nil {
		r.Header = header
		return (*clientv3.GetResponse)(r).OpResponse(), nil
	}
	r := responses[0].GetResponseDeleteRange()
	r.Header = header
	return (*clientv3.DeleteResponse)(r).OpResponse(), nil
}

// holds says whether a compare of a ModRevision does; that of a key that does not exist is 0.
func (s *Store) holds(cmp clientv3.Cmp) bool {
	return s.Lookup(string(cmp.KeyBytes())).GetModRevision() == cmp.GetCompare().GetModRevision()
}

// Write puts a value as Put does, for a server whose requests are not simulated. It
// returns the revision.
func (s *Store) Write(name, value string) int64 {
	s.revision++
	t := txn{s: s, revision: s.revision}
	t.putValue(s.key(name), []byte(value))
	return s.revision
}

// txn is one operation being applied.
type txn struct {
	s        *Store
	revision int64
	wrote    bool
}

func (t *txn) apply(op clientv3.Op) *etcdserverpb.ResponseOp {
	switch {
	case op.IsGet():
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: t.get(op)}}
	case op.IsPut():
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: t.put(op)}}
	default:
		return &etcdserverpb.ResponseOp{Response: &etcdserverpb.ResponseOp_ResponseDeleteRange{ResponseDeleteRange: t.delete(op)}}
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
