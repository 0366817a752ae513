package member

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/member/timing"
)

var errBroken = errors.New("connection refused")

func conflict(call string) error {
	return apierrors.NewConflict(storageversion.Resource, call, errors.New("modified"))
}

// TestOrder asserts the order of DESIGN 3.1.2 in every attempt: read the StorageVersion, then the participants,
// then write, "in this order again on every retry".
func TestOrder(t *testing.T) {
	const (
		read   = "get StorageVersion core.secrets; list LeaseList"
		update = "; update status StorageVersion core.secrets"
		create = "get StorageVersion core.secrets; create StorageVersion core.secrets"
	)
	other := agree.Report{Server: "other", Encoding: "v1", Decodable: []string{"v1"}}
	for _, tc := range []struct {
		name    string
		present bool
		fail    map[string]error // the first call of this name fails
		want    []string         // the calls of each attempt
	}{
		{name: "created before the participants are read (DESIGN 3.8)", want: []string{create + "; list LeaseList" + update}},
		{name: "updated", present: true, want: []string{read + update}},
		{
			name: "conflict", present: true, fail: map[string]error{"update status StorageVersion core.secrets": conflict("")},
			want: []string{read + update, read + update},
		},
		{
			name: "somebody else created it first", fail: map[string]error{"create StorageVersion core.secrets": apierrors.NewAlreadyExists(storageversion.Resource, "core.secrets")},
			want: []string{create, create + "; list LeaseList" + update},
		},
		{
			name: "an error while reading Leases means unknown: nothing is written", present: true, fail: map[string]error{"list LeaseList": errBroken},
			want: []string{read, read + update},
		},
		{
			name: "an error while reading the StorageVersion", present: true, fail: map[string]error{"get StorageVersion core.secrets": errBroken},
			want: []string{"get StorageVersion core.secrets", read + update},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := newWorld(t, []Resource{builtin(secrets)})
			id := w.register()
			if tc.present {
				w.addLease("other")
				w.setReports(secrets, other)
			}
			w.Before = func(call string) error {
				err := tc.fail[call]
				delete(tc.fail, call)
				return err
			}
			for i, want := range tc.want {
				wait, err := w.m.Step(t.Context())
				if last := i == len(tc.want)-1; last == (err != nil) {
					t.Errorf("attempt %d: error %v", i, err)
				} else if !last && (wait <= 0 || wait > time.Second) {
					t.Errorf("attempt %d: the next one comes after %s", i, wait)
				}
				if got := w.Took(); got != want {
					t.Errorf("attempt %d: calls %q, want %q", i, got, want)
				}
				w.clock.Step(max(wait, 0))
			}
			if w.m.ID() != id {
				t.Errorf("registered anew: %s, was %s", w.m.ID(), id)
			}
			w.expectOpen(secrets, "v1")
			if reports, _ := w.reports(secrets); tc.present && !slices.ContainsFunc(reports, func(r agree.Report) bool { return r.Server == "other" }) {
				t.Errorf("another participant's report was dropped: %v", reports)
			}
			if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 || w.Took() != "" {
				t.Errorf("the report is repeated without a reason: %s, %v", wait, err)
			}
		})
	}
}

// TestOrderOfMany: "many resources: list StorageVersions, then list Leases, then update in parallel". A conflict
// makes only its own resource be tried again.
func TestOrderOfMany(t *testing.T) {
	var rs []Resource
	for i := range manyResources {
		rs = append(rs, builtin(schema.GroupResource{Group: "g", Resource: fmt.Sprintf("r%d", i)}))
	}
	for _, workers := range []int{1, 4} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			w := newWorld(t, rs, func(c *Config) { c.Workers = workers })
			w.register()
			failed := 0
			w.Before = func(call string) error {
				if call == "create StorageVersion g.r3" && failed < 2 {
					failed++
					return apierrors.NewAlreadyExists(storageversion.Resource, "g.r3")
				}
				return nil
			}
			const again = "get StorageVersion g.r3; create StorageVersion g.r3"
			wait, err := w.m.Step(t.Context())
			if !apierrors.IsAlreadyExists(err) {
				t.Errorf("Step: %v, want the conflict", err)
			}
			took := w.Took()
			calls := strings.Split(took, "; ")
			if r3 := onlyOf(calls, "g.r3", "LeaseList"); r3 != "create StorageVersion g.r3; list LeaseList; "+again {
				t.Errorf("calls for r3 %q, want it to be read once more", r3)
			}
			if len(calls) != 2+2*len(rs)-1+2 || calls[0] != "list StorageVersionList" || calls[1+len(rs)] != "list LeaseList" {
				t.Errorf("calls %q", calls)
			}
			if err := w.m.Ready(); err == nil || !strings.Contains(err.Error(), "r3.g, last seen error") {
				t.Errorf("Ready: %v, want to hear of r3", err)
			}
			w.clock.Step(wait)
			if _, err := w.m.Step(t.Context()); err != nil {
				t.Errorf("Step: %v", err)
			}
			if got := w.Took(); got != again+"; list LeaseList; update status StorageVersion g.r3" {
				t.Errorf("retry: calls %q, want %q", got, again)
			}
			if err := w.m.Ready(); err != nil {
				t.Errorf("Ready: %v", err)
			}
			for _, r := range rs {
				w.expectOpen(r.GroupResource, r.Encoding)
			}
		})
	}
}

