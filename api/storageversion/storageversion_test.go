package storageversion

import (
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

func TestNames(t *testing.T) {
	for _, tc := range []struct {
		gr   schema.GroupResource
		name string
	}{
		{schema.GroupResource{Resource: "secrets"}, "core.secrets"},
		{schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}, "networking.k8s.io.ipaddresses"},
	} {
		if got := Name(tc.gr); got != tc.name {
			t.Errorf("Name(%v) = %q, want %q", tc.gr, got, tc.name)
		}
		if got, err := GroupResource(tc.name); err != nil || got != tc.gr {
			t.Errorf("GroupResource(%q) = %v, %v, want %v", tc.name, got, err, tc.gr)
		}
	}
	for _, bad := range []string{"", "secrets", ".secrets", "core."} {
		if got, err := GroupResource(bad); err == nil {
			t.Errorf("GroupResource(%q) = %v, want an error", bad, got)
		}
	}
}

func TestSetReports(t *testing.T) {
	at := func(minute int) metav1.Time { return metav1.NewTime(time.Date(2030, 1, 1, 0, minute, 0, 0, time.UTC)) }
	in := func(server agree.ServerID, e string) agree.Report {
		return agree.Report{Server: server, Encoding: agree.Encoding(e), Decodable: []string{e}, Served: []string{e}}
	}
	sv := &v1alpha1.StorageVersion{}
	for i, step := range []struct {
		reports []agree.Report
		common  string
		status  v1alpha1.ConditionStatus
		changed int // the minute of the last transition
	}{
		{[]agree.Report{in("a", "g/v1")}, "g/v1", v1alpha1.ConditionTrue, 0},
		{[]agree.Report{in("a", "g/v1"), in("b", "g/v1")}, "g/v1", v1alpha1.ConditionTrue, 0},
		{[]agree.Report{in("a", "g/v1"), in("b", "g/v2")}, "", v1alpha1.ConditionFalse, 2},
		{[]agree.Report{in("b", "g/v2")}, "g/v2", v1alpha1.ConditionTrue, 3},
		{[]agree.Report{in("b", "g/v1")}, "g/v1", v1alpha1.ConditionTrue, 4},
		{nil, "", v1alpha1.ConditionFalse, 5},
	} {
		SetReports(sv, step.reports, at(i))
		if !agree.Equal(Reports(sv), step.reports) {
			t.Errorf("step %d: reports %v, want %v", i, Reports(sv), step.reports)
		}
		if common, ok := Agreement(sv); string(common) != step.common || ok != (step.common != "") {
			t.Errorf("step %d: agreement %q, %v, want %q", i, common, ok, step.common)
		}
		if len(sv.Status.Conditions) != 1 || sv.Status.Conditions[0].Status != step.status {
			t.Fatalf("step %d: conditions %v, want one that is %s", i, sv.Status.Conditions, step.status)
		}
		if got, want := sv.Status.Conditions[0].LastTransitionTime, at(step.changed); !got.Equal(&want) {
			t.Errorf("step %d: last transition %v, want %v", i, got, want)
		}
	}
}

func TestHistory(t *testing.T) {
	sv := &v1alpha1.StorageVersion{}
	if h, err := History(sv); err != nil || h.Epoch != 0 || len(h.Last) != 0 {
		t.Fatalf("History of a new object: %v, %v", h, err)
	}
	want := agree.History{Epoch: 3, Last: map[agree.Encoding]int64{"g/v1": 3, "g/v2": 1}}
	SetHistory(sv, want)
	if got, err := History(sv); err != nil || got.String() != want.String() {
		t.Errorf("History: %v, %v, want %v", got, err, want)
	}
	want.Forgotten, want.Last["g/v2"] = 1, 2
	SetHistory(sv, want)
	if got, err := History(sv); err != nil || got.String() != want.String() {
		t.Errorf("History: %v, %v, want %v", got, err, want)
	}
	for _, bad := range []map[string]string{
		{EpochAnnotation: "1", ForgottenAnnotation: "x"},
		{EpochAnnotation: "1", ForgottenAnnotation: "1"},
		{EpochAnnotation: "3", ForgottenAnnotation: "1", EncodingsAnnotation: `{"g/v1":1}`},
		{EpochAnnotation: "x"},
		{EpochAnnotation: "-1"},
		{EpochAnnotation: "1", EncodingsAnnotation: "[]"},
		{EpochAnnotation: "1", EncodingsAnnotation: `{"g/v1":2}`},
	} {
		sv.Annotations = bad
		if h, err := History(sv); err == nil {
			t.Errorf("History of %v: %v, want an error", bad, h)
		}
	}
}
