package v1alpha1

import (
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

// StateName returns the name of the resource's StorageState.
func StateName(gr schema.GroupResource) string { return gr.String() }

// ViewState returns the StorageState as package evolve sees it. An object whose status Concord
// did not write as a whole says less: unreadable hashes are Unknown, and a missing uid is no uid.
func ViewState(s *StorageState) evolve.State {
	view := evolve.State{
		Current:    evolve.Unknown,
		Why:        s.Status.Message,
		Heartbeat:  s.Status.LastHeartbeatTime.Time,
		UID:        string(s.UID),
		Custom:     s.Annotations[CustomResourceAnnotation] == "true",
		Definition: s.Annotations[DefinitionAnnotation],
	}
	view.Stored = slices.Grow(view.Stored, len(s.Status.PersistedEncodings))
	for _, e := range s.Status.PersistedEncodings {
		view.Stored = append(view.Stored, agree.Encoding(e))
	}
	if text := s.Annotations[ListedEncodingsAnnotation]; text != "" {
		for _, e := range strings.Split(text, ",") {
			view.Listed = append(view.Listed, agree.Encoding(e))
		}
	}
	if !s.Status.readable() && !slices.Contains(view.Stored, evolve.Unknown) {
		view.Stored = append(view.Stored, evolve.Unknown)
	}
	if s.Status.Encryption != nil {
		view.Removable = slices.Clone(s.Status.Encryption.RemovableKeys)
	}
	if s.Status.CurrentEncoding != "" {
		view.Current = agree.Encoding(s.Status.CurrentEncoding)
	}
	if s.Status.StorageVersionUID != "" && len(s.Status.PersistedEncodings) > 0 {
		view.Of = evolve.Ref{UID: string(s.Status.StorageVersionUID), Epoch: s.Status.Epoch}
	}
	return view
}

// readable says whether the hashes and the readable encodings are two forms of one set.
func (s *StorageStateStatus) readable() bool {
	return slices.EqualFunc(s.PersistedStorageVersionHashes, s.PersistedEncodings, func(hash, e string) bool {
		return (hash == Unknown) == (e == Unknown)
	})
}

// Forged reports whether a hash does not belong to the encoding beside it. Then somebody has edited the status by
// hand, and none of it can be trusted. kind is the kind of the resource's objects.
func Forged(s *StorageState, kind string) bool {
	if len(s.Status.PersistedEncodings) == 0 || !s.Status.readable() {
		return false // not written by Concord: ViewState tells that
	}
	return s.Status.CurrentStorageVersionHash != hash(agree.Encoding(s.Status.CurrentEncoding), kind) ||
		!slices.EqualFunc(s.Status.PersistedStorageVersionHashes, s.Status.PersistedEncodings, func(h, e string) bool {
			return h == hash(agree.Encoding(e), kind)
		})
}

// SetState writes the state into the status, with the hashes of the kind that
// the resource's objects have; if the kind is "", with those that the status has for the same encodings.
func SetState(s *StorageState, state evolve.State, kind string) {
	hash := func(e agree.Encoding) string { return hash(e, kind) }
	if kind == "" {
		hash = s.Status.hashOf
	}
	status := StorageStateStatus{
		CurrentStorageVersionHash: hash(state.Current),
		CurrentEncoding:           string(state.Current),
		Message:                   state.Why,
		LastHeartbeatTime:         metav1.NewTime(state.Heartbeat),
		StorageVersionUID:         types.UID(state.Of.UID),
		Epoch:                     state.Of.Epoch,
	}
	for _, e := range state.Stored {
		status.PersistedStorageVersionHashes = append(status.PersistedStorageVersionHashes, hash(e))
		status.PersistedEncodings = append(status.PersistedEncodings, string(e))
	}
	status.Encryption = encryption(state)
	s.Status = status
}

// hashOf is the hash that a status has for an encoding; Unknown if it has none.
func (s *StorageStateStatus) hashOf(e agree.Encoding) string {
	if i := slices.Index(s.PersistedEncodings, string(e)); e != evolve.Unknown && i >= 0 && i < len(s.PersistedStorageVersionHashes) {
		return s.PersistedStorageVersionHashes[i]
	}
	return Unknown
}

func encryption(state evolve.State) *StorageEncryption {
	if !evolve.Encrypts(state.Stored) && !evolve.Encrypts([]agree.Encoding{state.Current}) && len(state.Removable) == 0 {
		return nil
	}
	return &StorageEncryption{CurrentKey: evolve.KeyOf(state.Current), StoredKeys: evolve.KeysOf(state.Stored), RemovableKeys: state.Removable}
}

func hash(e agree.Encoding, kind string) string {
	if e == evolve.Unknown {
		return Unknown
	}
	gv, err := schema.ParseGroupVersion(string(e.Plain()))
	if err != nil {
		return Unknown
	}
	return StorageVersionHash(gv.WithKind(kind))
}

// Copies returns the annotations that a StorageState of this content should have: the copies for people, and the
// values for which the status has no field. An annotation whose value is empty should be removed.
func Copies(state evolve.State) map[string]string {
	copies := map[string]string{
		StoredEncodingsAnnotation: agree.Join(state.Stored), ListedEncodingsAnnotation: agree.Join(state.Listed), DefinitionAnnotation: state.Definition,
	}
	if state.Custom {
		copies[CustomResourceAnnotation] = "true"
	}
	return copies
}

// Covers says whether the readable copy on the object lists every encoding of state, or
// Unknown, which stands for any.
func Covers(s *StorageState, state evolve.State) bool {
	listed := strings.Split(s.Annotations[StoredEncodingsAnnotation], ",")
	return slices.Contains(listed, Unknown) || !slices.ContainsFunc(state.Stored, func(e agree.Encoding) bool { return !slices.Contains(listed, string(e)) })
}

// Resource returns the resource that the migration is about.
func Resource(m *StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

// TargetOf returns the target that the migration counts for; the zero Target if it is not stamped.
func TargetOf(m *StorageVersionMigration) evolve.Target {
	epoch, err := strconv.ParseInt(m.Annotations[EpochAnnotation], 10, 64)
	uid, encoding := m.Annotations[StorageVersionUIDAnnotation], m.Annotations[EncodingAnnotation]
	if err != nil || uid == "" || encoding == "" {
		return evolve.Target{}
	}
	return evolve.Target{Ref: evolve.Ref{UID: uid, Epoch: epoch}, Encoding: agree.Encoding(encoding)}
}

// SetTarget stamps the target on the migration.
func SetTarget(m *StorageVersionMigration, t evolve.Target) {
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, StorageVersionUIDAnnotation, t.UID)
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, EpochAnnotation, strconv.FormatInt(t.Epoch, 10))
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, EncodingAnnotation, string(t.Encoding))
}

