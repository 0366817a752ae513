package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// everything is a list without a selector.
var everything = &client.ListOptions{}

// apiClient is a process's client of the API: every call is one request of the task that
// makes it.
type apiClient struct {
	client.WithWatch // nil, for methods that are not used
	p                *Process
	to               *World // nil: the process's own
}

func (c apiClient) call(ctx context.Context, r *request) error {
	r.to = c.to
	return c.p.call(ctx, r)
}

// Get implements client.Reader.
func (c apiClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	k := registry.KindOf(obj)
	return c.call(ctx, &request{verb: "get", kind: k, name: key.Name, obj: obj, apply: applyGet})
}

// List implements client.Reader.
func (c apiClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	k := registry.KindOf(list)
	r := &request{verb: "list", kind: k, obj: list, options: everything, apply: applyList}
	if len(opts) > 0 {
		r.options = &client.ListOptions{}
	}
	for _, o := range opts {
		o.ApplyToList(r.options)
	}
	return c.call(ctx, r)
}

func applyGet(w *World, r *request) error { return w.api.Get(r.kind, r.name, r.obj.(client.Object)) }

func applyList(w *World, r *request) error {
	if r.kind == registry.Migrations && w.config.Lag > 0 && r.Role == script.Triggering {
		if seen := r.sender.cursors[script.SeeMigrations]; seen >= 0 {
			w.api.ListSeen(r.obj.(*migrationv1alpha1.StorageVersionMigrationList), seen)
			return nil
		}
	}
	w.api.List(r.kind, r.obj.(client.ObjectList), r.options)
	return nil
}

func applyCreate(w *World, r *request) error {
	return w.api.Create(r.obj.(client.Object), r.sender.clock.Now())
}

// applyTry is a create that is not stored, of a StorageVersion.
func applyTry(_ *World, r *request) error {
	storageversion.PrepareCreate(r.obj.(*v1alpha1.StorageVersion))
	return nil
}

func applyUpdate(w *World, r *request) error { return w.api.Update(r.obj.(client.Object), false) }

func applyUpdateStatus(w *World, r *request) error { return w.api.Update(r.obj.(client.Object), true) }

// Create implements client.Writer.
func (c apiClient) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	if _, event := obj.(*corev1.Event); event {
		return nil // a courtesy that nothing depends on
	}
	k := registry.KindOf(obj)
	sent := registry.CopyOf(obj)
	if sent == nil {
		return fmt.Errorf("the simulated API does not store %T", obj)
	}
	r := &request{verb: "create", kind: k, name: obj.GetName(), obj: sent, apply: applyCreate}
	if slices.Contains(opts, client.CreateOption(client.DryRunAll)) {
		r.apply = applyTry
	}
	return c.send(ctx, r, obj)
}

// Update implements client.Writer.
func (c apiClient) Update(ctx context.Context, obj client.Object, _ ...client.UpdateOption) error {
	k := registry.KindOf(obj)
	return c.send(ctx, &request{verb: "update", kind: k, name: obj.GetName(), obj: registry.CopyOf(obj), apply: applyUpdate}, obj)
}

// Delete implements client.Writer.
func (c apiClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	k := registry.KindOf(obj)
	options := &client.DeleteOptions{}
	for _, o := range opts {
		o.ApplyToDelete(options)
	}
	name, preconditions := obj.GetName(), options.Preconditions.DeepCopy()
	return c.call(ctx, &request{verb: "delete", kind: k, name: name, apply: func(w *World, _ *request) error {
		return w.api.Delete(k, name, preconditions)
	}})
}

// Status implements client.StatusClient.
func (c apiClient) Status() client.SubResourceWriter { return statusWriter{c: c} }

type statusWriter struct {
	client.SubResourceWriter // nil, for methods that are not used
	c                        apiClient
}

// Update implements client.SubResourceWriter.
func (s statusWriter) Update(ctx context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	k := registry.KindOf(obj)
	return s.c.send(ctx, &request{verb: "update status", kind: k, name: obj.GetName(), obj: registry.CopyOf(obj), apply: applyUpdateStatus}, obj)
}

// send is call for requests that answer with the object as it was stored, which the one
// sent is from then on.
func (c apiClient) send(ctx context.Context, r *request, obj client.Object) error {
	if err := c.call(ctx, r); err != nil {
		return err
	}
	registry.CopyInto(r.obj.(client.Object), obj)
	return nil
}

// etcdDoer is a process's connection to etcd.
type etcdDoer struct{ p *Process }

// Do implements etcd.Doer.
func (d etcdDoer) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	var response clientv3.OpResponse
	err := d.p.call(ctx, &request{verb: verbOf(op), kind: registry.Kinds, key: keyIn(op), apply: func(w *World, r *request) error {
		if w.etcd == etcdFull && !op.IsGet() && !op.IsDelete() {
			return registry.ErrFull
		}
		var err error
		response, err = w.store.Do(context.Background(), op)
		r.refused = err == nil && op.IsTxn() && !response.Txn().Succeeded
		return err
	}})
	return response, err
}

func verbOf(op clientv3.Op) string {
	switch {
	case op.IsGet():
		return "range"
	case op.IsDelete():
		return "delete"
	case op.IsPut():
		return "put"
	default:
		return "txn"
	}
}

// keyIn names the key, or the keys, that an operation is about.
func keyIn(op clientv3.Op) string {
	if !op.IsTxn() {
		key := strings.TrimPrefix(string(op.KeyBytes()), "/registry/")
		if before, next := strings.CutSuffix(key, "\x00"); next {
			return "after " + before
		}
		return key
	}
	_, then, _ := op.Txn()
	var keys []string
	for _, inner := range then {
		keys = append(keys, keyIn(inner))
	}
	return strings.Join(keys, ",")
}
