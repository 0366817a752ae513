package trigger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
)

// act carries out one action on the objects of a look. Every update carries the
// resourceVersion that was read.
func (c *Controller) act(ctx context.Context, l *look, action evolve.Action) error {
	switch a := action.(type) {
	case evolve.WriteState:
		return c.writeState(ctx, l, a.State)
	case evolve.DeleteState:
		return c.cfg.Client.Delete(ctx, l.state, client.Preconditions{UID: &l.state.UID, ResourceVersion: &l.state.ResourceVersion})
	case evolve.CreateMigration:
		return c.createMigration(ctx, l, a)
	case evolve.AdoptMigration:
		return c.adopt(ctx, l.migrations[a.Name].DeepCopy(), a)
	case evolve.TellWaiting:
		return c.tellWaiting(ctx, l.migrations[a.Name].DeepCopy(), a)
	case evolve.DeleteMigration:
		return c.deleteMigration(ctx, l.migrations[a.Name], a.Why)
	case evolve.ResetMigration:
		return c.resetMigration(ctx, l.migrations[a.Name].DeepCopy())
	case evolve.EndMigration:
		return c.endMigration(ctx, l.migrations[a.Name].DeepCopy(), a)
	case evolve.Prune:
		return c.prune(ctx, l, a)
	case evolve.Keep:
		return c.keep(ctx, l.crd.DeepCopy(), a)
	case evolve.Wait:
		return nil
	default:
		return fmt.Errorf("unknown action %T", action)
	}
}

// writeState writes the StorageState. The fields that count are in its status and go in one
// update. The readable copy is an annotation, which a status update cannot write: it is
// widened before and narrowed after, so that it never promises too much. Migrations that have
// ended are remembered before: they were from the stored set that the update may lower.
func (c *Controller) writeState(ctx context.Context, l *look, state evolve.State) error {
	kind, err := c.kind(ctx, l, state)
	if err != nil {
		return err
	}
	obj := l.state
	copies := migrationv1alpha1.Copies(state)
	switch {
	case obj == nil:
		obj = &migrationv1alpha1.StorageState{Spec: migrationv1alpha1.StorageStateSpec{
			Resource: migrationv1alpha1.GroupResource(l.Resource),
		}}
		obj.Name = migrationv1alpha1.StateName(l.Resource)
		setAnnotations(obj, copies)
		if err := c.cfg.Client.Create(ctx, obj); err != nil {
			return err
		}
	default:
		before := map[string]string{}
		if !migrationv1alpha1.Covers(obj, state) {
			before = maps.Clone(copies)
			delete(before, migrationv1alpha1.DefinitionAnnotation) // the status does not know it yet
		}
		if err := c.annotate(ctx, obj, l.remembering(before)); err != nil {
			return err
		}
	}
	migrationv1alpha1.SetState(obj, state, kind)
	if err := c.cfg.Client.Status().Update(ctx, obj); err != nil {
		return err
	}
	l.state = obj
	return c.annotate(ctx, obj, copies)
}

// remember records in the StorageState which migrations have finished, and why storedVersions of the
// CustomResourceDefinition could not be changed. An Event tells it as well, when it begins. It has not ended where
// storedVersions are changed later: after the last look, or after a look at the new state.
func (c *Controller) remember(ctx context.Context, l *look, r Result, refused string) error {
	if l.state == nil || slices.ContainsFunc(r.Done, isA[evolve.DeleteState]) {
		return nil
	}
	before := l.state.Annotations[migrationv1alpha1.PruneRefusedAnnotation]
	if refused == "" && (r.LastLook != nil || slices.ContainsFunc(r.Done, isA[evolve.WriteState])) {
		refused = before
	}
	err := c.annotate(ctx, l.state, l.remembering(map[string]string{migrationv1alpha1.PruneRefusedAnnotation: refused}))
	if err == nil && before == "" && refused != "" {
		c.create(ctx, migrationv1alpha1.NewDefinitionEvent(l.crd, c.cfg.Instance, corev1.EventTypeWarning, migrationv1alpha1.ReasonStoredVersionsRefused, refused, c.cfg.Clock.Now()))
	}
	return err
}