// Adopt stamps the target on a user's migration, with the uid of the StorageState.
func Adopt(m *StorageVersionMigration, t evolve.Target, state string) {
	SetTarget(m, t)
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, StorageStateUIDAnnotation, state)
}

// Reset empties the status of a migration that starts again.
func Reset(m *StorageVersionMigration) {
	m.Status = StorageVersionMigrationStatus{Phase: phaseBefore(m)}
}

// phaseBefore returns the phase of a migration that no server has begun.
func phaseBefore(m *StorageVersionMigration) MigrationPhase {
	if m.Spec.Paused {
		return PhasePaused
	}
	return PhasePending
}

// Free removes the target, the claim and the mark of the trigger from a migration that was reset. It counts as attempt 1
// for the target that it gets next.
func Free(m *StorageVersionMigration) {
	for _, annotation := range []string{StorageVersionUIDAnnotation, EpochAnnotation, EncodingAnnotation, StorageStateUIDAnnotation, LastingAnnotation, ClaimedByAnnotation} {
		delete(m.Annotations, annotation)
	}
	if m.Annotations[AttemptAnnotation] != "" {
		m.Annotations[AttemptAnnotation] = "1"
	}
	delete(m.Labels, MadeByLabel)
}

// ViewMigration returns the migration as package evolve sees it. A migration that a server has claimed counts as
// running, even before its condition says so.
func ViewMigration(m *StorageVersionMigration) evolve.Migration {
	view := evolve.Migration{
		Name:    m.Name,
		Target:  TargetOf(m),
		State:   m.Annotations[StorageStateUIDAnnotation],
		Made:    m.Labels[MadeByLabel] == MadeByTrigger,
		Paused:  m.Spec.Paused,
		Limited: m.Spec.MaxObjectsPerSecond != nil || m.Spec.MaxAddedLatency != nil,
		Waiting: Waiting(m),
		Version: m.Spec.Resource.Version,
		Created: m.CreationTimestamp.Time,
	}
	view.Attempt, _ = strconv.Atoi(m.Annotations[AttemptAnnotation])
	view.Phase, view.Ended = phase(m)
	switch failed := True(m, MigrationFailed); {
	case failed == nil:
	case failed.Reason == ReasonChangedByAdmission:
		before, _ := strconv.Atoi(m.Annotations[LastingAnnotation])
		view.Lasting = max(before, 0) + 1
	case failed.Reason == ReasonCRDChanged:
		view.Overtaken = true
	}
	return view
}

