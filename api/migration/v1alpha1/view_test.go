package v1alpha1

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/endpoints/discovery"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/evolve"
)

func TestStorageVersionHash(t *testing.T) {
	for _, gvk := range []schema.GroupVersionKind{
		{Group: "batch", Version: "v1beta1", Kind: "CronJob"},
		{Version: "v1", Kind: "ConfigMap"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingAdmissionPolicy"},
	} {
		if got, want := StorageVersionHash(gvk), discovery.StorageVersionHash(gvk.Group, gvk.Version, gvk.Kind); got != want {
			t.Errorf("%v: %s, discovery shows %s", gvk, got, want)
		}
	}
}

func TestStateView(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	written := evolve.State{
		Of:         evolve.Ref{UID: "u", Epoch: 4},
		Stored:     []agree.Encoding{"batch/v1beta1", evolve.Unknown},
		Current:    "batch/v1beta1",
		Heartbeat:  now,
		Custom:     true,
		Listed:     []agree.Encoding{"batch/v1beta1", "batch/v1"},
		Definition: "u/3",
	}
	s := &StorageState{}
	s.Annotations = Copies(written)
	SetState(s, written, "CronJob")
	if want := []string{discovery.StorageVersionHash("batch", "v1beta1", "CronJob"), "Unknown"}; !slices.Equal(s.Status.PersistedStorageVersionHashes, want) {
		t.Errorf("hashes %v, want %v", s.Status.PersistedStorageVersionHashes, want)
	}
	if got := ViewState(s); !reflect.DeepEqual(got, written) {
		t.Errorf("read %+v, written %+v", got, written)
	}
	wider := evolve.State{Stored: []agree.Encoding{"batch/v1beta1", "batch/v1"}}
	if !Covers(s, written) || !Covers(s, wider) {
		t.Error("an annotation that lists Unknown covers everything")
	}
	s.Annotations[StoredEncodingsAnnotation] = "batch/v1beta1"
	if Covers(s, wider) || Covers(s, written) || !Covers(s, evolve.State{Stored: wider.Stored[:1]}) {
		t.Error("an annotation covers what it lists, and nothing else")
	}
}

// TestStateViewOfOthers: a status of a StorageState that Concord did not write as a whole is not relied
// on.
func TestStateViewOfOthers(t *testing.T) {
	whole := StorageStateStatus{
		PersistedStorageVersionHashes: []string{"h"}, PersistedEncodings: []string{"batch/v1"},
		CurrentEncoding: "batch/v1", StorageVersionUID: "u", Epoch: 2,
	}
	for _, test := range []struct {
		name   string
		change func(*StorageStateStatus)
		of     evolve.Ref
		stored []agree.Encoding
	}{
		{"as written", func(*StorageStateStatus) {}, evolve.Ref{UID: "u", Epoch: 2}, []agree.Encoding{"batch/v1"}},
		{"no status yet", func(s *StorageStateStatus) { *s = StorageStateStatus{} }, evolve.Ref{}, nil},
		{"an administrator adds Unknown", func(s *StorageStateStatus) {
			s.PersistedStorageVersionHashes = append(s.PersistedStorageVersionHashes, Unknown)
		}, evolve.Ref{UID: "u", Epoch: 2}, []agree.Encoding{"batch/v1", evolve.Unknown}},
		{"an administrator replaces a hash by Unknown", func(s *StorageStateStatus) {
			s.PersistedStorageVersionHashes = []string{Unknown}
		}, evolve.Ref{UID: "u", Epoch: 2}, []agree.Encoding{"batch/v1", evolve.Unknown}},
		{"kube-storage-version-migrator writes it", func(s *StorageStateStatus) {
			*s = StorageStateStatus{PersistedStorageVersionHashes: []string{"h"}, CurrentStorageVersionHash: "h"}
		}, evolve.Ref{}, []agree.Encoding{evolve.Unknown}},
	} {
		s := &StorageState{Status: whole}
		test.change(&s.Status)
		if got := ViewState(s); got.Of != test.of || !slices.Equal(got.Stored, test.stored) {
			t.Errorf("%s: read %s of %s", test.name, agree.Join(got.Stored), got.Of)
		}
	}
}

func TestMigrationView(t *testing.T) {
	target := evolve.Target{Ref: evolve.Ref{UID: "u", Epoch: 12}, Encoding: "v1"}
	m := &StorageVersionMigration{}
	m.Name = "m"
	if got := ViewMigration(m); got.Target != (evolve.Target{}) || got.Phase != evolve.Pending || got.Made {
		t.Errorf("a new migration: %+v", got)
	}
	SetTarget(m, target)
	if got := TargetOf(m); got != target {
		t.Errorf("target %s, stamped %s", got, target)
	}
	for _, annotation := range []string{StorageVersionUIDAnnotation, EpochAnnotation, EncodingAnnotation} {
		part := m.DeepCopy()
		delete(part.Annotations, annotation)
		if got := TargetOf(part); got != (evolve.Target{}) {
			t.Errorf("without %s the target is %s", annotation, got)
		}
	}
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, ClaimedByAnnotation, "apiserver-a")
	if got := ViewMigration(m).Phase; got != evolve.Running {
		t.Errorf("a claimed migration is %s", got)
	}
}