func isA[A evolve.Action](a evolve.Action) bool {
	_, is := a.(A)
	return is
}

// remembering adds to the annotations of the StorageState whether an aggregated server has the objects, and their kind,
// and the finished migrations that it does not list yet.
func (l *look) remembering(annotations map[string]string) map[string]string {
	if l.StorageVersion != nil {
		annotations[migrationv1alpha1.AggregatedAnnotation] = l.aggregated
	}
	if l.aggregated != "" && l.kind != "" {
		annotations[migrationv1alpha1.KindAnnotation] = l.kind
	}
	var stored []agree.Encoding
	if l.State != nil {
		stored = l.State.Stored
	}
	var ended []migrationv1alpha1.Past
	told := migrationv1alpha1.History(l.state.Annotations)
	for _, name := range slices.Sorted(maps.Keys(l.migrations)) {
		p, final := migrationv1alpha1.PastOf(l.migrations[name], stored)
		if final && !slices.ContainsFunc(told, func(t migrationv1alpha1.Past) bool { return t.UID == p.UID }) {
			ended = append(ended, p)
		}
	}
	if len(ended) > 0 {
		annotations[migrationv1alpha1.HistoryAnnotation] = migrationv1alpha1.Recorded(l.state.Annotations, ended...)
	}
	return annotations
}

// setAnnotations sets the annotations, and removes those whose value is empty.
func setAnnotations(obj *migrationv1alpha1.StorageState, annotations map[string]string) {
	for k, v := range annotations {
		if v == "" {
			delete(obj.Annotations, k)
			continue
		}
		metav1.SetMetaDataAnnotation(&obj.ObjectMeta, k, v)
	}
}

// annotate sets the annotations if they are not so already.
func (c *Controller) annotate(ctx context.Context, obj *migrationv1alpha1.StorageState, annotations map[string]string) error {
	before := maps.Clone(obj.Annotations)
	setAnnotations(obj, annotations)
	if maps.Equal(before, obj.Annotations) {
		return nil
	}
	return c.cfg.Client.Update(ctx, obj)
}

// kind returns the kind of the resource's objects, which the hashes are made of; "" if
// the state holds no hash, or nobody serves the resource any more: then the hashes stay as they are.
func (c *Controller) kind(ctx context.Context, l *look, state evolve.State) (string, error) {
	known := func(e agree.Encoding) bool { return e != evolve.Unknown }
	if !known(state.Current) && !slices.ContainsFunc(state.Stored, known) {
		return "", nil
	}
	if l.crd != nil {
		return l.crd.Spec.Names.Kind, nil
	}
	kind, err := c.cfg.Kinds.Kind(ctx, l.Resource)
	if meta.IsNoMatchError(err) && l.state != nil && l.StorageVersion == nil {
		return "", nil
	}
	if err != nil && l.state != nil && !meta.IsNoMatchError(err) && l.state.Annotations[migrationv1alpha1.KindAnnotation] != "" {
		return l.state.Annotations[migrationv1alpha1.KindAnnotation], nil
	}
	if err != nil {
		return "", fmt.Errorf("storage version hashes need the kind of %s: %w", l.Resource, err)
	}
	l.kind = kind
	return kind, nil
}

