package member

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
)

// TestMoveFromWatch: a StorageVersion that came by the watch is not read again before it is
// updated. The participants are still read after it.
func TestMoveFromWatch(t *testing.T) {
	const (
		move = "list LeaseList; update status StorageVersion example.com.widgets; get CustomResourceDefinition widgets.example.com"
		read = "get StorageVersion example.com.widgets; "
	)
	for _, tc := range []struct {
		name     string
		disturb  func(w *world)
		observed bool // the member gets the watch event afterwards
		want     string
	}{
		{"it is the last one", func(*world) {}, true, move},
		{"another server has reported since", func(w *world) { w.join(v1) }, false,
			"list LeaseList; update status StorageVersion example.com.widgets; " + read + move},
		{"the event of that has come", func(w *world) { w.join(v1) }, true, move},
		{"the own report is missing", func(w *world) { w.setReports(widgets, agree.Report{Server: "other", Encoding: v1}) }, true, read + move},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := withWidgets(t)
			w.observe(widgets)
			tc.disturb(w)
			if tc.observed {
				w.observe(widgets)
			}
			w.m.ObserveCRD(w.setCRD("v2"))
			w.Took()
			w.settle()
			if got := w.Took(); got != tc.want {
				t.Errorf("calls %q, want %q", got, tc.want)
			}
			w.expectOpen(widgets, v2)
		})
	}
}

// join registers another server, which reports widgets.
func (w *world) join(enc agree.Encoding) {
	w.addLease("other")
	reports, _ := w.reports(widgets)
	w.setReports(widgets, append(reports, agree.Report{Server: "other", Encoding: enc, Decodable: []string{string(enc)}})...)
}

// TestMoveOfAnotherCRD: a StorageVersion that came by the watch and belongs to an earlier CRD is
// not taken for that of the new CRD.
func TestMoveOfAnotherCRD(t *testing.T) {
	w := withWidgets(t)
	w.observe(widgets)
	w.deleteCRD(w.setCRD("v1"))
	w.m.ObserveCRD(w.setCRD("v2"))
	w.Took()
	w.settle()
	if calls := w.Took(); !strings.HasPrefix(calls, "get StorageVersion") {
		t.Errorf("calls %q begin without a read", calls)
	}
	w.expectOpen(widgets, v2)
}

// TestWritesWaitForMove: writes of a custom resource whose report is about to change are held back
// for a limited time; reads are not.
func TestWritesWaitForMove(t *testing.T) {
	w := withWidgets(t, func(c *Config) { c.WaitLimit = time.Minute })
	send := func(verb string) <-chan struct{} {
		done := make(chan struct{})
		handler := w.m.Gate(
			http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(done) }),
			func(*http.Request) (Request, bool) {
				return Request{IsResource: true, Verb: verb, Resource: widgets}, true
			},
			func(_ http.ResponseWriter, _ *http.Request, err error) { t.Errorf("%s was refused: %v", verb, err) })
		go handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/apis/example.com/v1/widgets", nil))
		return done
	}
	<-send("create")
	w.m.ObserveCRD(w.setCRD("v2"))
	<-send("list")
	held := send("create")
	w.Eventually("the write waits", w.clock.HasWaiters)
	select {
	case <-held:
		t.Fatal("the write was not held back")
	default:
	}
	w.settle()
	<-held
	w.m.ObserveCRD(w.setCRD("v1"))
	held = send("update")
	w.Eventually("the write waits", w.clock.HasWaiters)
	w.clock.Step(settleLimit)
	<-held // the report has not changed; the store has to refuse the write
}
