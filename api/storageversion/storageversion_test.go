package storageversion

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

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

func TestIsGone(t *testing.T) {
	notFound := apierrors.NewNotFound(Resource, "x")
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"the object is gone", notFound, true},
		{"wrapped", fmt.Errorf("get it: %w", notFound), true},
		{"the path is not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", Resource, "x", "404 page not found", 0, true), false},
		{"the resource is not served", apierrors.NewGenericServerResponse(http.StatusNotFound, "get", Resource, "", "", 0, false), false},
		{"no details", &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}}, false},
		{"a timeout", apierrors.NewTimeoutError("x", 1), false},
		{"no answer", errors.New("connection refused"), false},
	} {
		if got := IsGone(test.err); got != test.want {
			t.Errorf("%s: IsGone(%v) = %t", test.name, test.err, got)
		}
	}
}

// TestSeals: a report tells the Seal (the key) that its server encrypts with. It is kept in an
// annotation, only status updates write it, and an annotation that cannot be read does not count as
// "not encrypted".
func TestSeals(t *testing.T) {
	by := func(server agree.ServerID, seal agree.Seal) agree.Report {
		return agree.Report{Server: server, Encoding: agree.Encoding("v1").Sealed(seal), Decodable: []string{"v1"}, Served: []string{"v1"}}
	}
	const a, b = "aescbc:v1:a:1", "aescbc:v1:b:2"
	sv := &v1alpha1.StorageVersion{}
	PrepareCreate(sv)
	update := func(want agree.Encoding, epoch int64, reports ...agree.Report) {
		t.Helper()
		sent := sv.DeepCopy()
		sent.Annotations["somebody"] = "else"
		SetReports(sent, reports, metav1.Now())
		PrepareStatusUpdate(sent, sv)
		if got := Reports(sent); !agree.Equal(got, reports) {
			t.Errorf("stored %v, want %v", got, reports)
		}
		if common, _ := Agreement(sent); common != want {
			t.Errorf("agreement %q, want %q", common, want)
		}
		if h, err := History(sent); err != nil || h.Epoch != epoch {
			t.Errorf("history %s, %v, want epoch %d", h, err, epoch)
		}
		if sent.Annotations["somebody"] != "" {
			t.Error("a status update has written an annotation")
		}
		for _, r := range sent.Status.StorageVersions {
			if r.EncodingVersion != "v1" {
				t.Errorf("the encodingVersion is %q", r.EncodingVersion)
			}
		}
		sv = sent
	}
	update("v1", 1, by("s1", ""))
	update("", 2, by("s1", ""), by("s2", a))
	update("v1+"+a, 3, by("s1", a), by("s2", a))
	update("", 4, by("s1", b), by("s2", a))
	update("v1+"+b, 5, by("s1", b))

	sent := sv.DeepCopy()
	sent.Annotations = map[string]string{SealsAnnotation: `{"s1":""}`}
	PrepareUpdate(sent, sv)
	if !maps.Equal(sent.Annotations, sv.Annotations) {
		t.Errorf("an update of the object has changed what is encrypted with: %v", sent.Annotations)
	}
	sv.Annotations[SealsAnnotation] = "{"
	if common, agreed := Agreement(sv); agreed && common.Seal() == "" {
		t.Error("an annotation that cannot be read means that nothing is encrypted")
	}
	update("v1", 6, by("s1", ""))
	if _, left := sv.Annotations[SealsAnnotation]; left {
		t.Error("the annotation stays where nothing is encrypted")
	}
}

// report returns the StorageVersion after a status update in which a server reports the encoding.
func report(t *testing.T, old *v1alpha1.StorageVersion, encoding agree.Encoding) *v1alpha1.StorageVersion {
	t.Helper()
	sv := old.DeepCopy()
	plain := string(encoding.Plain())
	SetReports(sv, []agree.Report{{Server: "a", Encoding: encoding, Decodable: []string{plain}, Served: []string{plain}}}, metav1.Now())
	PrepareStatusUpdate(sv, old)
	if errs := validation.ValidateAnnotations(sv.Annotations, field.NewPath("annotations")); len(errs) > 0 {
		t.Fatal(errs)
	}
	return sv
}

func size(sv *v1alpha1.StorageVersion) int {
	n := 0
	for key, value := range sv.Annotations {
		n += len(key) + len(value)
	}
	return n
}

// TestManyKeys has a server report 3,000 keys one after the other: the StorageVersion accepts all
// reports and stays small, and a reader that last read it at the first epoch gets Unknown.
func TestManyKeys(t *testing.T) {
	sv := &v1alpha1.StorageVersion{}
	PrepareCreate(sv)
	for i := range 3000 {
		sv = report(t, sv, agree.Encoding(fmt.Sprintf("apps/v1+kms:v2:provider:%064d:0123456789abcdef", i)))
	}
	if n := size(sv); n > 32<<10 {
		t.Errorf("the annotations take %d bytes", n)
	}
	h, err := History(sv)
	if err != nil || h.Epoch != 3000 || h.Forgotten == 0 {
		t.Fatalf("%v, %v", h, err)
	}
	if got := h.Since(1); len(got) != len(h.Last)+1 {
		t.Errorf("since 1: %d encodings of %d, want Unknown beside them", len(got), len(h.Last))
	}
	if got := h.Since(2999); len(got) != 1 || got[0] == agree.Unknown {
		t.Errorf("since 2999: %v", got)
	}
}

// TestFullHistory has a server report to a StorageVersion with annotations of the maximal size,
// which they could reach before histories were bounded.
func TestFullHistory(t *testing.T) {
	full := agree.History{Last: map[agree.Encoding]int64{}}
	for n := 0; n < validation.TotalAnnotationSizeLimitB-1024; {
		full.Epoch++
		e := agree.Encoding(fmt.Sprintf("apps/v1+aescbc:v1:key%d:0123456789abcdef", full.Epoch))
		full.Last[e] = full.Epoch
		n += len(e) + len(fmt.Sprintf(`"":%d,`, full.Epoch))
	}
	sv := &v1alpha1.StorageVersion{}
	SetHistory(sv, full)
	if sv = report(t, sv, "apps/v1"); size(sv) > 32<<10 {
		t.Errorf("the annotations take %d bytes", size(sv))
	}
}

// TestForgottenFromClient: a client's value of the annotation that says what the history has
// forgotten is ignored.
func TestForgottenFromClient(t *testing.T) {
	old := report(t, &v1alpha1.StorageVersion{}, "apps/v1")
	sv := old.DeepCopy()
	sv.Annotations[ForgottenAnnotation] = "7"
	PrepareUpdate(sv, old)
	if h, err := History(sv); err != nil || h.Forgotten != 0 {
		t.Errorf("%v, %v", h, err)
	}
}
