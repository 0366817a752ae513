package member

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/member/timing"
)

// TestRun lets the loops and watches do everything by themselves, on the real clock.
func TestRun(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)}, func(c *Config) {
		c.Clock = clock.RealClock{}
		c.Workers = 4
		c.WaitLimit = 20 * time.Second
		c.RenewInterval = 20 * time.Millisecond
	})
	w.m.ObserveCRD(w.setCRD("v1"))
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() { w.m.Run(ctx) })
	ready := func() bool { return w.m.Ready() == nil && w.status(widgets).Open }
	eventually(t, "ready", ready)
	id := w.m.ID()
	eventually(t, "the Lease says reported", func() bool {
		return w.lease(id).Annotations[storageversion.ReportedAnnotation] == "true"
	})
	renewed := w.lease(id).Spec.RenewTime
	eventually(t, "renewed", func() bool { return renewed.Before(w.lease(id).Spec.RenewTime) })

	t.Run("a CRD changes", func(t *testing.T) {
		w.m.ObserveCRD(w.setCRD("v2"))
		if _, err := w.m.Revision(ctx, widgets, v2); err != nil {
			t.Errorf("Revision: %v", err)
		}
		if _, err := w.m.Revision(ctx, widgets, v1); !errors.Is(err, agree.ErrSuperseded) {
			t.Errorf("Revision: %v", err)
		}
	})
	t.Run("somebody else joins", func(t *testing.T) {
		w.addLease("other")
		reports, _ := w.reports(secrets)
		w.setReports(secrets, append(reports, agree.Report{Server: "other", Encoding: "v1", Decodable: []string{"v1"}})...)
		eventually(t, "the revision follows", func() bool {
			_, at := w.reports(secrets)
			return w.status(secrets).Revision == at
		})
	})
	t.Run("the report is dropped", func(t *testing.T) {
		w.setReports(secrets)
		eventually(t, "reported again", func() bool { return reported(w, id) })
	})
	t.Run("the StorageVersion is deleted", func(t *testing.T) {
		must(t, w.client.Delete(ctx, &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: "core.secrets"}}))
		eventually(t, "reported again", func() bool { return reported(w, id) })
	})
	t.Run("the Lease is deleted", func(t *testing.T) {
		w.deleteLease(id)
		eventually(t, "registered anew", func() bool { return w.m.ID() != "" && w.m.ID() != id })
		eventually(t, "reported under the new ID", func() bool { return ready() && reported(w, w.m.ID()) })
	})
	if err := w.m.Depart(ctx); err != nil {
		t.Errorf("Depart: %v", err)
	}
	wg.Wait() // Depart has ended Run
	if err := w.m.Ready(); !errors.Is(err, errDeparted) {
		t.Errorf("Ready: %v", err)
	}
}

// reported says whether the server's report of secrets stands and is known to.
func reported(w *world, id agree.ServerID) bool {
	reports, at := w.reports(secrets)
	return slices.ContainsFunc(reports, func(r agree.Report) bool { return r.Server == id }) && w.status(secrets).Revision == at
}

func TestRunAfterDepart(t *testing.T) {
	w := newWorld(t, nil)
	must(t, w.m.Depart(t.Context()))
	w.m.Run(t.Context())
	if w.m.ID() != "" || len(w.buried) != 0 {
		t.Errorf("ID %q, buried %v", w.m.ID(), w.buried)
	}
}

// TestAgreementMetric: from the change that ended the agreement until all agree again.
func TestAgreementMetric(t *testing.T) {
	m := timing.NewMetrics()
	registry := metrics.NewKubeRegistry()
	registry.MustRegister(m.Registerables()...)
	w := newWorld(t, nil, func(c *Config) { c.Metrics = m })
	in := func(server agree.ServerID, enc agree.Encoding) agree.Report {
		return agree.Report{Server: server, Encoding: enc, Decodable: []string{string(enc)}}
	}
	for _, reports := range [][]agree.Report{
		{in("a", v1)},
		{in("a", v1), in("b", v1)},
		{in("a", v2), in("b", v1)}, // the agreement ends
		{in("b", v1), in("a", v2)},
		{in("b", v2), in("a", v2)}, // 2 s later it is back
		{in("b", v1)},
		nil, // nobody is left to agree
		{in("a", v1), in("b", v2)},
		nil,
		{in("a", v1)},
	} {
		w.setReports(widgets, reports...)
		w.observe(widgets)
		w.clock.Step(time.Second)
	}
	expectHistogram(t, registry, "concord_storageversion_agreement_duration_seconds", 1, 2)
}
