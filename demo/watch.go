package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/loop"
)

const (
	root           = storedsets.DefaultPrefix + "/"
	versionsPrefix = root + "storageversions/"
	leasesPrefix   = root + "leases/" + storageversion.IdentityNamespace + "/"
	statesPrefix   = root + migrationv1alpha1.GroupName + "/storagestates/"
	svmPrefix      = root + migrationv1alpha1.GroupName + "/storageversionmigrations/"
	crdPrefix      = root + apiextensionsv1.GroupName + "/customresourcedefinitions/"

	rewatchPause = 100 * time.Millisecond
)

// prefixOf returns where a resource's objects are stored: custom resources have their
// group in the key.
func prefixOf(gr schema.GroupResource) string {
	if gr == workload.Gadgets {
		return root + gr.Group + "/" + gr.Resource + "/"
	}
	return root + gr.Resource + "/"
}

// watch follows everything that is stored, from the first revision until ctx ends. It is
// one watch, so that its events are in etcd's order.
func (w *world) watch(ctx context.Context, store *clientv3.Client) {
	for next := int64(1); ctx.Err() == nil; {
		for response := range store.Watch(ctx, root, clientv3.WithPrefix(), clientv3.WithRev(next), clientv3.WithFragment(), clientv3.WithProgressNotify()) {
			if err := response.Err(); err != nil {
				w.fail(ctx, fmt.Errorf("watch etcd from revision %d: %w", next, err), response.CompactRevision != 0)
				break
			}
			w.apply(response.Events, response.Header.GetRevision(), response.IsProgressNotify(), time.Now())
			if len(response.Events) > 0 {
				next = response.Events[len(response.Events)-1].Kv.ModRevision + 1
			}
		}
		_ = loop.Pause(ctx, rewatchPause)
	}
}

// fail remembers that events are missing for good.
func (w *world) fail(ctx context.Context, err error, final bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if final && ctx.Err() == nil && w.broken == nil {
		w.broken = err
	}
}

// catchUp waits until everything up to etcd's present revision has been seen.
func (w *world) catchUp(ctx context.Context, store *clientv3.Client) error {
	response, err := store.Get(ctx, root, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("ask etcd for its revision: %w", err)
	}
	for {
		w.mu.Lock()
		seen, broken := w.revision, w.broken
		w.mu.Unlock()
		switch {
		case broken != nil:
			return broken
		case seen >= response.Header.GetRevision():
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("watch etcd up to revision %d: %w", response.Header.GetRevision(), ctx.Err())
		}
		if err := store.RequestProgress(ctx); err != nil {
			return fmt.Errorf("ask etcd for its progress: %w", err)
		}
		_ = loop.Pause(ctx, rewatchPause)
	}
}

// apply takes events in. A progress notification proves that everything up to its
// revision has been seen.
func (w *world) apply(events []*clientv3.Event, revision int64, progress bool, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.revision
	changed := false
	for _, e := range events {
		changed = w.event(e, now) || changed
		w.revision = max(w.revision, e.Kv.ModRevision-1)
	}
	if progress {
		w.revision = max(w.revision, revision)
	}
	if changed || progress && w.revision > before {
		w.notify()
	}
}

// event takes one event in and says whether it changed the view.
func (w *world) event(e *clientv3.Event, now time.Time) bool {
	key := string(e.Kv.Key)
	at := moment{revision: e.Kv.ModRevision, at: now}
	for _, kind := range []struct {
		prefix string
		apply  func(name string, kv *mvccpb.KeyValue, deleted bool, at moment) error
	}{
		{versionsPrefix, w.storageVersion},
		{leasesPrefix, w.lease},
		{statesPrefix, w.storageState},
		{svmPrefix, w.migration},
		{crdPrefix, w.crd},
	} {
		if name, ok := strings.CutPrefix(key, kind.prefix); ok {
			if err := kind.apply(name, e.Kv, e.Type == clientv3.EventTypeDelete, at); err != nil && w.broken == nil {
				w.broken = fmt.Errorf("stored value of %s: %w", key, err)
			}
			return true
		}
	}
	for _, gr := range workload.Shown {
		if name, ok := strings.CutPrefix(key, prefixOf(gr)); ok {
			w.object(workload.ObjectKey{Resource: gr, Name: name}, e, at)
			return false
		}
	}
	return false
}

func (w *world) storageVersion(name string, kv *mvccpb.KeyValue, deleted bool, at moment) error {
	gr, err := storageversion.GroupResource(name)
	if err != nil {
		return err
	}
	r := w.view.resources[gr]
	if deleted {
		r.reports, r.common, r.ref = nil, "", evolve.Ref{}
		w.view.resources[gr] = r
		return nil
	}
	sv, err := decode[*v1alpha1.StorageVersion](scheme.Codecs.UniversalDeserializer(), kv.Value)
	if err != nil {
		return err
	}
	history, err := storageversion.History(sv)
	if err != nil {
		return err
	}
	r.reports = storageversion.Reports(sv)
	r.common, _ = storageversion.Agreement(sv)
	r.ref = evolve.Ref{UID: string(sv.UID), Epoch: history.Epoch}
	joined := maps.Clone(r.joined)
	if joined == nil {
		joined = map[agree.ServerID]moment{}
	}
	for _, report := range r.reports {
		if _, ok := joined[report.Server]; !ok {
			joined[report.Server] = at
		}
	}
	r.joined = joined
	w.view.resources[gr] = r
	return nil
}

