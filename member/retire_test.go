package member

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// made returns the uid of the CRD that the StorageVersion of widgets names, and the
// StorageVersion's own.
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

// settled steps a member, with the clock, until it has nothing to do.
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

// TestPausedWriter: a server is paused with a write under way. Meanwhile the CRD is
// deleted and made again in another version. The write must not land in the new CRD.
func TestPausedWriter(t *testing.T) {
	for _, tc := range []struct {
		name string
		// b notices the deletion before the CRD is made again.
		noticed bool
	}{{"the other server saw the deletion", true}, {"the other server saw only the new CRD", false}} {
		t.Run(tc.name, func(t *testing.T) {
			w, b := withTwo(t)
			permit, err := w.m.Revision(t.Context(), widgets, v1)
			must(t, err)
			before, _ := w.reports(widgets)
			crd := w.setCRD("v1")
			w.deleteCRD(crd)
			if tc.noticed {
				b.ForgetCRD(crd)
				w.settled(b)
				if reports, revision := w.reports(widgets); revision != 0 {
					t.Errorf("reports %v of a resource that is gone", reports)
				}
			}
			again := w.setCRD("v2")
			b.ObserveCRD(again)
			w.settled(b)

			reports, mod := w.reports(widgets)
			if len(reports) != 1 || reports[0].Server != b.ID() || reports[0].Encoding != v2 {
				t.Fatalf("reports %v, want only that of the server that knows the new CRD", reports)
			}
			if mod == permit {
				t.Fatal("the paused write would commit")
			}
			if err := w.m.Moved(t.Context(), widgets, v1, mod, mod, reports); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("Moved: %v, had %v before", err, before)
			}
			// The paused server wakes up, and learns of the new CRD before it reports.
			w.settled(w.m)
			w.expectOpen(widgets, v2)
			if reports, _ := w.reports(widgets); len(reports) != 2 {
				t.Errorf("reports %v, want both", reports)
			}
			if uid, _ := w.made(); uid != again.UID {
				t.Errorf("the StorageVersion was made for the CRD %s, want %s", uid, again.UID)
			}
		})
	}
}

// TestReplacedOnce: servers that learn of the new CRD one after the other do not delete
// each other's StorageVersions.
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

// TestLateServerDoesNotReplace: a server that still knows only an earlier CRD reads the CRD
// before it deletes the StorageVersion that was made for the later one.
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

// TestMadeAgainBetweenReads: the CRD is made again, and reported, between the read that
// found none and the read of the StorageVersion.
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
	if n := strings.Count(w.Took(), "delete StorageVersion"); n != 1 { // b's, of the old one
		t.Errorf("deleted %d times", n)
	}
	w.expectOpen(widgets, v2)
}

// TestDeletedWithoutAnEvent: the other's deletion of the StorageVersion comes before the
// CRD's event. It is not made again for a CRD that is gone.
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

// TestNamesLost: only the own report is dropped while the CRD exists.
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

// TestReplacingEnds: three servers see a CRD deleted and made again, with events late,
// lost and in any order, and calls that fail. No permit may outlive its CRD, and in the
// end all report, in a StorageVersion for the last CRD.
func TestReplacingEnds(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			w := newWorld(t, nil)
			members := []*Member{w.m, w.another(seed + 100), w.another(seed + 200)}
			for _, m := range members {
				must(t, m.Register(t.Context()))
			}
			crds := []*apiextensionsv1.CustomResourceDefinition{w.setCRD("v1")}
			flaky := func(string) error {
				if rng.IntN(8) == 0 {
					return errBroken
				}
				return nil
			}
			w.Before, w.After = flaky, flaky
			gone := false
			for range 150 {
				m, crd := members[rng.IntN(len(members))], crds[rng.IntN(len(crds))]
				last := crds[len(crds)-1]
				switch rng.IntN(8) {
				case 0:
					if !gone {
						w.deleteCRD(last)
					}
					gone = !gone
					if !gone {
						crds = append(crds, w.setCRD([]string{"v1", "v2"}[rng.IntN(2)]))
					}
				case 1, 2:
					m.ObserveCRD(crd)
				case 3:
					m.ForgetCRD(crd)
				case 4:
					w.expectPermitsOfCRD(members, crds)
				default:
					_, _ = m.Step(t.Context())
				}
			}
			w.Before, w.After = nil, nil
			last := w.setCRD("v2")
			w.Took()
			for range 10 {
				for _, m := range members {
					m.ObserveCRD(last)
					w.observeWith(m)
					w.settled(m)
				}
			}
			if n := strings.Count(w.Took(), "delete StorageVersion"); n > len(members) {
				t.Errorf("deleted %d times after the last change", n)
			}
			if reports, _ := w.reports(widgets); len(reports) != len(members) {
				t.Errorf("reports %v", reports)
			}
			if uid, _ := w.made(); uid != last.UID {
				t.Errorf("made for %s, want %s", uid, last.UID)
			}
			w.expectPermitsOfCRD(members, append(crds, last))
		})
	}
}

// expectPermitsOfCRD demands that every server that could commit a write has checked the CRD
// for which the StorageVersion was made.
func (w *world) expectPermitsOfCRD(members []*Member, crds []*apiextensionsv1.CustomResourceDefinition) {
	w.t.Helper()
	uid, _ := w.made()
	_, at := w.reports(widgets)
	for _, m := range members {
		m.mu.RLock()
		s := m.resources[widgets]
		if s != nil && s.open() && s.revision == at && s.target.uid != uid {
			w.t.Errorf("a write for the CRD %s commits in the StorageVersion for %s of %d CRDs", s.target.uid, uid, len(crds))
		}
		m.mu.RUnlock()
	}
}

// observeWith delivers the StorageVersion that the watch sees to a member.
func (w *world) observeWith(m *Member) {
	w.Quietly(func() {
		var sv v1alpha1.StorageVersion
		if err := w.client.Get(w.t.Context(), client.ObjectKey{Name: "example.com.widgets"}, &sv); err == nil {
			m.ObserveStorageVersion(&sv, false)
		}
	})
}

// TestReplaceConflict: a StorageVersion that changed since it was read is not deleted.
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

// TestUnservedIsNotGone: a 404 for a path that is not served, as while an API server
// starts, says nothing about a CRD or a StorageVersion.
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
