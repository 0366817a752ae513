package storageversion

import (
	"fmt"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/concord-dev/concord/agree"
)

// report has a server report an encoding, as a status update.
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

// TestManyKeys has a server report a new key again and again: the StorageVersion takes all
// reports, stays small, and a reader that has not looked since the first learns of Unknown.
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

// TestFullHistory has a server report to a StorageVersion whose annotations are full, as
// they could become before histories were bounded.
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

// TestForgottenFromClient has a client claim what is forgotten: it is ignored.
func TestForgottenFromClient(t *testing.T) {
	old := report(t, &v1alpha1.StorageVersion{}, "apps/v1")
	sv := old.DeepCopy()
	sv.Annotations[ForgottenAnnotation] = "7"
	PrepareUpdate(sv, old)
	if h, err := History(sv); err != nil || h.Forgotten != 0 {
		t.Errorf("%v, %v", h, err)
	}
}