func phase(m *StorageVersionMigration) (evolve.Phase, time.Time) {
	switch {
	case True(m, MigrationFailed) != nil:
		return evolve.Failed, True(m, MigrationFailed).LastUpdateTime.Time
	case True(m, MigrationSucceeded) != nil:
		return evolve.Succeeded, True(m, MigrationSucceeded).LastUpdateTime.Time
	case True(m, MigrationRunning) != nil || m.Annotations[ClaimedByAnnotation] != "":
		return evolve.Running, time.Time{}
	default:
		return evolve.Pending, time.Time{}
	}
}

// True returns the condition if it is true, else nil.
func True(m *StorageVersionMigration, t MigrationConditionType) *MigrationCondition {
	for i, c := range m.Status.Conditions {
		if c.Type == t && c.Status == corev1.ConditionTrue {
			return &m.Status.Conditions[i]
		}
	}
	return nil
}

// Superseded says whether a migration that failed for the reason did so because what changed made it pointless. Where
// Concord migrates by itself that leads to another one.
func Superseded(reason string) bool {
	return reason == ReasonAgreementLost || reason == ReasonStorageVersionChanged || reason == ReasonCRDChanged
}

// Final says whether the migration has ended.
func Final(m *StorageVersionMigration) bool {
	return True(m, MigrationSucceeded) != nil || True(m, MigrationFailed) != nil
}

// SetCondition makes the condition of type t the one that is true, and sets the phase accordingly. Conditions that
// were true before lose messages that no longer hold.
func SetCondition(m *StorageVersionMigration, t MigrationConditionType, reason, message string, now metav1.Time) {
	for i := range m.Status.Conditions {
		if c := &m.Status.Conditions[i]; c.Type != t && c.Status == corev1.ConditionTrue {
			c.Status, c.LastUpdateTime, c.Reason, c.Message = corev1.ConditionFalse, now, reason, ""
		}
	}
	switch m.Status.Phase = MigrationPhase(t); {
	case reason == ReasonPaused:
		m.Status.Phase = PhasePaused
	case t == MigrationFailed && Superseded(reason):
		m.Status.Phase = PhaseSuperseded
	}
	m.Status.set(MigrationCondition{Type: t, Status: corev1.ConditionTrue, LastUpdateTime: now, Reason: reason, Message: message})
}

// set puts a condition in the place of that of its type.
func (s *StorageVersionMigrationStatus) set(c MigrationCondition) {
	i := slices.IndexFunc(s.Conditions, func(old MigrationCondition) bool { return old.Type == c.Type })
	if i < 0 {
		s.Conditions = append(s.Conditions, c)
		return
	}
	s.Conditions[i] = c
}

// Waiting returns the message that explains why no server has begun the migration; empty if it does not wait.
func Waiting(m *StorageVersionMigration) string {
	for _, c := range m.Status.Conditions {
		if c.Type == MigrationRunning && c.Status == corev1.ConditionFalse && c.Reason == ReasonWaitingForAgreement {
			return c.Message
		}
	}
	return ""
}

// SetWaiting has a migration that no server has begun say what it waits for, or that it does
// not wait any more.
func SetWaiting(m *StorageVersionMigration, why string, now metav1.Time) {
	c := MigrationCondition{Type: MigrationRunning, Status: corev1.ConditionFalse, LastUpdateTime: now, Reason: ReasonWaitingForAgreement, Message: why}
	if why == "" {
		c.Reason, c.Message = ReasonPending, "no server has begun"
	}
	m.Status.Phase = phaseBefore(m)
	m.Status.set(c)
}

// MigrationKind is that of migrations, in both APIs.
const MigrationKind = "StorageVersionMigration"

// Original returns the migration of storagemigration.k8s.io that this one is a copy of; nil
// if it is none.
func Original(m *StorageVersionMigration) *metav1.OwnerReference {
	ref := metav1.GetControllerOf(m)
	if ref == nil || ref.Kind != MigrationKind {
		return nil
	}
	if gv, err := schema.ParseGroupVersion(ref.APIVersion); err != nil || gv.Group != storagemigrationv1.GroupName {
		return nil
	}
	return ref
}

// OfManager reports whether a reason in the conditions of a migration of storagemigration.k8s.io is one that
// kube-controller-manager's migrator sets, whatever program contains that migrator.
func OfManager(reason string) bool {
	return strings.HasPrefix(reason, "Migration") || strings.HasPrefix(reason, "StorageVersionMigration")
}
