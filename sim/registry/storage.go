// Package registry is the storage of simulated API servers: the objects of the protocol's own API
// (StorageVersions, Leases, definitions, StorageStates and migrations) in a simulated etcd, with what
// the strategies of their kinds do before they are stored, and with the events that watches see.
package registry

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
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/object"
)

// ErrFull is etcd's answer to a put that it has no space for.
var ErrFull = errors.New("etcdserver: mvcc: database space exceeded")

// Storage holds API objects. Each of its functions is atomic: their reads and their writes belong to
// one transaction on the object's key.
// An object that is written is the storage's from then on, as it is stored.
type Storage struct {
	store *etcd.Store
	// full says whether etcd takes no puts.
	full    func() bool
	objects objects
	// LastUID counts the objects that were made.
	LastUID int
	// shelves are the stored API objects by kind and name, as of a position in the store's log.
	shelves   [Kinds][]Stored
	shelvedTo int
	// Changes are the events of the API objects, by kind.
	Changes [Kinds][]Change
}

// New returns the storage of API servers whose etcd is store.
func New(store *etcd.Store, full func() bool) *Storage {
	return &Storage{store: store, full: full}
}

// objects are the API objects that were ever stored. A stored value is the index of one of them, and a read copies
// that object. Objects are never changed after they were stored.
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

// Decoder returns a decoder of stored values.
func (s *Storage) Decoder() runtime.Decoder { return &s.objects }

// Decode implements runtime.Decoder: fence reads stored StorageVersions with it.
func (o *objects) Decode(value []byte, _ *schema.GroupVersionKind, _ runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	obj, err := o.open(value)
	return obj, nil, err
}

// Look returns an API object as it is stored, nil if it does not exist. It is not to be
// changed.
func (s *Storage) Look(k Kind, name string) client.Object {
	for _, stored := range s.Shelf(k) {
		if stored.Name == name {
			return stored.Object
		}
	}
	return nil
}

// View returns the API object of a stored value, nil of none.
func (s *Storage) View(kv *mvccpb.KeyValue) client.Object {
	if kv == nil {
		return nil
	}
	obj, err := s.objects.open(kv.Value)
	if err != nil {
		panic(err) // nobody else writes below these prefixes
	}
	return obj
}

// Stored is an API object on its kind's shelf.
type Stored struct {
	Name   string
	Object client.Object
}

// Shelf returns the objects of a kind as they are stored now, by name. It holds until the
// next write.
func (s *Storage) Shelf(k Kind) []Stored {
	log := s.store.Log()
	for ; s.shelvedTo < len(log); s.shelvedTo++ {
		e := log[s.shelvedTo]
		for k := range Kinds {
			if name, is := strings.CutPrefix(e.Key, k.Prefix()); is {
				s.reshelve(k, name, s.View(e.KV))
				break
			}
		}
	}
	return s.shelves[k]
}

func (s *Storage) reshelve(k Kind, name string, obj client.Object) {
	shelf := &s.shelves[k]
	i, found := slices.BinarySearchFunc(*shelf, name, func(s Stored, name string) int { return strings.Compare(s.Name, name) })
	switch {
	case obj == nil && found:
		*shelf = slices.Delete(*shelf, i, i+1)
	case obj == nil: // it came and went
	case found:
		(*shelf)[i].Object = obj
	default:
		*shelf = slices.Insert(*shelf, i, Stored{name, obj})
	}
}

// LookStorageVersion returns the StorageVersion of a resource, nil if it does not exist.
func (s *Storage) LookStorageVersion(r *object.Resource) *v1alpha1.StorageVersion {
	sv, _ := s.Look(StorageVersions, r.Version).(*v1alpha1.StorageVersion)
	return sv
}

// LookState returns the StorageState of a resource, nil if it does not exist.
func (s *Storage) LookState(r *object.Resource) *migrationv1alpha1.StorageState {
	state, _ := s.Look(States, r.State).(*migrationv1alpha1.StorageState)
	return state
}

// LookDefinition returns the definition of widgets, nil if it does not exist.
func (s *Storage) LookDefinition() *apiextensionsv1.CustomResourceDefinition {
	crd, _ := s.Look(Definitions, object.Widgets.Full).(*apiextensionsv1.CustomResourceDefinition)
	return crd
}

// Create stores a new object at a time.
func (s *Storage) Create(stored client.Object, now time.Time) error {
	k := KindOf(stored)
	if s.Look(k, stored.GetName()) != nil {
		return apierrors.NewAlreadyExists(k.Resource(), stored.GetName())
	}
	s.LastUID++
	stored.SetUID(types.UID("u" + strconv.Itoa(s.LastUID)))
	stored.SetCreationTimestamp(metav1.NewTime(now.Truncate(time.Second)))
	stored.SetGeneration(1)
	switch s := stored.(type) {
	case *v1alpha1.StorageVersion:
		storageversion.PrepareCreate(s)
		if err := valid(s); err != nil {
			return err
		}
	case *apiextensionsv1.CustomResourceDefinition:
		s.Status.StoredVersions = []string{StoredBy(s)}
	case *migrationv1alpha1.StorageState:
		s.Status = migrationv1alpha1.StorageStateStatus{}
	case *migrationv1alpha1.StorageVersionMigration:
		s.Status = migrationv1alpha1.StorageVersionMigrationStatus{}
	}
	return s.Put(k, stored)
}

