package object

import (
	"bytes"
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// Answers to clients.
var (
	ErrExists   = errors.New("already exists")
	ErrNotFound = errors.New("not found")
	ErrBusy     = errors.New("changed again and again")
)

// Store is a server's store of a resource, for one encoding, as etcd3's is made over the client
// that fence builds.
type Store struct {
	KV     clientv3.KV
	Client kubernetes.Interface
	Codec  Codec
}

// Create does what etcd3's store does for a new object.
func (s Store) Create(ctx context.Context, key string, o *Object) error {
	wanted := *o
	wanted.APIVersion = string(s.Codec.Encoding)
	r, err := s.Client.OptimisticPut(ctx, key, wanted.marshal(), 0, kubernetes.PutOptions{})
	switch {
	case err != nil:
		return err
	case !r.Succeeded:
		return ErrExists
	}
	return nil
}

// Update is GuaranteedUpdate: it starts from the value that is read, or from a cached one, and again from the value
// that was found instead. Without o it is an empty patch, which writes only if the stored value is not what this store
// would write.
func (s Store) Update(ctx context.Context, key string, o *Object, cached func(key string) *mvccpb.KeyValue) error {
	var kv *mvccpb.KeyValue
	if cached != nil {
		kv = cached(key)
	} else {
		r, err := s.KV.Get(ctx, key)
		if err != nil {
			return err
		}
		if len(r.Kvs) == 1 {
			kv = r.Kvs[0]
		}
	}
	for range 3 {
		if kv == nil {
			return ErrNotFound
		}
		decoded, _, err := s.Codec.Decode(kv.Value, nil, nil)
		if err != nil {
			return err
		}
		next := *decoded.(*Object)
		next.APIVersion = string(s.Codec.Encoding)
		switch {
		case o == nil && bytes.Equal(next.marshal(), kv.Value):
			return nil
		case o == nil:
		default:
			next.Data = o.Data
			if s.Codec.Knows {
				next.Future = o.Future
			}
		}
		r, err := s.Client.OptimisticPut(ctx, key, next.marshal(), kv.ModRevision, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil || r.Succeeded {
			return err
		}
		kv = r.KV
	}
	return ErrBusy
}

// Delete deletes an object as OptimisticDelete does. It carries no fence.
func Delete(ctx context.Context, kv clientv3.KV, key string) error {
	r, err := kv.Get(ctx, key)
	if err != nil {
		return err
	}
	if len(r.Kvs) == 0 {
		return ErrNotFound
	}
	answer, err := kv.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", r.Kvs[0].ModRevision)).Then(clientv3.OpDelete(key)).Commit()
	if err == nil && !answer.Succeeded {
		return ErrBusy
	}
	return err
}
