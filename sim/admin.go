package sim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"

	"go.etcd.io/etcd/api/v3/mvccpb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// define creates the definition of the custom resource, or changes its storage version.
func (w *World) define(version string) bool {
	if !w.etcd.writable() || !slices.Contains([]string{"v1", "v2"}, version) {
		return false
	}
	crd := w.api.LookDefinition()
	if crd == nil {
		w.must(w.api.Create(definition(version), epoch.Add(w.now)))
		w.observe(nil)
		return true
	}
	if registry.StoredBy(crd) == version || crd.DeletionTimestamp != nil {
		return false
	}
	next := crd.DeepCopy()
	for i := range next.Spec.Versions {
		next.Spec.Versions[i].Storage = next.Spec.Versions[i].Name == version
	}
	w.must(w.api.Update(next, false))
	w.observe(nil)
	return true
}

func definition(version string) *apiextensionsv1.CustomResourceDefinition {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Name = object.Widgets.Full
	crd.Spec.Group, crd.Spec.Names.Plural, crd.Spec.Names.Kind = object.Widgets.GroupResource.Group, object.Widgets.GroupResource.Resource, object.Widgets.Kind
	for _, name := range []string{"v1", "v2"} {
		crd.Spec.Versions = append(crd.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: name == version})
	}
	crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{
		{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
		{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
	}
	return crd
}

// undefine is a request to delete the definition: its finalizer holds it.
func (w *World) undefine() bool {
	crd := w.api.LookDefinition()
	if !w.etcd.writable() || crd == nil || crd.DeletionTimestamp != nil {
		return false
	}
	next := crd.DeepCopy()
	at := metav1.NewTime(epoch.Add(w.now).Truncate(time.Second))
	next.DeletionTimestamp = &at
	next.Status.Conditions = append(next.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue,
	})
	w.must(w.api.Put(registry.Definitions, next))
	w.observe(nil)
	return true
}

// purge is one round of the finalizer: it deletes the objects that exist, and if there were none
// the definition goes.
func (w *World) purge() bool {
	crd := w.api.LookDefinition()
	if !w.etcd.writable() || crd == nil || crd.DeletionTimestamp == nil {
		return false
	}
	var keys []string
	w.store.Scan(object.Widgets.Prefix, func(kv *mvccpb.KeyValue) { keys = append(keys, string(kv.Key)) })
	for _, key := range keys {
		w.remove(key)
	}
	if len(keys) == 0 {
		w.remove(registry.KeyOf(registry.Definitions, crd.Name))
	}
	w.observe(nil)
	return true
}

// admin is a deed of an administrator: "delete state things", "delete migration things",
// "delete lease s1", "delete stock lease s1" (of a stock server that runs or ran there), "delete host lease s1" (of
// a replica that has ended),
// "delete version things", "migrate things", "pause things" and
// "continue things" (their migrations), "heal things" (deletes objects that no codec can
// decode), "forge widgets" (its StorageState then says consistently that only the encoding that is
// agreed on is stored), "lower widgets" (its storedVersions then name only the version that the
// definition stores).
func (w *World) admin(what string) bool {
	words := strings.Fields(what)
	if !w.etcd.writable() || len(words) < 2 {
		return false
	}
	last := words[len(words)-1]
	r, isResource := object.Named(last)
	done := false
	switch deed := strings.Join(words[:len(words)-1], " "); {
	case deed == "delete lease":
		if slot := script.SlotNamed(last); slot >= 0 && w.slots[slot] != nil {
			done = w.remove(registry.KeyOf(registry.Leases, string(w.slots[slot].id())))
		}
	case deed == "delete host lease":
		if slot := script.SlotNamed(last); slot >= 0 && w.slots[slot] != nil && w.slots[slot].replica != nil {
			done = w.slots[slot].deleteHostLease()
		}
	case deed == "delete stock lease":
		if slot := script.SlotNamed(last); slot >= 0 {
			done = w.remove(registry.KeyOf(registry.Leases, string(invariant.StockID(slot))))
		}
	case !isResource:
	case deed == "delete state":
		done = w.remove(registry.KeyOf(registry.States, r.State))
	case deed == "delete version":
		done = w.remove(registry.KeyOf(registry.StorageVersions, r.Version))
	case deed == "delete migration":
		if name, ok := w.migration(last); ok {
			done = w.remove(registry.KeyOf(registry.Migrations, name))
		}
	case deed == "migrate":
		m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: r.GroupResource.Group, Version: "v1", Resource: r.GroupResource.Resource},
		}}
		m.Name = fmt.Sprintf("user-%s-%d", last, w.api.LastUID)
		done = w.api.Create(m, epoch.Add(w.now)) == nil
	case deed == "pause", deed == "continue":
		done = w.pauseMigrations(r, deed == "pause")
	case deed == "heal":
		done = w.healObjects(r)
	case deed == "forge":
		done = w.forge(r)
	case deed == "lower":
		done = w.lower(r)
	}
	w.observe(nil)
	return done
}