// Update writes everything but the status where there is a status subresource, and
// status the opposite.
func (s *Storage) Update(stored client.Object, status bool) error {
	k := KindOf(stored)
	old := s.Look(k, stored.GetName())
	if old == nil {
		return apierrors.NewNotFound(k.Resource(), stored.GetName())
	}
	if err := unchanged(k, old, stored.GetUID(), stored.GetResourceVersion()); err != nil {
		return err
	}
	if err := prepare(stored, old, status); err != nil {
		return err
	}
	stored.SetUID(old.GetUID())
	stored.SetCreationTimestamp(old.GetCreationTimestamp())
	return s.Put(k, stored)
}

// Put stores an object, which is not to be changed any more.
func (s *Storage) Put(k Kind, stored client.Object) error {
	if s.full() {
		return ErrFull
	}
	revision := s.store.Write(KeyOf(k, stored.GetName()), s.objects.seal(stored))
	stored.SetResourceVersion(strconv.FormatInt(revision, 10))
	return nil
}

// Delete deletes an object. The error is a conflict where a precondition does not hold.
func (s *Storage) Delete(k Kind, name string, preconditions *metav1.Preconditions) error {
	old := s.Look(k, name)
	if old == nil {
		return apierrors.NewNotFound(k.Resource(), name)
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
	_, err := s.store.Delete(context.Background(), KeyOf(k, name))
	return err
}

// Get copies the stored object into obj.
func (s *Storage) Get(k Kind, name string, obj client.Object) error {
	stored := s.Look(k, name)
	if stored == nil {
		return apierrors.NewNotFound(k.Resource(), name)
	}
	CopyInto(stored, obj)
	return nil
}

// List fills a list with copies of all objects that have the labels wanted.
func (s *Storage) List(k Kind, list client.ObjectList, options *client.ListOptions) {
	list.SetResourceVersion(strconv.FormatInt(s.store.Revision(), 10))
	shelf := s.Shelf(k)
	for _, stored := range shelf {
		if options.LabelSelector != nil && !options.LabelSelector.Matches(labels.Set(stored.Object.GetLabels())) {
			continue
		}
		switch l := list.(type) {
		case *v1alpha1.StorageVersionList:
			CopyInto(stored.Object, next(&l.Items, len(shelf)))
		case *coordinationv1.LeaseList:
			CopyInto(stored.Object, next(&l.Items, len(shelf)))
		case *apiextensionsv1.CustomResourceDefinitionList:
			CopyInto(stored.Object, next(&l.Items, len(shelf)))
		case *migrationv1alpha1.StorageStateList:
			CopyInto(stored.Object, next(&l.Items, len(shelf)))
		case *migrationv1alpha1.StorageVersionMigrationList:
			CopyInto(stored.Object, next(&l.Items, len(shelf)))
		}
	}
}

// next returns a new last item. The first call makes room for room items.
func next[T any](items *[]T, room int) *T {
	if *items == nil {
		*items = make([]T, 0, room)
	}
	*items = (*items)[:len(*items)+1]
	return &(*items)[len(*items)-1]
}

// ListSeen fills a list with the migrations as they were after a number of their events.
func (s *Storage) ListSeen(list *migrationv1alpha1.StorageVersionMigrationList, events int) {
	var names []string
	var seen []*migrationv1alpha1.StorageVersionMigration
	for _, e := range slices.Backward(s.Changes[Migrations][:events]) {
		name := cmp.Or(e.Object, e.Last).GetName()
		if slices.Contains(names, name) {
			continue // a later event says what became of it
		}
		names = append(names, name)
		if e.Object != nil {
			seen = append(seen, e.Object.(*migrationv1alpha1.StorageVersionMigration))
		}
	}
	slices.SortFunc(seen, func(a, b *migrationv1alpha1.StorageVersionMigration) int { return strings.Compare(a.Name, b.Name) })
	for _, m := range seen {
		CopyInto(m, next(&list.Items, len(seen)))
	}
}

// Change is a watch event.
type Change struct {
	Object client.Object // nil: deleted
	Last   client.Object // the object that was deleted, at the revision of the deletion
}

// Note takes an event of etcd for the watches of its kind.
func (s *Storage) Note(e etcd.Event) {
	for k := range Kinds {
		if strings.HasPrefix(e.Key, k.Prefix()) {
			c := Change{Object: s.View(e.KV)}
			if c.Object == nil {
				c.Last = CopyOf(s.View(e.Prev))
				c.Last.SetResourceVersion(strconv.FormatInt(e.Revision, 10))
			}
			s.Changes[k] = append(s.Changes[k], c)
		}
	}
}
