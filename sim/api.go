package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// kind is a kind of the protocol's own API objects.
type kind uint8

const (
	storageVersions kind = iota
	leases
	definitions
	states
	migrations
	kinds // how many there are
)

var kindPrefix = [kinds]string{"/registry/storageversions/", "/registry/leases/", "/registry/definitions/", "/registry/states/", "/registry/migrations/"}

var kindResource = [kinds]schema.GroupResource{
	storageversion.Resource,
	{Group: coordinationv1.GroupName, Resource: "leases"},
	{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"},
	migrationv1alpha1.StorageStates,
	migrationv1alpha1.StorageVersionMigrations,
}

// kindOf returns the kind of an object or a list, kinds if it is not simulated.
func kindOf(obj runtime.Object) kind {
	switch obj.(type) {
	case *v1alpha1.StorageVersion, *v1alpha1.StorageVersionList:
		return storageVersions
	case *coordinationv1.Lease, *coordinationv1.LeaseList:
		return leases
	case *apiextensionsv1.CustomResourceDefinition, *apiextensionsv1.CustomResourceDefinitionList:
		return definitions
	case *migrationv1alpha1.StorageState, *migrationv1alpha1.StorageStateList:
		return states
	case *migrationv1alpha1.StorageVersionMigration, *migrationv1alpha1.StorageVersionMigrationList:
		return migrations
	}
	return kinds
}

// keyOf returns the etcd key of an API object.
func keyOf(k kind, name string) string { return kindPrefix[k] + name }

// objects are the API objects that were ever stored. A stored value is the number of one
// of them: an object that is read is copied from there. None is changed after it was stored.
type objects struct{ all []client.Object }

var _ runtime.Decoder = (*objects)(nil)

func (o *objects) seal(obj client.Object) string {
	o.all = append(o.all, obj)
	return strconv.Itoa(len(o.all) - 1)
}

func (o *objects) open(value []byte) (client.Object, error) {
	i := 0
	for _, digit := range value {
		if i = 10*i + int(digit-'0'); digit < '0' || digit > '9' || i >= len(o.all) {
			return nil, fmt.Errorf("%q is no API object", value)
		}
	}
	if len(value) == 0 {
		return nil, errors.New("an empty value is no API object")
	}
	return o.all[i], nil
}

// Decode implements runtime.Decoder: fence reads stored StorageVersions with it.
func (o *objects) Decode(value []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, err := o.open(value)
	return obj, nil, err
}

// look returns an API object as it is stored, nil if it does not exist. It is not to be
// changed.
func (w *World) look(k kind, name string) client.Object {
	for _, stored := range w.shelf(k) {
		if stored.name == name {
			return stored.obj
		}
	}
	return nil
}

// view returns the API object of a stored value, nil of none.
func (w *World) view(kv *mvccpb.KeyValue) client.Object {
	if kv == nil {
		return nil
	}
	obj, err := w.objects.open(kv.Value)
	if err != nil {
		panic(err) // nobody else writes below these prefixes
	}
	return obj
}

// shelved is an API object on its kind's shelf.
type shelved struct {
	name string
	obj  client.Object
}

// shelf returns the objects of a kind as they are stored now, by name. It holds until the
// next write.
func (w *World) shelf(k kind) []shelved {
	log := w.store.Log()
	for ; w.shelvedTo < len(log); w.shelvedTo++ {
		e := log[w.shelvedTo]
		for k := range kinds {
			if name, is := strings.CutPrefix(e.Key, kindPrefix[k]); is {
				w.reshelve(k, name, w.view(e.KV))
				break
			}
		}
	}
	return w.shelves[k]
}

func (w *World) reshelve(k kind, name string, obj client.Object) {
	shelf := &w.shelves[k]
	i, found := slices.BinarySearchFunc(*shelf, name, func(s shelved, name string) int { return strings.Compare(s.name, name) })
	switch {
	case obj == nil && found:
		*shelf = slices.Delete(*shelf, i, i+1)
	case obj == nil: // it came and went
	case found:
		(*shelf)[i].obj = obj
	default:
		*shelf = slices.Insert(*shelf, i, shelved{name, obj})
	}
}

func (w *World) lookStorageVersion(r *object.Resource) *v1alpha1.StorageVersion {
	sv, _ := w.look(storageVersions, r.Version).(*v1alpha1.StorageVersion)
	return sv
}

func (w *World) lookState(r *object.Resource) *migrationv1alpha1.StorageState {
	state, _ := w.look(states, r.State).(*migrationv1alpha1.StorageState)
	return state
}

func (w *World) lookDefinition() *apiextensionsv1.CustomResourceDefinition {
	crd, _ := w.look(definitions, object.Widgets.Full).(*apiextensionsv1.CustomResourceDefinition)
	return crd
}

// The functions below are an API server's, each one atomic: their reads and their
// writes belong to one transaction on the object's key. An object that is written is the
// world's from then on, as it is stored.

func (w *World) create(stored client.Object, now time.Time) error {
	k := kindOf(stored)
	if w.look(k, stored.GetName()) != nil {
		return apierrors.NewAlreadyExists(kindResource[k], stored.GetName())
	}
	w.lastUID++
	stored.SetUID(types.UID("u" + strconv.Itoa(w.lastUID)))
	stored.SetCreationTimestamp(metav1.NewTime(now.Truncate(time.Second)))
	stored.SetGeneration(1)
	switch s := stored.(type) {
	case *v1alpha1.StorageVersion:
		storageversion.PrepareCreate(s)
		if err := valid(s); err != nil {
			return err
		}
	case *apiextensionsv1.CustomResourceDefinition:
		s.Status.StoredVersions = []string{storedBy(s)}
	case *migrationv1alpha1.StorageState:
		s.Status = migrationv1alpha1.StorageStateStatus{}
	case *migrationv1alpha1.StorageVersionMigration:
		s.Status = migrationv1alpha1.StorageVersionMigrationStatus{}
	}
	return w.put(k, stored)
}

func storedBy(crd *apiextensionsv1.CustomResourceDefinition) string {
	for _, v := range crd.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// update writes everything but the status where there is a status subresource, and
// status the opposite.
func (w *World) update(stored client.Object, status bool) error {
	k := kindOf(stored)
	old := w.look(k, stored.GetName())
	if old == nil {
		return apierrors.NewNotFound(kindResource[k], stored.GetName())
	}
	if err := unchanged(k, old, stored.GetUID(), stored.GetResourceVersion()); err != nil {
		return err
	}
	if err := prepare(stored, old, status); err != nil {
		return err
	}
	stored.SetUID(old.GetUID())
	stored.SetCreationTimestamp(old.GetCreationTimestamp())
	return w.put(k, stored)
}

// unchanged is optimistic concurrency.
func unchanged(k kind, old client.Object, uid types.UID, resourceVersion string) error {
	switch {
	case uid != "" && uid != old.GetUID():
		return apierrors.NewConflict(kindResource[k], old.GetName(), errors.New("the UID in the precondition is not the object's"))
	case resourceVersion != "" && resourceVersion != old.GetResourceVersion():
		return apierrors.NewConflict(kindResource[k], old.GetName(), errors.New("the object has been modified"))
	}
	return nil
}

// prepare is the strategies' part of an update. The stored object stays as it is:
// the new object may share with the old one the parts in which neither is changed.
func prepare(obj, old client.Object, status bool) error {
	switch s := obj.(type) {
	case *v1alpha1.StorageVersion:
		before := old.(*v1alpha1.StorageVersion)
		if status {
			storageversion.PrepareStatusUpdate(s, before)
		} else {
			storageversion.PrepareUpdate(s, before)
		}
		return valid(s)
	case *migrationv1alpha1.StorageState:
		before := old.(*migrationv1alpha1.StorageState)
		if status {
			s.ObjectMeta, s.Spec = before.ObjectMeta, before.Spec
		} else {
			s.Status = before.Status
		}
		s.Status.LastHeartbeatTime = seconds(s.Status.LastHeartbeatTime)
	case *migrationv1alpha1.StorageVersionMigration:
		before := old.(*migrationv1alpha1.StorageVersionMigration)
		if !status {
			s.Status, s.Spec = before.Status, before.Spec
			return nil
		}
		s.ObjectMeta, s.Spec = before.ObjectMeta, before.Spec
		for i := range s.Status.Conditions {
			s.Status.Conditions[i].LastUpdateTime = seconds(s.Status.Conditions[i].LastUpdateTime)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		return prepareDefinition(s, old.(*apiextensionsv1.CustomResourceDefinition), status)
	}
	return nil
}

// prepareDefinition does as apiextensions' strategies: the storage version is always
// among the stored versions, and no stored version may be missing from the spec.
func prepareDefinition(crd, before *apiextensionsv1.CustomResourceDefinition, status bool) error {
	if status {
		crd.ObjectMeta, crd.Spec = before.ObjectMeta, before.Spec
	} else {
		crd.Status = before.Status
		crd.Generation = before.Generation
		if storedBy(crd) != storedBy(before) {
			crd.Generation++
		}
		if now := storedBy(crd); !slices.Contains(crd.Status.StoredVersions, now) {
			crd.Status.StoredVersions = append(slices.Clone(crd.Status.StoredVersions), now)
		}
	}
	if !slices.Contains(crd.Status.StoredVersions, storedBy(crd)) {
		return apierrors.NewInvalid(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition").GroupKind(), crd.Name, nil)
	}
	return nil
}

// seconds is a time as it is after it was stored: in whole seconds.
func seconds(t metav1.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

// valid is the part of a StorageVersion's validation that the protocol leans on.
func valid(sv *v1alpha1.StorageVersion) error {
	reports := storageversion.Reports(sv)
	err := agree.Validate(reports)
	common, agreed := agree.Common(reports)
	if stated, says := storageversion.AgreementOn(sv, reports); err == nil && (says != agreed || stated != common) {
		err = fmt.Errorf("commonEncodingVersion is %q, and reports make it %q", stated, common)
	}
	if err != nil {
		return apierrors.NewInvalid(v1alpha1.SchemeGroupVersion.WithKind("StorageVersion").GroupKind(), sv.Name, nil)
	}
	return nil
}

// put stores an object, which is not to be changed any more.
func (w *World) put(k kind, stored client.Object) error {
	if w.etcd == etcdFull {
		return errFull
	}
	revision := w.store.Write(keyOf(k, stored.GetName()), w.objects.seal(stored))
	stored.SetResourceVersion(strconv.FormatInt(revision, 10))
	return nil
}

func (w *World) delete(k kind, name string, preconditions *metav1.Preconditions) error {
	old := w.look(k, name)
	if old == nil {
		return apierrors.NewNotFound(kindResource[k], name)
	}
	if preconditions != nil {
		var uid types.UID
		var resourceVersion string
		if preconditions.UID != nil {
			uid = *preconditions.UID
		}
		if preconditions.ResourceVersion != nil {
			resourceVersion = *preconditions.ResourceVersion
		}
		if err := unchanged(k, old, uid, resourceVersion); err != nil {
			return err
		}
	}
	_, err := w.store.Delete(everyContext, keyOf(k, name))
	return err
}

// get copies the stored object into obj.
func (w *World) get(k kind, name string, obj client.Object) error {
	stored := w.look(k, name)
	if stored == nil {
		return apierrors.NewNotFound(kindResource[k], name)
	}
	copyInto(stored, obj)
	return nil
}

// list fills a list with copies of all objects that have the labels wanted.
func (w *World) list(k kind, list client.ObjectList, options *client.ListOptions) {
	list.SetResourceVersion(strconv.FormatInt(w.store.Revision(), 10))
	shelf := w.shelf(k)
	var parts []leaseParts
	for i, stored := range shelf {
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labelsOf(stored.obj)) {
			continue
		}
		room := len(shelf) - i
		switch l := list.(type) {
		case *v1alpha1.StorageVersionList:
			copyStorageVersion(stored.obj.(*v1alpha1.StorageVersion), next(&l.Items, room))
		case *coordinationv1.LeaseList:
			copyLease(stored.obj.(*coordinationv1.Lease), next(&l.Items, room), next(&parts, room))
		case *apiextensionsv1.CustomResourceDefinitionList:
			copyDefinition(stored.obj.(*apiextensionsv1.CustomResourceDefinition), next(&l.Items, room))
		case *migrationv1alpha1.StorageStateList:
			copyState(stored.obj.(*migrationv1alpha1.StorageState), next(&l.Items, room))
		case *migrationv1alpha1.StorageVersionMigrationList:
			copyMigration(stored.obj.(*migrationv1alpha1.StorageVersionMigration), next(&l.Items, room))
		}
	}
}

// next returns a new last item. The first one makes room for so many.
func next[T any](items *[]T, room int) *T {
	if *items == nil {
		*items = make([]T, 0, room)
	}
	*items = (*items)[:len(*items)+1]
	return &(*items)[len(*items)-1]
}

// listSeen fills a list with the migrations as so many of their events have left them.
func (w *World) listSeen(list *migrationv1alpha1.StorageVersionMigrationList, events int) {
	var names []string
	var seen []*migrationv1alpha1.StorageVersionMigration
	for _, e := range slices.Backward(w.changes[migrations][:events]) {
		name := cmp.Or(e.obj, e.last).GetName()
		if slices.Contains(names, name) {
			continue // a later event says what became of it
		}
		names = append(names, name)
		if e.obj != nil {
			seen = append(seen, e.obj.(*migrationv1alpha1.StorageVersionMigration))
		}
	}
	slices.SortFunc(seen, func(a, b *migrationv1alpha1.StorageVersionMigration) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range seen {
		copyMigration(m, next(&list.Items, len(seen)))
	}
}

// names are an object's labels as a selector asks for them.
type names map[string]string

func labelsOf(obj client.Object) names { return obj.GetLabels() }

// Has implements labels.Labels.
func (n names) Has(label string) bool { _, ok := n[label]; return ok }

// Get implements labels.Labels.
func (n names) Get(label string) string { return n[label] }

// Lookup implements labels.Labels.
func (n names) Lookup(label string) (string, bool) { v, ok := n[label]; return v, ok }

// apiClient is a process's client of the API: every call is one request of the task that
// makes it.
type apiClient struct {
	client.WithWatch // nil, for methods that are not used
	p                *Process
}

// Get implements client.Reader.
func (c apiClient) Get(ctx context.Context, key client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	k := kindOf(obj)
	return c.p.call(ctx, &request{verb: "get", kind: k, name: key.Name, obj: obj, apply: applyGet})
}

// List implements client.Reader.
func (c apiClient) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	k := kindOf(list)
	r := &request{verb: "list", kind: k, obj: list, options: everything, apply: applyList}
	if len(opts) > 0 {
		r.options = &client.ListOptions{}
	}
	for _, o := range opts {
		o.ApplyToList(r.options)
	}
	return c.p.call(ctx, r)
}

func applyGet(w *World, r *request) error { return w.get(r.kind, r.name, r.obj.(client.Object)) }

func applyList(w *World, r *request) error {
	if r.kind == migrations && w.config.Lag > 0 && r.role == script.Triggering {
		if seen := r.by.cursors[script.SeeMigrations]; seen >= 0 {
			w.listSeen(r.obj.(*migrationv1alpha1.StorageVersionMigrationList), seen)
			return nil
		}
	}
	w.list(r.kind, r.obj.(client.ObjectList), r.options)
	return nil
}

func applyCreate(w *World, r *request) error {
	return w.create(r.obj.(client.Object), r.by.clock.Now())
}

func applyUpdate(w *World, r *request) error { return w.update(r.obj.(client.Object), false) }

func applyUpdateStatus(w *World, r *request) error { return w.update(r.obj.(client.Object), true) }

// Create implements client.Writer.
func (c apiClient) Create(ctx context.Context, obj client.Object, _ ...client.CreateOption) error {
	if _, event := obj.(*corev1.Event); event {
		return nil // a courtesy that nothing depends on
	}
	k := kindOf(obj)
	sent := copyOf(obj)
	if sent == nil {
		return fmt.Errorf("the simulated API does not store %T", obj)
	}
	return c.p.send(ctx, &request{verb: "create", kind: k, name: obj.GetName(), obj: sent, apply: applyCreate}, obj)
}

// Update implements client.Writer.
func (c apiClient) Update(ctx context.Context, obj client.Object, _ ...client.UpdateOption) error {
	k := kindOf(obj)
	return c.p.send(ctx, &request{verb: "update", kind: k, name: obj.GetName(), obj: copyOf(obj), apply: applyUpdate}, obj)
}

// Delete implements client.Writer.
func (c apiClient) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	k := kindOf(obj)
	options := &client.DeleteOptions{}
	for _, o := range opts {
		o.ApplyToDelete(options)
	}
	name, preconditions := obj.GetName(), options.Preconditions.DeepCopy()
	return c.p.call(ctx, &request{verb: "delete", kind: k, name: name, apply: func(w *World, _ *request) error {
		return w.delete(k, name, preconditions)
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
	k := kindOf(obj)
	return s.c.p.send(ctx, &request{verb: "update status", kind: k, name: obj.GetName(), obj: copyOf(obj), apply: applyUpdateStatus}, obj)
}

// send is call for requests that answer with the object as it was stored, which the one
// sent is from then on.
func (p *Process) send(ctx context.Context, r *request, obj client.Object) error {
	if err := p.call(ctx, r); err != nil {
		return err
	}
	copyInto(r.obj.(client.Object), obj)
	return nil
}

// etcdDoer is a process's connection to etcd.
type etcdDoer struct{ p *Process }

// Do implements etcd.Doer.
func (d etcdDoer) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	var response clientv3.OpResponse
	err := d.p.call(ctx, &request{verb: verbOf(op), kind: kinds, key: keyIn(op), apply: func(w *World, r *request) error {
		if w.etcd == etcdFull && !op.IsGet() && !op.IsDelete() {
			return errFull
		}
		var err error
		response, err = w.store.Do(everyContext, op)
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
