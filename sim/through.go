package sim

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// through rewrites the objects of an aggregated API for a server of the host: it asks the replicas for the objects and for an
// empty patch of each, as package migrate/api does.
type through struct{ p *Process }

var _ claim.Rewriter = through{}

// elsewhere is claim.Config.Elsewhere: the replicas serve things.
func elsewhere(_ context.Context, gvr schema.GroupVersionResource) (string, error) {
	if gvr.GroupResource() != object.Things.GroupResource {
		return "", nil
	}
	return "the Service of the replicas", nil
}

// Rewrite implements claim.Rewriter.
func (t through) Rewrite(ctx context.Context, _ claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	guest := t.p.w.guest
	var keys []string
	if err := t.p.call(ctx, &request{verb: "list", kind: registry.Kinds, name: object.Things.Name, apply: func(*World, *request) error {
		if guest.answering() == nil {
			return errNotServed
		}
		guest.store.Scan(object.Things.Prefix, func(kv *mvccpb.KeyValue) { keys = append(keys, string(kv.Key)) })
		return nil
	}}); err != nil {
		return claim.Result{}, err
	}
	done := claim.Progress{Total: int64(len(keys))}
	for _, key := range keys {
		if err := t.patch(ctx, key); err != nil && !errors.Is(err, object.ErrNotFound) {
			return claim.Result{}, err
		}
		done.Done++
		progress(done)
	}
	return claim.Result{Progress: done}, nil
}

// patch makes a replica rewrite an object.
func (t through) patch(ctx context.Context, key string) error {
	p := t.p.w.guest.answering()
	if p == nil {
		return errNotServed
	}
	answer := errNoAnswer // if the replica crashes
	patch := p.spawn(script.Patching, strings.TrimPrefix(key, object.Things.Prefix), func() error {
		answer = p.patch(key)
		return answer
	})
	p.w.resume(patch)
	t.p.await(func() bool { return patch.ended })
	if err := ctx.Err(); err != nil {
		return err
	}
	return answer
}

// patch is an empty patch of a thing.
func (p *Process) patch(key string) error {
	if err := p.admit(object.Things, "patch"); err != nil {
		return err
	}
	store, err := p.newest(object.Things)
	if err != nil {
		return err
	}
	return store.Update(context.Background(), key, nil, nil)
}

// answering returns a replica that can take a patch from the host, a different one each time, nil if there is none.
func (w *World) answering() *Process {
	for range w.slots {
		w.asked++
		if p := w.slots[w.asked%len(w.slots)]; p != nil && !p.gone && !p.paused && !p.replica.cut && p.tasks[script.Patching] == nil {
			return p
		}
	}
	return nil
}

// finishPatches runs the patches that are under way for a host to their ends. It returns false if none of them has ended.
func (w *World) finishPatches() (some bool) {
	if w.guest == nil {
		return false
	}
	for _, p := range w.guest.slots {
		if p == nil || p.tasks[script.Patching] == nil {
			continue
		}
		patch := p.tasks[script.Patching]
		w.guest.finish(patch)
		some = some || patch.ended
	}
	return some
}