// onlyOf returns the calls that end with one of these words.
func onlyOf(calls []string, words ...string) string {
	var of []string
	for _, call := range calls {
		if slices.ContainsFunc(words, func(word string) bool { return strings.HasSuffix(call, word) }) {
			of = append(of, call)
		}
	}
	return strings.Join(of, "; ")
}

func TestListErrorDelaysAllTogether(t *testing.T) {
	var rs []Resource
	for i := range 2 * manyResources {
		rs = append(rs, builtin(schema.GroupResource{Group: "g", Resource: fmt.Sprintf("r%d", i)}))
	}
	w := newWorld(t, rs)
	w.register()
	w.Fail("list LeaseList", errBroken)
	wait, err := w.m.Step(t.Context())
	if !errors.Is(err, errBroken) || wait <= 0 {
		t.Fatalf("Step: %v, %v", wait, err)
	}
	w.Took()
	w.Before = nil
	w.clock.Step(wait)
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 {
		t.Errorf("Step: %v, %v, want everything reported at once", wait, err)
	}
	if calls := w.Took(); strings.Count(calls, "list ") != 2 {
		t.Errorf("not one attempt for all: %s", calls)
	}
}

// TestPlan has the cases of KEP-2339, "Updating StorageVersion".
func TestPlan(t *testing.T) {
	own := agree.Report{Server: "self", Encoding: "v1", Decodable: []string{"v1"}, Served: []string{"v1"}}
	other := func(id agree.ServerID) agree.Report {
		return agree.Report{Server: id, Encoding: "v1", Decodable: []string{"v1"}}
	}
	served := own
	served.Served = nil
	for _, tc := range []struct {
		name    string
		reports []agree.Report
		want    []agree.Report
		changed bool
	}{
		{name: "there is none yet", want: []agree.Report{own}, changed: true},
		{name: "nothing changes", reports: []agree.Report{other("b"), own}, want: []agree.Report{other("b"), own}},
		{name: "served versions change", reports: []agree.Report{served}, want: []agree.Report{own}, changed: true},
		{name: "such entries are stale", reports: []agree.Report{own, other("gone")}, want: []agree.Report{own}, changed: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sv := &v1alpha1.StorageVersion{}
			if tc.reports != nil {
				storageversion.SetReports(sv, tc.reports, sv.CreationTimestamp)
			}
			got, changed := plan(sv, own, agree.NewParticipants([]agree.ServerID{"self", "b"}, nil))
			if !agree.Equal(got, tc.want) || changed != tc.changed {
				t.Errorf("got %v, %v, want %v, %v", got, changed, tc.want, tc.changed)
			}
		})
	}
	t.Run("the agreement it states is wrong", func(t *testing.T) {
		sv := &v1alpha1.StorageVersion{}
		storageversion.SetReports(sv, []agree.Report{own}, sv.CreationTimestamp)
		sv.Status.CommonEncodingVersion = nil
		if _, changed := plan(sv, own, agree.NewParticipants([]agree.ServerID{"self"}, nil)); !changed {
			t.Error("it is left as it is")
		}
	})
}