// TestWaiting: a migration that waits is pending; one that has begun, or has ended, does not wait any
// more.
func TestWaiting(t *testing.T) {
	m := &StorageVersionMigration{}
	at := metav1.NewTime(time.Unix(10, 0))
	for _, why := range []string{"x does not report", "", "y does not report"} {
		SetWaiting(m, why, at)
		if view := ViewMigration(m); Waiting(m) != why || view.Waiting != why || view.Phase != evolve.Pending || len(m.Status.Conditions) != 1 {
			t.Errorf("waits for %q, want %q: %+v", Waiting(m), why, m.Status.Conditions)
		}
	}
	SetCondition(m, MigrationRunning, ReasonRewriting, "runs", at)
	if view := ViewMigration(m); view.Waiting != "" || view.Phase != evolve.Running || len(m.Status.Conditions) != 1 {
		t.Errorf("begun: %+v", m.Status.Conditions)
	}
	SetCondition(m, MigrationFailed, ReasonAgreementLost, "fails", at)
	if why := Waiting(m); why != "" {
		t.Errorf("ended, and waits for %q", why)
	}
}

func TestSetCondition(t *testing.T) {
	m := &StorageVersionMigration{}
	first, second := metav1.NewTime(time.Unix(10, 0)), metav1.NewTime(time.Unix(20, 0))
	SetCondition(m, MigrationRunning, ReasonRewriting, "runs", first)
	SetCondition(m, MigrationRunning, ReasonPaused, "rests", first)
	if m.Status.Phase != PhasePaused {
		t.Errorf("paused in mid-run its phase is %s", m.Status.Phase)
	}
	SetCondition(m, MigrationRunning, ReasonRewriting, "runs", first)
	SetCondition(m, MigrationFailed, ReasonObjectsFailed, "fails", second)
	for _, c := range m.Status.Conditions {
		if c.Type == MigrationRunning && c.Message != "" {
			t.Errorf("after its end it still says %q", c.Message)
		}
	}
	if True(m, MigrationRunning) != nil || True(m, MigrationFailed) == nil || !Final(m) {
		t.Fatalf("conditions %+v", m.Status.Conditions)
	}
	if view := ViewMigration(m); view.Phase != evolve.Failed || !view.Ended.Equal(second.Time) {
		t.Errorf("view %+v", view)
	}
	for reason, phase := range map[string]MigrationPhase{ReasonObjectsFailed: MigrationPhase(MigrationFailed), ReasonAgreementLost: PhaseSuperseded} {
		SetCondition(m, MigrationFailed, reason, "again", second)
		if len(m.Status.Conditions) != 2 || m.Status.Phase != phase {
			t.Errorf("%s: phase %s, want %s, and %d conditions, want one of each type", reason, m.Status.Phase, phase, len(m.Status.Conditions))
		}
	}
}

// TestNewEvents: the Events about a migration and about its original (in storagemigration.k8s.io) never
// have the same name, however long the names of the two are.
func TestNewEvents(t *testing.T) {
	original := &storagemigrationv1.StorageVersionMigration{}
	original.Name, original.UID = strings.Repeat("a.", 126)+"a", "628f6922-a9cb-4514-b076-12d3c178967c"
	m := &StorageVersionMigration{}
	m.Name, m.UID = original.Name[:215]+"-"+string(original.UID), "0a1b2c3d-a9cb-4514-b076-12d3c178967c"
	m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(original, storagemigrationv1.SchemeGroupVersion.WithKind(MigrationKind))}
	events := NewEvents(m, "one", "Normal", EventResumed, strings.Repeat("long ", 1000), time.Unix(1e9, 0))
	if len(events) != 2 || events[0].Name == events[1].Name || events[1].InvolvedObject.UID != original.UID {
		t.Fatalf("events %+v", events)
	}
	for _, e := range events {
		if problems := validation.IsDNS1123Subdomain(e.Name); len(problems) > 0 || len(e.Message) > maxNote {
			t.Errorf("event %s, %d characters: %v", e.Name, len(e.Message), problems)
		}
	}
	m.OwnerReferences[0].APIVersion = "example.com/v1"
	if events := NewEvents(m, "one", "Normal", EventResumed, "", time.Unix(1e9, 0)); len(events) != 1 {
		t.Errorf("events %+v", events)
	}
}

// TestHeld: the hold annotation of a CustomResourceDefinition counts with every value except "false".
func TestHeld(t *testing.T) {
	for _, value := range []string{"true", "True", " true", "yes", "1", "", "false", "False"} {
		if got, want := Held(map[string]string{HoldAnnotation: value}), strings.ToLower(value) != "false"; got != want {
			t.Errorf("%q: held is %v", value, got)
		}
	}
	if Held(nil) || Held(map[string]string{"concord.dev/prune": "now"}) {
		t.Error("it is held without the annotation")
	}
}