// pauseMigrations pauses the migrations of a resource that are not final, or resumes them. A paused one also gets a
// limit, which it keeps.
func (w *World) pauseMigrations(r *object.Resource, paused bool) bool {
	var changed []*migrationv1alpha1.StorageVersionMigration
	for n := 0; ; n++ {
		name, ok := w.live(r, n)
		if !ok {
			break
		}
		if m := w.api.Look(registry.Migrations, name).(*migrationv1alpha1.StorageVersionMigration); m.Spec.Paused != paused {
			changed = append(changed, m.DeepCopy())
		}
	}
	for _, m := range changed {
		m.Spec.Paused = paused
		if paused {
			m.Spec.MaxObjectsPerSecond = ptr.To[int64](1000)
		}
		w.must(w.api.Put(registry.Migrations, m))
	}
	return len(changed) > 0
}

// forge edits a StorageState consistently. Concord finds that out only where storedVersions would shrink because of
// it, so only the StorageState of a resource with storedVersions can be forged.
func (w *World) forge(r *object.Resource) bool {
	state, sv, crd := w.api.LookState(r), w.api.LookStorageVersion(r), w.api.LookDefinition()
	if !r.Custom || w.config.Census == 0 || state == nil || sv == nil || crd == nil || len(crd.Status.StoredVersions) < 2 {
		return false
	}
	common, agreed := storageversion.Agreement(sv)
	history, err := storageversion.History(sv)
	w.must(err)
	if !agreed || !w.checker.Forge() {
		return false
	}
	next := state.DeepCopy()
	view := migrationv1alpha1.ViewState(next)
	view.Of, view.Current, view.Stored = evolve.Ref{UID: string(sv.UID), Epoch: history.Epoch}, common, []agree.Encoding{common}
	migrationv1alpha1.SetState(next, view, r.Kind)
	w.must(w.api.Put(registry.States, next))
	return true
}

// lower takes out of storedVersions all but the version that the definition stores.
func (w *World) lower(r *object.Resource) bool {
	crd := w.api.LookDefinition()
	if !r.Custom || crd == nil || len(crd.Status.StoredVersions) < 2 || !w.checker.Lower() {
		return false
	}
	next := crd.DeepCopy()
	next.Status.StoredVersions = []string{registry.StoredBy(crd)}
	w.must(w.api.Put(registry.Definitions, next))
	return true
}

func (w *World) healObjects(r *object.Resource) bool {
	var keys []string
	w.store.Scan(r.Prefix, func(kv *mvccpb.KeyValue) {
		if object.Unmarshal(kv.Value).Broken {
			keys = append(keys, string(kv.Key))
		}
	})
	for _, key := range keys {
		w.remove(key)
	}
	return len(keys) > 0
}

// remove deletes a key. It returns false if there is none.
func (w *World) remove(key string) bool {
	if w.store.Lookup(key) == nil {
		return false
	}
	_, err := w.store.Delete(context.Background(), key)
	w.must(err)
	return true
}