// TestReplicaCutOff: a new StorageVersion has a report of Unknown, from its first report on, for a replica that
// may still write and has not reported there.
func TestReplicaCutOff(t *testing.T) {
	w := newWorld(t, []Resource{builtin(widgets)}, func(c *Config) { c.Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"} })
	self := w.register()
	w.addLease("r1")
	w.Quietly(func() {
		lease := w.lease("r1")
		lease.Labels[storageversion.AggregatedLabel] = "5a1c"
		lease.Annotations[storageversion.AggregatedResourcesAnnotation] = widgets.String()
		lease.Annotations[storageversion.ReportedAnnotation] = "true"
		must(t, w.client.Update(t.Context(), lease))
	})
	w.settle()
	reports, _ := w.reports(widgets)
	if got, want := fmt.Sprint(reports), fmt.Sprintf("[%s:example.com/v1 r1:Unknown]", self); got != want {
		t.Errorf("the reports are %s, want %s", got, want)
	}
	w.expectOpen(widgets, "example.com/v1")
	sv := &v1alpha1.StorageVersion{}
	must(t, w.client.Get(t.Context(), client.ObjectKey{Name: storageversion.Name(widgets)}, sv))
	if sv.Labels[storageversion.AggregatedLabel] != "5a1c" {
		t.Errorf("its labels are %v", sv.Labels)
	}
	if m := w.m; m.Announced() || m.Renew(t.Context()) != nil || !m.Announced() {
		t.Error("it is not announced by the renewal after the reports")
	}
	w.deleteLease("r1")
	w.setReports(widgets, reports[:1]...)
	w.settle()
	if reports, _ := w.reports(widgets); len(reports) != 1 {
		t.Errorf("the reports are %v", reports)
	}
}

// TestStoredWithoutReport: Revision returns a revision only if the stored reports at it contain the member's own,
// whatever was sent: the API server may drop it.
func TestStoredWithoutReport(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	w.register()
	w.dropStatus = true
	if _, err := w.m.Step(t.Context()); err == nil {
		t.Error("Step: want an error")
	}
	if reports, revision := w.reports(secrets); len(reports) != 0 || revision == 0 {
		t.Fatalf("reports %v at %d, want none", reports, revision)
	}
	if _, err := w.m.Revision(t.Context(), secrets, "v1"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("Revision: %v", err)
	}
	w.settle()
	w.expectOpen(secrets, "v1")
}

// TestLostDuringReport: a watch event says that the report is gone after the worker has read it.
func TestLostDuringReport(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets)})
	w.register()
	w.settle()
	w.Once("list LeaseList", func() {
		w.setReports(secrets)
		w.observe(secrets)
	})
	if err := w.m.Report(t.Context(), secrets); !errors.Is(err, errReportLost) {
		t.Errorf("Report: %v", err)
	}
	if w.status(secrets).Open {
		t.Error("opened by what was read before")
	}
	w.settle()
	w.expectOpen(secrets, "v1")
}

func TestReady(t *testing.T) {
	m := timing.NewMetrics()
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) { c.Metrics = m })
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(m.Registerables()...)
	if err := w.m.Ready(); !errors.Is(err, errUnregistered) {
		t.Errorf("Ready before the registration: %v", err)
	}
	id := w.register()
	if err := w.m.Ready(); err == nil {
		t.Error("Ready before the report")
	}
	w.clock.Step(2 * time.Second)
	w.settle()
	if err := w.m.Ready(); err != nil {
		t.Errorf("Ready: %v", err)
	}
	if _, said := w.lease(id).Annotations[storageversion.ReportedAnnotation]; said {
		t.Error("the Lease says reported before it was written")
	}
	if err := w.m.Renew(t.Context()); err != nil {
		t.Fatalf("Renew: %v", err)
	}
	if w.lease(id).Annotations[storageversion.ReportedAnnotation] != "true" {
		t.Error("the Lease does not say reported")
	}
	expectHistogram(t, registry, "concord_storageversion_report_duration_seconds", 1, 2)
}

func TestReportedWaitsForCustomResources(t *testing.T) {
	known := false
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) { c.CustomResourcesKnown = func() bool { return known } })
	id := w.register()
	w.settle()
	said := func() bool {
		if err := w.m.Renew(t.Context()); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		return w.lease(id).Annotations[storageversion.ReportedAnnotation] == "true"
	}
	if said() {
		t.Error("reported before the CRDs are known")
	}
	known = true
	w.m.ObserveCRD(w.setCRD("v1"))
	if said() {
		t.Error("reported before the custom resource is")
	}
	w.settle()
	if !said() {
		t.Error("not reported although all is")
	}
}