func (c *Controller) createMigration(ctx context.Context, l *look, a evolve.CreateMigration) error {
	m := &migrationv1alpha1.StorageVersionMigration{Spec: migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: l.Resource.Group, Version: a.Version, Resource: l.Resource.Resource},
	}}
	m.Name = a.Name
	if failed := l.migrations[a.After]; failed != nil {
		m.Spec.MaxObjectsPerSecond, m.Spec.MaxAddedLatency = failed.Spec.MaxObjectsPerSecond, failed.Spec.MaxAddedLatency
	}
	m.Labels = map[string]string{migrationv1alpha1.MadeByLabel: migrationv1alpha1.MadeByTrigger}
	m.Annotations = map[string]string{migrationv1alpha1.AttemptAnnotation: strconv.Itoa(a.Attempt)}
	if a.Lasting > 0 {
		m.Annotations[migrationv1alpha1.LastingAnnotation] = strconv.Itoa(a.Lasting)
	}
	migrationv1alpha1.SetTarget(m, a.Target)
	return c.cfg.Client.Create(ctx, m)
}

// deleteMigration deletes a migration. An unfinished one is deleted only in the state in which it was read: if it has
// finished since, it was not aborted.
func (c *Controller) deleteMigration(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, why string) error {
	live := !migrationv1alpha1.Final(m)
	as := client.Preconditions{UID: &m.UID}
	if live {
		as.ResourceVersion = &m.ResourceVersion
	}
	err := c.cfg.Client.Delete(ctx, m, as)
	if storageversion.IsGone(err) {
		return nil
	}
	if err == nil && live {
		c.event(ctx, m, migrationv1alpha1.EventAborted, why)
		c.cfg.Ended(m, migrationv1alpha1.EventAborted)
	}
	return err
}

// resetMigration resets the status of a migration, and then removes its target, its claim and the trigger's mark. The
// status goes first: nobody would own a migration that says that it runs and has no target.
func (c *Controller) resetMigration(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) error {
	migrationv1alpha1.Reset(m)
	if err := c.cfg.Client.Status().Update(ctx, m); err != nil {
		return err
	}
	migrationv1alpha1.Free(m)
	return c.cfg.Client.Update(ctx, m)
}

// adopt writes the target to a migration. If the migration waited, adopt first writes that it does not wait any more:
// the migrating server acts as soon as there is a target, and should not meet a conflict.
func (c *Controller) adopt(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, a evolve.AdoptMigration) error {
	if migrationv1alpha1.Waiting(m) != "" {
		migrationv1alpha1.SetWaiting(m, "", metav1.NewTime(c.cfg.Clock.Now()))
		if err := c.cfg.Client.Status().Update(ctx, m); err != nil {
			return err
		}
	}
	migrationv1alpha1.Adopt(m, a.Target, a.State)
	return c.cfg.Client.Update(ctx, m)
}

func (c *Controller) tellWaiting(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, a evolve.TellWaiting) error {
	migrationv1alpha1.SetWaiting(m, a.Why, metav1.NewTime(c.cfg.Clock.Now()))
	if err := c.cfg.Client.Status().Update(ctx, m); err != nil {
		return err
	}
	if a.Begins {
		c.event(ctx, m, migrationv1alpha1.ReasonWaitingForAgreement, a.Why)
	}
	return nil
}

func (c *Controller) endMigration(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, a evolve.EndMigration) error {
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, string(a.Reason), a.Why, metav1.NewTime(c.cfg.Clock.Now()))
	if err := c.cfg.Client.Status().Update(ctx, m); err != nil {
		return err
	}
	c.event(ctx, m, string(a.Reason), a.Why)
	c.cfg.Ended(m, string(migrationv1alpha1.MigrationFailed))
	return nil
}

