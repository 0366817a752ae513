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
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
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
	r, ok := object.Named(resourceName)
	if !ok || name == "" {
		return nil
	}
	key := r.Prefix + name
	if verb == "delete" {
		return func() error { return object.Delete(context.Background(), p.kv(), key) }
	}
	p.w.written++
	wanted := &object.Object{Data: strconv.Itoa(p.w.written), Broken: verb == "poison"}
	wanted.Kind = r.Kind
	if p.Release.Knows && p.w.written%2 == 0 {
		wanted.Future = wanted.Data
	}
	ctx := context.Background()
	put := func() error {
		if err := p.admit(r, verb); err != nil {
			return err
		}
		store, err := p.newest(r)
		if err != nil {
			return err
		}
		for tries := 0; ; tries++ {
			switch verb {
			case "create", "poison":
				err = store.Create(ctx, key, wanted)
			default:
				// On a newer store the update starts from what etcd holds.
				var cached func(key string) *mvccpb.KeyValue
				if verb == "stale" && tries == 0 {
					cached = p.w.stale
				}
				err = store.Update(ctx, key, wanted, cached)
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
		p.w.checker.Answered(what, wanted.Data, err)
		return err
	}
}

// admit is the gate.
func (p *Process) admit(r *object.Resource, verb string) error {
	if p.Stock {
		return nil
	}
	if err := p.member.Admit(member.Request{IsResource: true, Resource: r.GroupResource, Verb: verb}); err != nil || p.replica == nil {
		return err
	}
	return p.replica.host.Admit(context.Background(), r.GroupResource)
}

const (
	maxForwards = 3
	forwardWait = 20 * time.Millisecond
)

// newest returns the store that the process built last.
func (p *Process) newest(r *object.Resource) (object.Store, error) {
	version := p.Release.Stores
	if r.Custom {
		if p.handler == nil {
			return object.Store{}, errNotServed
		}
		if apihelpers.IsCRDConditionTrue(p.handler, apiextensionsv1.Terminating) {
			return object.Store{}, fmt.Errorf("create not allowed while custom resource definition is terminating")
		}
		version = registry.StoredBy(p.handler)
	}
	e := r.Encoding(version).Sealed(p.seal)
	c := object.Codec{Encoding: e, Knows: p.Release.Knows}
	if p.Silent || p.Stock {
		unfenced := kubernetes.Client{Client: &clientv3.Client{KV: p.kv()}}
		return object.Store{KV: p.kv(), Codec: c, Client: unfenced}, nil
	}
	var permits fence.Permits = p.member
	if p.replica != nil {
		permits = p.replica.host
	}
	return object.Store{KV: p.kv(), Codec: c, Client: fence.NewClient(nil, fence.ClientConfig{
		KV: p.kv(), Permits: permits, Resource: r.GroupResource, Encoding: e, Prefix: registry.StorageVersions.Prefix(), Decoder: p.w.api.Decoder(),
	})}, nil
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