// TestMarkAfterLoss: while the watch hangs, the StorageVersion is deleted. Another server finds no mark on this
// server's Lease ("has reported") and makes the StorageVersion anew without it. The mark that is set after that
// does not allow this server to write.
func TestMarkAfterLoss(t *testing.T) {
	aggregated := func(c *Config) {
		c.Labels = map[string]string{storageversion.AggregatedLabel: "5a1c"}
		c.Annotations = map[string]string{storageversion.AggregatedResourcesAnnotation: widgets.String()}
	}
	w := newWorld(t, []Resource{builtin(widgets)}, aggregated)
	self := w.register()
	w.settle()
	w.Quietly(func() {
		must(t, w.client.Delete(t.Context(), &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(widgets)}}))
		other := newWorld(t, []Resource{builtin(widgets)}, aggregated, func(c *Config) { c.Client, c.Random = w.client, nil })
		other.register()
		other.settle()
	})
	if reports, _ := w.reports(widgets); len(reports) != 1 {
		t.Fatalf("the other server has reported %v", reports)
	}
	away := errors.New("no answer")
	w.Fail("list StorageVersionList", away)
	if err := w.m.Renew(t.Context()); !errors.Is(err, away) || !errors.Is(w.m.LastRenewal(), away) || w.m.Announced() {
		t.Errorf("it is not known whether the reports stand: Renew returns %v, then LastRenewal %v; announced: %v", err, w.m.LastRenewal(), w.m.Announced())
	}
	w.Before = nil
	if err := w.m.Renew(t.Context()); err != nil || w.m.LastRenewal() != nil || w.m.Announced() {
		t.Errorf("the report is lost: Renew returns %v, then LastRenewal %v; announced: %v", err, w.m.LastRenewal(), w.m.Announced())
	}
	if _, err := w.m.Revision(t.Context(), widgets, "example.com/v1"); err == nil {
		t.Error("it may write without a report")
	}
	w.settle()
	select {
	case <-w.m.wakeLease:
	default:
		t.Error("the Lease is not renewed at once after the report")
	}
	w.Took()
	if err := w.m.Renew(t.Context()); err != nil || !w.m.Announced() {
		t.Errorf("reported again: %v, announced: %v", err, w.m.Announced())
	}
	w.expectOpen(widgets, "example.com/v1")
	w.Took()
	if err := w.m.Renew(t.Context()); err != nil || strings.Contains(w.Took(), "list StorageVersion") {
		t.Errorf("the StorageVersions are listed at every renewal, %v", err)
	}

	// Somebody removes the mark from the Lease. Until it is set again, other servers would not miss this one's
	// report.
	w.Quietly(func() {
		lease := w.lease(self)
		delete(lease.Annotations, storageversion.ReportedAnnotation)
		must(t, w.client.Update(t.Context(), lease))
	})
	w.Took()
	if err := w.m.Renew(t.Context()); err != nil || !w.m.Announced() || !strings.Contains(w.Took(), "list StorageVersion") {
		t.Errorf("the mark was set again, and the reports not looked at: %v", err)
	}
}

// TestOwnLeaseGone: "Own Lease gone: stop and register anew", under a new ID.
func TestOwnLeaseGone(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)})
	old := w.register()
	w.settle()
	w.expectOpen(configMaps, "v1")
	w.deleteLease(old)
	w.setReports(secrets) // the collector has buried it
	w.Took()

	err := w.m.Report(t.Context(), secrets)
	if !errors.Is(err, ErrLeaseGone) {
		t.Fatalf("Report: %v, want %v", err, ErrLeaseGone)
	}
	if got, want := w.Took(), "get StorageVersion core.secrets; list LeaseList"; got != want {
		t.Errorf("calls %q, want %q", got, want)
	}
	if w.m.ID() != "" {
		t.Errorf("still registered as %s", w.m.ID())
	}
	for _, gr := range []schema.GroupResource{secrets, configMaps} {
		if _, err := w.m.Revision(t.Context(), gr, "v1"); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("Revision(%s): %v, want all permits closed at once", gr, err)
		}
	}
	if wait, err := w.m.Step(t.Context()); err != nil || wait >= 0 || w.Took() != "" {
		t.Errorf("something is reported without a registration: %v, %v", wait, err)
	}
	w.register()
	if w.m.ID() == old || w.m.ID() == "" {
		t.Fatalf("registered as %q, was %q", w.m.ID(), old)
	}
	w.settle()
	for _, gr := range []schema.GroupResource{secrets, configMaps} {
		w.expectOpen(gr, "v1")
		if reports, _ := w.reports(gr); len(reports) != 1 {
			t.Errorf("%s: reports %v, want only that of the new ID", gr, reports)
		}
	}
}
