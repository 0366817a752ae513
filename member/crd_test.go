package member

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

const (
	v1 agree.Encoding = "example.com/v1"
	v2 agree.Encoding = "example.com/v2"
)

func TestWanted(t *testing.T) {
	crd := func(condition apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus) *apiextensionsv1.CustomResourceDefinition {
		c := &apiextensionsv1.CustomResourceDefinition{}
		c.Name = "widgets.example.com"
		c.Spec.Group, c.Spec.Names.Plural = "example.com", "widgets"
		c.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1alpha1"}, {Name: "v1", Served: true}, {Name: "v2", Served: true, Storage: true}}
		c.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: condition, Status: status}}
		return c
	}
	for _, c := range []*apiextensionsv1.CustomResourceDefinition{
		crd(apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionFalse), crd(apiextensionsv1.Terminating, apiextensionsv1.ConditionTrue),
	} {
		if r, ok := wanted(c); ok {
			t.Errorf("%v is reported before its names are accepted", r)
		}
	}
	for _, condition := range []apiextensionsv1.CustomResourceDefinitionConditionType{apiextensionsv1.NamesAccepted, apiextensionsv1.Established} {
		got, ok := wanted(crd(condition, apiextensionsv1.ConditionTrue))
		want := Resource{
			GroupResource: widgets, Encoding: v2, CRD: "widgets.example.com",
			Decodable: []string{"example.com/v1alpha1", "example.com/v1", "example.com/v2"}, Served: []string{"example.com/v1", "example.com/v2"},
		}
		if !ok || !got.equal(want) {
			t.Errorf("wanted with %s: %+v, %v", condition, got, ok)
		}
	}
	for _, tc := range []struct {
		served []string
		want   string
	}{{[]string{"g/v1", "g/v2"}, "g/v2"}, {[]string{"g/v1"}, "g/v1"}, {nil, ""}} {
		if got := (Resource{Encoding: "g/v2", Served: tc.served}).listable(); got != tc.want {
			t.Errorf("listable of %v: %q, want %q", tc.served, got, tc.want)
		}
	}
}

// withWidgets returns a world in which widgets may be written in v1.
func withWidgets(t testing.TB, edit ...func(*Config)) *world {
	t.Helper()
	w := newWorld(t, nil, edit...)
	w.register()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.settle()
	w.expectOpen(widgets, v1)
	w.Took()
	return w
}

// TestCRDOrder: "after reporting and before writing, a quorum read of the CRD must name
// the encoding reported".
func TestCRDOrder(t *testing.T) {
	w := withWidgets(t)
	w.m.ObserveCRD(w.setCRD("v2"))
	if revision, err := w.m.Revision(t.Context(), widgets, v1); err != nil || revision == 0 {
		t.Errorf("the old encoding is closed before the report is changed: %v", err)
	}
	checked := false
	w.Before = func(call string) error {
		switch call {
		case "update status StorageVersion example.com.widgets":
			// While the update is on its way, it is not known which encoding is reported.
			for _, enc := range []agree.Encoding{v1, v2} {
				if _, err := w.m.Revision(t.Context(), widgets, enc); !apierrors.IsServiceUnavailable(err) {
					t.Errorf("Revision(%s) while the report is sent: %v", enc, err)
				}
			}
		case "get CustomResourceDefinition widgets.example.com":
			checked = true
			if _, err := w.m.Revision(t.Context(), widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
				t.Errorf("Revision(v1) once v2 is reported: %v", err)
			}
			if _, err := w.m.Revision(t.Context(), widgets, v2); !apierrors.IsServiceUnavailable(err) {
				t.Errorf("Revision(v2) before the check: %v", err)
			}
		}
		return nil
	}
	if _, err := w.m.Step(t.Context()); err != nil {
		t.Fatalf("Step: %v", err)
	}
	if got, want := w.Took(), "get StorageVersion example.com.widgets; list LeaseList; update status StorageVersion example.com.widgets; get CustomResourceDefinition widgets.example.com"; got != want || !checked {
		t.Errorf("calls %q, want %q", got, want)
	}
	w.Before = nil
	w.expectOpen(widgets, v2)
	if _, err := w.m.Revision(t.Context(), widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
		t.Errorf("Revision(v1): %v", err)
	}
}

// TestCRDChangedBeforeReport: a report is not sent if the member learns before that the CRD has
// changed.
func TestCRDChangedBeforeReport(t *testing.T) {
	w := newWorld(t, nil)
	w.register()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.Once("list LeaseList", func() {
		w.m.ObserveCRD(w.setCRD("v2"))
	})
	if _, err := w.m.Step(t.Context()); !errors.Is(err, errStale) {
		t.Errorf("Step: %v", err)
	}
	if calls := w.Took(); strings.Contains(calls, "update status") {
		t.Errorf("calls %s", calls)
	}
	w.settle()
	w.expectOpen(widgets, v2)
}