func (w *world) lease(name string, kv *mvccpb.KeyValue, deleted bool, at moment) error {
	id := agree.ServerID(name)
	p, known := w.view.participants[id]
	if deleted {
		if known && p.gone.revision == 0 {
			p.gone = at
			w.view.participants[id] = p
		}
		return nil
	}
	if known && p.gone.revision == 0 {
		return nil // a renewal
	}
	lease, err := decode[*coordinationv1.Lease](scheme.Codecs.UniversalDeserializer(), kv.Value)
	if err != nil {
		return err
	}
	if identity(lease.Labels) && storageversion.IsServer(lease.Name) {
		w.view.participants[id] = participant{release: lease.Annotations[storageversion.EmulationVersionAnnotation]}
		w.register(id)
	}
	return nil
}

func (w *world) storageState(name string, kv *mvccpb.KeyValue, deleted bool, _ moment) error {
	var state migrationv1alpha1.StorageState
	if !deleted {
		if err := json.Unmarshal(kv.Value, &state); err != nil {
			return err
		}
		gr := schema.GroupResource{Group: state.Spec.Resource.Group, Resource: state.Spec.Resource.Resource}
		w.states[name] = storageversion.Name(gr)
	}
	gr, err := storageversion.GroupResource(w.states[name])
	if err != nil {
		return err
	}
	r := w.view.resources[gr]
	r.hasState = !deleted
	r.hashes = state.Status.PersistedStorageVersionHashes
	r.stateRef = evolve.Ref{UID: string(state.Status.StorageVersionUID), Epoch: state.Status.Epoch}
	r.stored = nil
	for _, encoding := range state.Status.PersistedEncodings {
		r.stored = append(r.stored, agree.Encoding(encoding))
	}
	w.view.resources[gr] = r
	return nil
}

func (w *world) migration(_ string, kv *mvccpb.KeyValue, deleted bool, at moment) error {
	if deleted {
		return nil // the view keeps the migration
	}
	var svm migrationv1alpha1.StorageVersionMigration
	if err := json.Unmarshal(kv.Value, &svm); err != nil {
		return err
	}
	m, ok := w.view.migrations[svm.UID]
	if !ok {
		m.order = len(w.view.migrations)
		m.resource = schema.GroupResource{Group: svm.Spec.Resource.Group, Resource: svm.Spec.Resource.Resource}
	}
	m.phase, m.reason = phase(svm.Status.Conditions)
	if m.phase == evolve.Running && m.running.IsZero() {
		m.running = at.at
	}
	if svm.Status.Progress != nil {
		m.progress = *svm.Status.Progress
	}
	w.view.migrations[svm.UID] = m
	return nil
}

// phase reads a migration's conditions.
func phase(conditions []migrationv1alpha1.MigrationCondition) (evolve.Phase, string) {
	phases := map[migrationv1alpha1.MigrationConditionType]evolve.Phase{
		migrationv1alpha1.MigrationRunning:   evolve.Running,
		migrationv1alpha1.MigrationSucceeded: evolve.Succeeded,
		migrationv1alpha1.MigrationFailed:    evolve.Failed,
	}
	for _, c := range conditions {
		if c.Status == "True" {
			return phases[c.Type], strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return evolve.Pending, ""
}

func (w *world) crd(name string, kv *mvccpb.KeyValue, deleted bool, _ moment) error {
	if deleted {
		delete(w.view.crds, name)
		return nil
	}
	internal, err := decode[*apiextensions.CustomResourceDefinition](apiextensionsapiserver.Codecs.UniversalDecoder(), kv.Value)
	if err != nil {
		return err
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsapiserver.Scheme.Convert(internal, definition, nil); err != nil {
		return err
	}
	c := storedCRD{stored: definition.Status.StoredVersions}
	c.storage, _ = apihelpers.GetCRDStorageVersion(definition)
	w.view.crds[name] = c
	return nil
}

// object takes in a write of one of the demo's objects. Loaded objects are written once
// by a client, so every further write of them is a rewrite; a rewrite of a writer's
// object shows the attempt that it showed before.
func (w *world) object(key workload.ObjectKey, e *clientv3.Event, at moment) {
	if e.Type == clientv3.EventTypeDelete {
		w.count(key, "")
		return
	}
	encoding, _, _ := migratestore.Envelope(e.Kv.Value)
	w.count(key, encoding)
	if !strings.HasPrefix(key.Name, workload.WriterPrefix) {
		if e.IsModify() {
			w.rewritten(key.Resource, at.at)
		}
		return
	}
	m, err := workload.StoredMark(e.Kv.Value)
	if err != nil {
		if w.broken == nil {
			w.broken = fmt.Errorf("stored value of %s: %w", key, err)
		}
		return
	}
	if w.attempts[key] == m.Attempt {
		w.rewritten(key.Resource, at.at)
		return
	}
	w.attempts[key] = m.Attempt
	w.journal = append(w.journal, written{revision: at.revision, key: key, mark: m})
}

func decode[T runtime.Object](decoder runtime.Decoder, value []byte) (T, error) {
	var none T
	object, _, err := decoder.Decode(value, nil, nil)
	if err != nil {
		return none, err
	}
	typed, ok := object.(T)
	if !ok {
		return none, fmt.Errorf("it is a %T, not a %T", object, none)
	}
	return typed, nil
}
