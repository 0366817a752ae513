package member

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// made returns the uid of the CRD that the StorageVersion of widgets was made for, and the uid of
// the StorageVersion.
func (w *world) made() (crd, own types.UID) {
	w.t.Helper()
	w.Quietly(func() {
		var sv v1alpha1.StorageVersion
		if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "example.com.widgets"}, &sv); err == nil {
			crd, own = storageversion.MadeFor(&sv), sv.UID
		}
	})
	return crd, own
}

// settled steps a member and the clock until the member has nothing to do.
func (w *world) settled(m *Member) {
	w.t.Helper()
	for range 100 {
		wait, _ := m.Step(w.t.Context())
		if wait < 0 {
			return
		}
		w.clock.Step(wait)
	}
	w.t.Fatalf("a member does not settle: %v", m.Snapshot())
}

// withTwo returns a world in which two members report widgets in v1.
func withTwo(t *testing.T) (w *world, b *Member) {
	w = withWidgets(t)
	b = w.another(9)
	must(t, b.Register(t.Context()))
	b.ObserveCRD(w.setCRD("v1"))
	w.settled(b)
	w.observe(widgets)
	if reports, _ := w.reports(widgets); len(reports) != 2 {
		t.Fatalf("reports %v, want two", reports)
	}
	return w, b
}

// TestReplacedOnce: two servers learn of the new CRD one after the other. The second does not
// delete the StorageVersion that the first one made.
func TestReplacedOnce(t *testing.T) {
	w, b := withTwo(t)
	w.deleteCRD(w.setCRD("v1"))
	again := w.setCRD("v1")
	w.Took()
	b.ObserveCRD(again)
	w.settled(b)
	_, own := w.made()
	w.m.ObserveCRD(again)
	w.settled(w.m)
	w.settled(b)
	if uid, now := w.made(); uid != again.UID || now != own {
		t.Errorf("StorageVersion %s for %s, want %s for %s", now, uid, own, again.UID)
	}
	if n := strings.Count(w.Took(), "delete StorageVersion"); n != 1 {
		t.Errorf("deleted %d times", n)
	}
	w.expectOpen(widgets, v1)
}

// TestLateServerDoesNotReplace: a server that only knows an earlier CRD reads the CRD before it
// would delete the StorageVersion, and so finds that it was made for the later CRD.
func TestLateServerDoesNotReplace(t *testing.T) {
	for _, event := range []string{"served versions", "deleted"} {
		t.Run(event, func(t *testing.T) {
			w, b := withTwo(t)
			crd := w.setCRD("v1")
			w.deleteCRD(crd)
			b.ObserveCRD(w.setCRD("v2"))
			w.settled(b)
			_, own := w.made()
			w.Took()
			if event == "deleted" {
				w.m.ForgetCRD(crd)
			} else {
				late := crd.DeepCopy()
				late.Spec.Versions[1].Served = false
				w.m.ObserveCRD(late)
				w.observe(widgets)
			}
			w.settled(w.m)
			if _, now := w.made(); now != own {
				t.Error("the StorageVersion of the new CRD was deleted")
			}
			w.expectOpen(widgets, v2)
		})
	}
}

// TestMadeAgainBetweenReads: one server finds no CRD. Before it reads the StorageVersion, the CRD
// is made again, and another server reports it.
func TestMadeAgainBetweenReads(t *testing.T) {
	w, b := withTwo(t)
	crd := w.setCRD("v1")
	w.deleteCRD(crd)
	w.m.ForgetCRD(crd)
	w.Once("get StorageVersion example.com.widgets", func() {
		b.ObserveCRD(w.setCRD("v2"))
		w.settled(b)
	})
	w.settled(w.m)
	if n := strings.Count(w.Took(), "delete StorageVersion"); n != 1 { // the other server deletes the old one
		t.Errorf("deleted %d times", n)
	}
	w.expectOpen(widgets, v2)
}

// TestDeletedWithoutAnEvent: another server deletes the StorageVersion before this one gets the
// event of the CRD's deletion. This server does not make the StorageVersion again.
func TestDeletedWithoutAnEvent(t *testing.T) {
	w, b := withTwo(t)
	crd := w.setCRD("v1")
	w.deleteCRD(crd)
	b.ForgetCRD(crd)
	w.settled(b)
	w.m.ObserveStorageVersions(nil, 1<<40)
	w.Took()
	w.settled(w.m)
	if calls := w.Took(); strings.Contains(calls, "create") {
		t.Errorf("calls %s", calls)
	}
	if reports, revision := w.reports(widgets); revision != 0 {
		t.Errorf("reports %v of a resource that is gone", reports)
	}
}

// TestNamesLost: while the CRD exists, a server that does not serve it drops only its own report.
func TestNamesLost(t *testing.T) {
	w, b := withTwo(t)
	crd := w.setCRD("v1")
	crd.Status.Conditions = nil
	w.Quietly(func() {
		must(t, w.client.Status().Update(t.Context(), crd))
	})
	w.m.ObserveCRD(crd)
	w.settled(w.m)
	if reports, _ := w.reports(widgets); len(reports) != 1 || reports[0].Server != b.ID() {
		t.Errorf("reports %v, want only the other's", reports)
	}
}

// TestReplaceConflict: a StorageVersion that was changed after it was read is not deleted.
func TestReplaceConflict(t *testing.T) {
	w, b := withTwo(t)
	w.deleteCRD(w.setCRD("v1"))
	w.m.ObserveCRD(w.setCRD("v2"))
	w.Once("delete StorageVersion", func() {
		reports, _ := w.reports(widgets)
		w.setReports(widgets, agree.Without(reports, b.ID())...)
	})
	if _, err := w.m.Step(t.Context()); !apierrors.IsConflict(err) {
		t.Errorf("Step: %v, want a conflict", err)
	}
	w.settled(w.m)
	w.expectOpen(widgets, v2)
}

// TestUnservedIsNotGone: a 404 for a path that is not served, as by an API server that is starting,
// does not mean that a CRD or a StorageVersion does not exist.
func TestUnservedIsNotGone(t *testing.T) {
	unserved := apierrors.NewGenericServerResponse(http.StatusNotFound, "get", storageversion.Resource, "x", "404 page not found", 0, true)
	for _, path := range []string{"get CustomResourceDefinition", "list CustomResourceDefinitionList", "get StorageVersion", "delete StorageVersion"} {
		w, b := withTwo(t)
		crd := w.setCRD("v1")
		if path == "delete StorageVersion" {
			w.deleteCRD(crd)
		}
		w.Fail(path, unserved)
		b.ForgetCRD(crd)
		err := b.Report(t.Context(), widgets)
		if path == "list CustomResourceDefinitionList" {
			_, err = b.listCRDs(t.Context())
		}
		if !errors.Is(err, unserved) {
			t.Errorf("%s: %v, want the 404", path, err)
		}
		if reports, _ := w.reports(widgets); len(reports) != 2 {
			t.Errorf("%s: reports %v, want both to stand", path, reports)
		}
	}
}
