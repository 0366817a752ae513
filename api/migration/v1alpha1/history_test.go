package v1alpha1_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/evolve"
)

// TestHistory: a StorageState's history has each migration that ended once, the newest first, and
// drops old ones.
func TestHistory(t *testing.T) {
	began := time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{
		Name: "m", UID: "u", CreationTimestamp: metav1.NewTime(began), Annotations: map[string]string{migrationv1alpha1.AskedByUserAnnotation: "alice"},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubectl-create"}},
	}}
	migrationv1alpha1.SetTarget(m, evolve.Target{Ref: evolve.Ref{UID: "sv", Epoch: 2}, Encoding: "example.com/v2"})
	stored := []agree.Encoding{"example.com/v1", "example.com/v2"}
	if p, ended := migrationv1alpha1.PastOf(m, stored); ended {
		t.Errorf("one that has not ended is told: %+v", p)
	}
	m.Status.Progress = &migrationv1alpha1.MigrationProgress{Total: 5, Done: 1, Failed: 4}
	for i := range 4 {
		m.Status.Failures = append(m.Status.Failures, migrationv1alpha1.MigrationFailure{Namespace: "ns", Name: fmt.Sprint(i), Reason: migrationv1alpha1.FailureRejected, Message: strings.Repeat("é", 200)})
	}
	migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonObjectsFailed, "", metav1.NewTime(began.Add(time.Minute)))
	p, ended := migrationv1alpha1.PastOf(m, stored)
	if !ended || !slices.Equal(p.From, []string{"example.com/v1"}) || p.To != "example.com/v2" || p.Objects != 1 || p.Failed != 4 || len(p.Failures) != 3 ||
		p.Failures[0] != "ns/0" || p.Took() != time.Minute || p.Made != "kubectl-create" || p.User != "alice" || p.Result != "Failed" || p.Why != strings.Repeat("é", 150)+"…" || p.FailureReason != migrationv1alpha1.FailureRejected {
		t.Errorf("told %+v, %v", p, ended)
	}
	m.Annotations[migrationv1alpha1.AskedByUserAnnotation] = "\x1b[2J\n" + strings.Repeat("<", 200_000)
	if p, _ := migrationv1alpha1.PastOf(m, stored); p.User != "?[2J?"+strings.Repeat("<", 95)+"…" {
		t.Errorf("told of the user %q", p.User)
	}
	freed := m.DeepCopy() // as one of Concord's whose target changed while it was paused
	freed.Annotations[migrationv1alpha1.AttemptAnnotation] = "2"
	migrationv1alpha1.Free(freed)
	if p, _ := migrationv1alpha1.PastOf(freed, stored); p.Made != migrationv1alpha1.MadeByTrigger {
		t.Errorf("one that Concord made was made by %s", p.Made)
	}
	superseded := m.DeepCopy()
	migrationv1alpha1.SetCondition(superseded, migrationv1alpha1.MigrationFailed, migrationv1alpha1.ReasonCRDChanged, "", metav1.NewTime(began))
	if p, _ := migrationv1alpha1.PastOf(superseded, stored); p.Result != migrationv1alpha1.PastSuperseded || p.Reason != migrationv1alpha1.ReasonCRDChanged {
		t.Errorf("of one whose definition changed %+v is told", p)
	}
	old := map[string]string{migrationv1alpha1.HistoryAnnotation: `[{"result": "Failed", "reason": "CustomResourceDefinitionChanged"}, {"result": "Failed", "reason": "ObjectsFailed"}]`}
	if past := migrationv1alpha1.History(old); len(past) != 2 || past[0].Result != migrationv1alpha1.PastSuperseded || past[1].Result != "Failed" {
		t.Errorf("of two that an older release recorded %+v is told", past)
	}
	annotations := map[string]string{}
	for i := range 30 {
		later := p
		later.UID, later.Ended = types.UID(fmt.Sprint(i)), metav1.NewTime(began.Add(time.Duration(i)*time.Minute))
		annotations[migrationv1alpha1.HistoryAnnotation] = migrationv1alpha1.Recorded(annotations, later, later)
	}
	all := migrationv1alpha1.History(annotations)
	if len(all) != migrationv1alpha1.MaxHistory || all[0].UID != "29" || all[9].UID != "20" {
		t.Errorf("%d are told: %v", len(all), annotations)
	}
	if got := migrationv1alpha1.History(map[string]string{migrationv1alpha1.HistoryAnnotation: "no list"}); got != nil {
		t.Errorf("of what is no history %v is told", got)
	}
}

// TestCreator: the history names the client that asked for a migration (by the managed fields of
// its spec), and not one that wrote other fields in the same second.
func TestCreator(t *testing.T) {
	entry := func(manager, subresource, fields string) metav1.ManagedFieldsEntry {
		e := metav1.ManagedFieldsEntry{Manager: manager, Subresource: subresource}
		if fields != "" {
			e.FieldsV1 = metav1.NewFieldsV1(fields)
		}
		return e
	}
	const spec = `{"f:spec":{".":{},"f:resource":{".":{},"f:resource":{}}}}`
	for name, test := range map[string]struct {
		want    string
		entries []metav1.ManagedFieldsEntry
	}{
		"nobody":                   {"", nil},
		"its annotations":          {"kubectl-create", []metav1.ManagedFieldsEntry{entry("concord-controllers", "", `{"f:metadata":{}}`), entry("kubectl-create", "", spec)}},
		"its status":               {"zed", []metav1.ManagedFieldsEntry{entry("alice", "status", spec), entry("zed", "", spec)}},
		"its pause":                {"zed", []metav1.ManagedFieldsEntry{entry("kubectl-edit", "", `{"f:spec":{"f:paused":{}}}`), entry("zed", "", spec)}},
		"without fields":           {"zed", []metav1.ManagedFieldsEntry{entry("concord", "", ""), entry("concord-controllers", "", ""), entry("zed", "", "")}},
		"no more than Concord did": {"", []metav1.ManagedFieldsEntry{entry("concord-controllers", "", `{"f:metadata":{}}`)}},
	} {
		m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{ManagedFields: test.entries}}
		migrationv1alpha1.SetCondition(m, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.ReasonSucceeded, "", metav1.Now())
		if p, _ := migrationv1alpha1.PastOf(m, nil); p.Made != test.want {
			t.Errorf("%s: made by %q, not %q", name, p.Made, test.want)
		}
	}
}

// TestObject: an object without a namespace is named by its name alone.
func TestObject(t *testing.T) {
	for want, f := range map[string]migrationv1alpha1.MigrationFailure{"ns/o": {Namespace: "ns", Name: "o"}, "o": {Name: "o"}} {
		if got := f.Object(); got != want {
			t.Errorf("%+v is called %q", f, got)
		}
	}
}