// TestCRDMadeAgain: the check of a CRD does not count for a new CRD of the same name.
func TestCRDMadeAgain(t *testing.T) {
	w := withWidgets(t)
	w.deleteCRD(w.setCRD("v1"))
	w.m.ObserveCRD(w.setCRD("v1"))
	if w.status(widgets).Open {
		t.Error("open without a check of the new CRD")
	}
	w.settle()
	w.expectOpen(widgets, v1)
}

// TestCRDCheckError: if the CRD cannot be read after the report, the report stays, but the resource
// stays closed. It is not reported again.
func TestCRDCheckError(t *testing.T) {
	w := newWorld(t, nil)
	w.register()
	w.m.ObserveCRD(w.setCRD("v1"))
	w.Fail("get CustomResourceDefinition widgets.example.com", errBroken)
	if _, err := w.m.Step(t.Context()); !errors.Is(err, errBroken) {
		t.Errorf("Step: %v", err)
	}
	if w.status(widgets).Open {
		t.Error("open without a check")
	}
	_, reported := w.reports(widgets)
	w.Before = nil
	w.settle()
	w.expectOpen(widgets, v1)
	if _, again := w.reports(widgets); again != reported {
		t.Error("reported twice")
	}
}

// TestUnknownOutcome: the update is answered with an error; it may have been done or not.
func TestUnknownOutcome(t *testing.T) {
	for _, happened := range []bool{true, false} {
		for _, back := range []bool{true, false} {
			w := withWidgets(t)
			w.m.ObserveCRD(w.setCRD("v2"))
			lost := func(call string) error {
				if call == "update status StorageVersion example.com.widgets" {
					return errBroken
				}
				return nil
			}
			if happened {
				w.After = lost
			} else {
				w.Before = lost
			}
			wait, err := w.m.Step(t.Context())
			if !errors.Is(err, errBroken) {
				t.Fatalf("Step: %v", err)
			}
			w.Before, w.After = nil, nil
			for _, enc := range []agree.Encoding{v1, v2} {
				if _, err := w.m.Revision(t.Context(), widgets, enc); !apierrors.IsServiceUnavailable(err) {
					t.Errorf("happened %v: Revision(%s) while the outcome is unknown: %v", happened, enc, err)
				}
			}
			want := v2
			if back {
				w.m.ObserveCRD(w.setCRD("v1"))
				want = v1
			}
			w.clock.Step(wait)
			w.settle()
			w.expectOpen(widgets, want)
		}
	}
}

// TestLateUpdate: an update whose reply was lost is done after the member has returned to the
// former encoding.
func TestLateUpdate(t *testing.T) {
	w := withWidgets(t)
	own := agree.Report{Server: w.m.ID(), Encoding: v2, Decodable: []string{string(v1), string(v2)}}
	w.setReports(widgets, own)
	reports, mod := w.reports(widgets)
	if err := w.m.Moved(t.Context(), widgets, v1, mod, mod, reports); err != nil {
		t.Errorf("Moved: %v, want to try again: v1 is what should be reported", err)
	}
	if w.status(widgets).Open {
		t.Error("open although another encoding is reported")
	}
	w.settle()
	w.expectOpen(widgets, v1)
}

func TestCRDEventsOutOfOrder(t *testing.T) {
	w := withWidgets(t)
	old := w.setCRD("v1")
	w.m.ObserveCRD(w.setCRD("v2"))
	w.settle()
	w.Took()
	w.m.ObserveCRD(old)
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 || w.Took() != "" {
		t.Errorf("an old event was followed: %v, %v", wait, err)
	}
	w.expectOpen(widgets, v2)
}

func TestCRDStatusChangesCostNothing(t *testing.T) {
	w := withWidgets(t)
	w.m.ObserveCRD(w.setCRD("v1"))
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 || w.Took() != "" {
		t.Errorf("reported again: %v, %v", wait, err)
	}
}

// TestCRDServedVersions: a change of the served versions alone is reported without closing the
// resource for writes.
func TestCRDServedVersions(t *testing.T) {
	w := withWidgets(t)
	crd := w.setCRD("v1")
	crd.Spec.Versions[1].Served = false
	must(t, w.client.Update(t.Context(), crd))
	w.m.ObserveCRD(crd)
	w.Before = func(call string) error {
		if _, err := w.m.Revision(t.Context(), widgets, v1); err != nil {
			t.Errorf("closed at %s: %v", call, err)
		}
		return nil
	}
	w.settle()
	w.expectOpen(widgets, v1)
	reports, _ := w.reports(widgets)
	if want := []string{string(v1)}; !slices.Equal(reports[0].Served, want) {
		t.Errorf("served %v is reported, want %v", reports[0].Served, want)
	}
}

