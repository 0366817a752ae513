package storageversion

import (
	"maps"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
)

// The seal that a server encrypts with goes with its report: it survives the wire, is written by
// status updates only, and is not taken for nothing where it cannot be read.
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