// prune sets the CRD's status.storedVersions to the one version that is stored. The CRD
// is read before the StorageVersion: a server that will write another version reports it
// first, and then finds that the CRD names it, so either the StorageVersion shows it or
// the CRD's resourceVersion has moved.
func (c *Controller) prune(ctx context.Context, l *look, a evolve.Prune) error {
	crd, err := get(ctx, c.cfg.Client, a.CRD, &apiextensionsv1.CustomResourceDefinition{})
	if err != nil {
		return err
	}
	if crd == nil || migrationv1alpha1.Stores(crd) != a.Target.Encoding.Plain() {
		return fmt.Errorf("the CustomResourceDefinition does not store %s: %w", a.Target.Encoding, errChanged)
	}
	sv, _, err := c.storageVersion(ctx, l.Resource)
	if err != nil {
		return err
	}
	if sv == nil {
		return fmt.Errorf("the StorageVersion is gone: %w", errChanged)
	}
	if now, agreed := sv.Agreement(); !agreed || now != a.Target {
		return fmt.Errorf("servers do not agree on %s: %w", a.Target, errChanged)
	}
	if migrationv1alpha1.Held(crd.Annotations) {
		return fmt.Errorf("the cut-over is on hold: %w", errChanged)
	}
	if why := c.keeps(l, crd); why != "" {
		return fmt.Errorf("storedVersions are kept: %s: %w", why, errChanged)
	}
	if err := c.allReport(ctx); err != nil {
		return err
	}
	from := crd.Status.StoredVersions
	crd.Status.StoredVersions = []string{a.Target.Encoding.Version()}
	if l.rehearses {
		err := c.cfg.Client.Status().Update(ctx, crd, client.DryRunAll)
		if apierrors.IsBadRequest(err) {
			return nil // a webhook that has side effects takes no dry runs: only the update itself tells
		}
		return err
	}
	if err := c.cfg.Client.Status().Update(ctx, crd); err != nil {
		return err
	}
	c.cfg.Logger.Info("Pruned storedVersions", "resource", l.Resource.String(), "from", from, "to", crd.Status.StoredVersions)
	return nil
}

// keeps asks the policy once more, by the definition as it is now, and says why it is not to be pruned.
func (c *Controller) keeps(l *look, crd *apiextensionsv1.CustomResourceDefinition) string {
	if c.cfg.Policy == nil {
		return ""
	}
	o := l.Observation
	o.Now = c.cfg.Clock.Now()
	p := c.cfg.Policy(o, crd)
	if p.KeepStored == "" && p.PruneIn > 0 {
		return fmt.Sprintf("for %v", p.PruneIn)
	}
	return p.KeepStored
}

// allReport fails if there is a new server that does not report. The StorageVersions show that only a moment later,
// and the versions that such a server stores must not be pruned before.
func (c *Controller) allReport(ctx context.Context) error {
	leases, err := c.leases(ctx)
	if err != nil {
		return err
	}
	if silent := storageversion.Participants(leases).Silent(); len(silent) > 0 {
		return fmt.Errorf("%s does not report what it encodes: %w", silent[0], errChanged)
	}
	return nil
}

// keep adds to the status.storedVersions of a CRD as it was read.
func (c *Controller) keep(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition, a evolve.Keep) error {
	for _, v := range crd.Spec.Versions {
		if slices.Contains(a.Stored, migrationv1alpha1.EncodingOf(crd, v.Name)) {
			crd.Status.StoredVersions = append(crd.Status.StoredVersions, v.Name)
		}
	}
	if err := c.cfg.Client.Status().Update(ctx, crd); err != nil {
		return err
	}
	c.cfg.Logger.Info("Versions were taken out of storedVersions, in which objects may still be stored: put back", "crd", crd.Name, "storedVersions", crd.Status.StoredVersions)
	return nil
}

// event tells users that a migration has finished, or why it waits.
func (c *Controller) event(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, reason, note string) {
	c.create(ctx, migrationv1alpha1.NewEvents(m, c.cfg.Instance, corev1.EventTypeWarning, reason, note, c.cfg.Clock.Now())...)
}

// create writes events. Errors are only logged.
func (c *Controller) create(ctx context.Context, events ...*corev1.Event) {
	for _, event := range events {
		if err := c.cfg.Client.Create(ctx, event); err != nil {
			c.cfg.Logger.V(1).Info("An event was not written", "about", event.InvolvedObject.Name, "reason", err.Error())
		}
	}
}