func TestForgetCRD(t *testing.T) {
	w := withWidgets(t)
	crd := w.setCRD("v1")
	other := agree.Report{Server: "other", Encoding: v1, Decodable: []string{string(v1)}}
	w.addLease("other")
	reports, _ := w.reports(widgets)
	w.setReports(widgets, append(reports, other)...)
	t.Run("a rumour", func(t *testing.T) {
		w.m.ForgetCRD(crd)
		if _, err := w.m.Revision(t.Context(), widgets, v1); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision: %v", err)
		}
		w.settle()
		w.expectOpen(widgets, v1)
	})
	t.Run("one of this name before", func(t *testing.T) {
		before := crd.DeepCopy()
		before.UID = "before"
		w.Took()
		w.m.ForgetCRD(before)
		w.settle()
		if calls := w.Took(); calls != "" {
			t.Errorf("calls %s", calls)
		}
	})
	t.Run("true", func(t *testing.T) {
		w.deleteCRD(crd)
		w.m.ForgetCRD(crd)
		w.settle()
		if reports, revision := w.reports(widgets); len(reports) != 0 || revision != 0 {
			t.Errorf("reports %v, want all to be gone with the CRD", reports)
		}
		if len(w.m.Snapshot()) != 0 {
			t.Errorf("it is remembered: %v", w.m.Snapshot())
		}
	})
	t.Run("made again", func(*testing.T) {
		w.m.ObserveCRD(w.setCRD("v2"))
		w.settle()
		w.expectOpen(widgets, v2)
	})
}

func TestRebuild(t *testing.T) {
	var calls []string
	var w *world
	w = withWidgets(t, func(c *Config) {
		c.Rebuild = func(_ context.Context, crd string, gr schema.GroupResource, served string) {
			w.expectOpen(gr, agree.Encoding(served)) // is open, and the member holds no lock
			calls = append(calls, crd+" "+gr.String()+" "+served)
		}
	})
	if len(calls) != 0 {
		t.Errorf("rebuilt at the first opening: %v", calls)
	}
	w.m.ObserveCRD(w.setCRD("v2"))
	w.settle()
	w.setReports(widgets) // the report is lost
	reports, mod := w.reports(widgets)
	if err := w.m.Moved(t.Context(), widgets, v2, mod, mod, reports); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Moved: %v", err)
	}
	w.settle()
	if want := []string{"widgets.example.com widgets.example.com example.com/v2"}; !slices.Equal(calls, want) {
		t.Errorf("rebuilt %q, want %q", calls, want)
	}
}

// TestStoreKnowsMore: apiextensions builds a store for a changed CRD before the member has the
// CRD's event.
func TestStoreKnowsMore(t *testing.T) {
	for _, known := range []bool{true, false} {
		w := newWorld(t, nil)
		if known {
			w = withWidgets(t)
		} else {
			w.register()
		}
		w.setCRD("v2")
		if _, err := w.m.Revision(t.Context(), widgets, v2); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision: %v", err)
		}
		w.settle()
		w.expectOpen(widgets, v2)
	}
	t.Run("back to an encoding from before", func(t *testing.T) {
		w := withWidgets(t)
		w.m.ObserveCRD(w.setCRD("v2"))
		w.settle()
		w.setCRD("v1")
		if _, err := w.m.Revision(t.Context(), widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
			t.Errorf("Revision: %v", err)
		}
		w.settle()
		w.expectOpen(widgets, v1)
	})
	t.Run("less: the CRD changed before the first report", func(t *testing.T) {
		w := newWorld(t, nil)
		w.register()
		w.setCRD("v1") // the store is built for this version
		w.m.ObserveCRD(w.setCRD("v2"))
		w.settle()
		w.Took()
		if _, err := w.m.Revision(t.Context(), widgets, v1); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision: %v, want it to be verified", err)
		}
		w.settle()
		if calls := w.Took(); !strings.HasPrefix(calls, "get CustomResourceDefinition widgets.example.com") {
			t.Errorf("calls %s", calls)
		}
		for range 2 {
			if _, err := w.m.Revision(t.Context(), widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
				t.Errorf("Revision: %v, want to be forwarded", err)
			}
		}
		w.settle()
		if calls := w.Took(); calls != "" {
			t.Errorf("verified again: %s", calls)
		}
		w.expectOpen(widgets, v2)
	})
	t.Run("no such CRD", func(t *testing.T) {
		w := newWorld(t, nil)
		w.register()
		if _, err := w.m.Revision(t.Context(), widgets, v1); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision: %v", err)
		}
		w.settle()
		if len(w.m.Snapshot()) != 0 {
			t.Errorf("it is remembered: %v", w.m.Snapshot())
		}
	})
	t.Run("superseded stores cost one read per change", func(t *testing.T) {
		w := withWidgets(t)
		w.m.ObserveCRD(w.setCRD("v2"))
		w.settle()
		w.Took()
		for range 3 {
			if _, err := w.m.Revision(t.Context(), widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
				t.Errorf("Revision: %v", err)
			}
			w.settle()
		}
		if calls := w.Took(); calls != "get CustomResourceDefinition widgets.example.com; get StorageVersion example.com.widgets; list LeaseList" {
			t.Errorf("calls %s", calls)
		}
	})
}
