package sim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/member"
)

var (
	errExists   = errors.New("already exists")
	errNotFound = errors.New("not found")
	errBusy     = errors.New("changed again and again")
)

// write returns the body of a client's write, nil if there is no such write. It is
// "verb resource/name". The verbs:
//
//	create, update, delete
//	stale   an update that begins with the value that a cache holds, and not with a read
//	poison  a create of an object that no codec can decode
func (p *Process) write(what string) func() error {
	verb, path, _ := strings.Cut(what, " ")
	resourceName, name, _ := strings.Cut(path, "/")
	r, ok := resourceNamed(resourceName)
	if !ok || name == "" {
		return nil
	}
	key := r.prefix + name
	if verb == "delete" {
		return func() error { return p.deleteObject(key) }
	}
	p.w.written++
	wanted := &object{data: strconv.Itoa(p.w.written), broken: verb == "poison"}
	wanted.Kind = r.kind
	if p.release.knows && p.w.written%2 == 0 {
		wanted.future = wanted.data
	}
	ctx := context.Background()
	put := func() error {
		if !p.stock {
			if err := p.member.Admit(member.Request{IsResource: true, Resource: r.gr, Verb: verb}); err != nil {
				return err
			}
		}
		store, err := p.newest(r)
		if err != nil {
			return err
		}
		for tries := 0; ; tries++ {
			switch verb {
			case "create", "poison":
				err = store.create(ctx, key, wanted)
			default:
				// On a newer store the update starts from what etcd holds.
				err = store.update(ctx, key, wanted, verb == "stale" && tries == 0)
			}
			if !errors.Is(err, agree.ErrSuperseded) || tries == maxForwards {
				return err
			}
			p.sleep(forwardWait)
			if store, err = p.newest(r); err != nil {
				return err
			}
		}
	}
	return func() error {
		err := put()
		p.w.answered(what, wanted.data, err)
		return err
	}
}

const (
	maxForwards = 3
	forwardWait = 20 * time.Millisecond
)

// store is a process's store of a resource, for one encoding, as etcd3's is made over
// the client that fence builds.
type store struct {
	p      *Process
	r      *resource
	client kubernetes.Interface
	codec  codec
}

// newest returns the store that the process built last.
func (p *Process) newest(r *resource) (store, error) {
	version := p.release.stores
	if r.custom {
		if p.handler == nil {
			return store{}, errNotServed
		}
		if apihelpers.IsCRDConditionTrue(p.handler, apiextensionsv1.Terminating) {
			return store{}, fmt.Errorf("create not allowed while custom resource definition is terminating")
		}
		version = storedBy(p.handler)
	}
	e := r.encoding(version).Sealed(p.seal)
	if p.silent || p.stock {
		unfenced := kubernetes.Client{Client: &clientv3.Client{KV: p.kv()}}
		return store{p: p, r: r, codec: codec{encoding: e, knows: p.release.knows}, client: unfenced}, nil
	}
	return store{p: p, r: r, codec: codec{encoding: e, knows: p.release.knows}, client: fence.NewClient(nil, fence.ClientConfig{
		KV: p.kv(), Permits: p.member, Resource: r.gr, Encoding: e, Prefix: kindPrefix[storageVersions], Decoder: &p.w.objects,
	})}, nil
}

func (s store) create(ctx context.Context, key string, o *object) error {
	wanted := *o
	wanted.APIVersion = string(s.codec.encoding)
	r, err := s.client.OptimisticPut(ctx, key, wanted.marshal(), 0, kubernetes.PutOptions{})
	switch {
	case err != nil:
		return err
	case !r.Succeeded:
		return errExists
	}
	return nil
}

// update is GuaranteedUpdate: it starts from the value that is read, or from the one that a cache
// holds, and again from the value that was found instead.
func (s store) update(ctx context.Context, key string, o *object, cached bool) error {
	var kv *mvccpb.KeyValue
	if cached {
		kv = s.p.w.stale(key)
	} else {
		r, err := s.p.kv().Get(ctx, key)
		if err != nil {
			return err
		}
		if len(r.Kvs) == 1 {
			kv = r.Kvs[0]
		}
	}
	for range 3 {
		if kv == nil {
			return errNotFound
		}
		decoded, _, err := s.codec.Decode(kv.Value, nil, nil)
		if err != nil {
			return err
		}
		next := *decoded.(*object)
		next.data, next.APIVersion = o.data, string(s.codec.encoding)
		if s.codec.knows {
			next.future = o.future
		}
		r, err := s.client.OptimisticPut(ctx, key, next.marshal(), kv.ModRevision, kubernetes.PutOptions{GetOnFailure: true})
		if err != nil || r.Succeeded {
			return err
		}
		kv = r.KV
	}
	return errBusy
}

// stale returns a key's KeyValue before the present one, or the present one.
func (w *World) stale(key string) *mvccpb.KeyValue {
	now := w.store.Lookup(key)
	if now == nil {
		return nil
	}
	for i := len(w.store.Log()) - 1; i >= 0; i-- {
		if e := w.store.Log()[i]; e.Key == key {
			if e.Prev != nil {
				return e.Prev
			}
			break
		}
	}
	return now
}

// deleteObject deletes an object as OptimisticDelete does. It carries no fence.
func (p *Process) deleteObject(key string) error {
	ctx := context.Background()
	r, err := p.kv().Get(ctx, key)
	if err != nil {
		return err
	}
	if len(r.Kvs) == 0 {
		return errNotFound
	}
	answer, err := p.kv().Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", r.Kvs[0].ModRevision)).Then(clientv3.OpDelete(key)).Commit()
	if err == nil && !answer.Succeeded {
		return errBusy
	}
	return err
}
