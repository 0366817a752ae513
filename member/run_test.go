package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/member/timing"
)

// TestRun runs a member with its loops and watches, on the real clock.
func TestRun(t *testing.T) {
	w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)}, func(c *Config) {
		c.Clock = clock.RealClock{}
		c.Workers = 4
		c.WaitLimit = 2 * time.Minute
		c.RenewInterval = 20 * time.Millisecond
	})
	w.m.ObserveCRD(w.setCRD("v1"))
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wg.Go(func() { w.m.Run(ctx) })
	ready := func() bool { return w.m.Ready() == nil && w.status(widgets).Open }
	w.Eventually("ready", ready)
	id := w.m.ID()
	w.Eventually("the Lease says reported", func() bool {
		return w.lease(id).Annotations[storageversion.ReportedAnnotation] == "true"
	})
	renewed := w.lease(id).Spec.RenewTime
	w.Eventually("renewed", func() bool { return renewed.Before(w.lease(id).Spec.RenewTime) })

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
		w.Eventually("the revision follows", func() bool {
			_, at := w.reports(secrets)
			return w.status(secrets).Revision == at
		})
	})
	t.Run("the report is dropped", func(t *testing.T) {
		w.setReports(secrets)
		w.Eventually("reported again", func() bool { return reported(w, id) })
	})
	t.Run("the StorageVersion is deleted", func(t *testing.T) {
		must(t, w.client.Delete(ctx, &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: "core.secrets"}}))
		w.Eventually("reported again", func() bool { return reported(w, id) })
	})
	t.Run("the Lease is deleted", func(t *testing.T) {
		w.deleteLease(id)
		w.Eventually("registered anew", func() bool { return w.m.ID() != "" && w.m.ID() != id })
		w.Eventually("reported under the new ID", func() bool { return ready() && reported(w, w.m.ID()) })
	})
	if err := w.m.Depart(ctx); err != nil {
		t.Errorf("Depart: %v", err)
	}
	wg.Wait() // Depart has ended Run
	if err := w.m.Ready(); !errors.Is(err, errDeparted) {
		t.Errorf("Ready: %v", err)
	}
}

// reported says whether the StorageVersion of secrets has the server's report, at the revision that
// the member knows.
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

// TestAgreementMetric: the metric measures the time from the change that ends the agreement to the
// next agreement.
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
		{in("b", v2), in("a", v2)}, // servers agree again, 2 s later
		{in("b", v1)},
		nil, // no server reports
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

// TestPanics: one call panics, once; the member registers, reports and leaves all the same.
func TestPanics(t *testing.T) {
	for _, call := range []string{
		"create Lease", "list StorageVersionList", "list LeaseList", "create StorageVersion", "update status StorageVersion", "get CustomResourceDefinition",
	} {
		for _, workers := range []int{1, 4} {
			t.Run(fmt.Sprintf("%s, %d workers", call, workers), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, []Resource{builtin(secrets), builtin(configMaps)}, func(c *Config) {
					c.Clock = clock.RealClock{}
					c.Workers = workers
					c.WaitLimit = 2 * time.Minute
					c.RenewInterval = 20 * time.Millisecond
				})
				w.m.ObserveCRD(w.setCRD("v1"))
				var mu sync.Mutex
				panicked := false
				w.Before = func(c string) error {
					mu.Lock()
					defer mu.Unlock()
					if strings.HasPrefix(c, call) && !panicked {
						panicked = true
						panic(c)
					}
					return nil
				}
				var wg sync.WaitGroup
				defer wg.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				wg.Go(func() { w.m.Run(ctx) })
				w.Eventually("ready", func() bool { return w.m.Ready() == nil && w.status(widgets).Open })
				w.Eventually(call, func() bool { // some calls come only when it is ready
					mu.Lock()
					defer mu.Unlock()
					return panicked
				})
				if err := w.m.Depart(ctx); err != nil {
					t.Errorf("Depart: %v", err)
				}
			})
		}
	}
}

// TestUnreported: resources that are not reported are logged after a while, and then once a minute.
func TestUnreported(t *testing.T) {
	var u unreported
	now := time.Unix(0, 0)
	for _, step := range []struct {
		after   time.Duration
		lacking bool
		want    bool
	}{
		{0, false, false},
		{time.Hour, true, false},
		{unreportedAfter - 1, true, false},
		{1, true, true},
		{unreportedAgain - 1, true, false},
		{1, true, true},
		{1, false, false},
		{unreportedAgain, true, false},
		{unreportedAfter, true, true},
	} {
		now = now.Add(step.after)
		if got := u.due(now, step.lacking); got != step.want {
			t.Errorf("after %s, lacking %t: %t", step.after, step.lacking, got)
		}
	}
}

// TestUnreportedIsLogged: while a report takes too long, the log names its resource and the attempt.
func TestUnreportedIsLogged(t *testing.T) {
	var lines []string
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) {
		c.Logger = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	})
	w.register()
	lines = nil // drops the lines of the registration
	w.m.mu.Lock()
	c, err := w.m.claim(secrets)
	w.m.mu.Unlock()
	must(t, err)
	w.m.sayUnreported()
	w.clock.Step(unreportedAfter)
	w.m.sayUnreported()
	if len(lines) != 1 || !strings.Contains(lines[0], "secrets closed wants=v1 reports=@0 attempt=1") {
		t.Errorf("logged are %q", lines)
	}
	must(t, w.m.process(t.Context(), []claim{c}))
	w.clock.Step(unreportedAgain)
	if w.m.sayUnreported(); len(lines) != 1 {
		t.Errorf("logged are %q after the report", lines)
	}
}

// hanging is a client of which one call never answers; the call hangs before it is done, or
// afterwards.
type hanging struct {
	mu    sync.Mutex
	call  string // the beginning of the call's name; if empty, no call hangs
	after bool
	hangs bool
	has   bool
	ended error
}

// do does the call, unless it is the one that hangs.
func (h *hanging) do(ctx context.Context, call string, do func() error) error {
	h.mu.Lock()
	hangs := h.call != "" && !h.has && strings.HasPrefix(call, h.call)
	if hangs {
		h.has, h.hangs = true, true
	}
	after := h.after
	h.mu.Unlock()
	if !hangs {
		return do()
	}
	if after {
		if err := do(); err != nil {
			return err
		}
	}
	<-ctx.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hangs, h.ended = false, context.Cause(ctx)
	return ctx.Err()
}

func (h *hanging) now() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.hangs }

// in puts the client into the configuration. Requests of reflectors do not hang, since watches have no
// end anyway.
func (h *hanging) in(c *Config) {
	c.Client = interceptor.NewClient(c.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return h.do(ctx, fmt.Sprintf("get %T", o), func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, o client.ObjectList, opts ...client.ListOption) error {
			if (&client.ListOptions{}).ApplyOptions(opts).Raw != nil {
				return c.List(ctx, o, opts...)
			}
			return h.do(ctx, fmt.Sprintf("list %T", o), func() error { return c.List(ctx, o, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return h.do(ctx, fmt.Sprintf("create %T", o), func() error { return c.Create(ctx, o, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			return h.do(ctx, fmt.Sprintf("%s %T", sub, o), func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
	})
}

// goOn lets time pass: up to the limit of a call that hangs, or to the next attempt after an error.
func (w *world) goOn(h *hanging) {
	step := 20 * time.Millisecond
	if h.now() {
		step = minLimit
	}
	w.clock.Step(step)
}

// TestHangs: a call that never answers is given up and tried again, and other attempts do not wait for
// it for ever.
func TestHangs(t *testing.T) {
	for _, call := range []string{
		"list *v1alpha1.StorageVersionList", "list *v1.LeaseList", "list *v1.CustomResourceDefinitionList",
		"create *v1alpha1.StorageVersion", "status *v1alpha1.StorageVersion",
	} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, done %v", call, after), func(t *testing.T) {
				t.Parallel()
				h := &hanging{call: call, after: after}
				var builtins []Resource
				for i := range manyResources {
					builtins = append(builtins, builtin(schema.GroupResource{Resource: fmt.Sprintf("r%d", i)}))
				}
				w := newWorld(t, builtins, h.in, func(c *Config) { c.Workers = 4 })
				for i := range manyResources {
					crd := w.setCRD("v1")
					crd.Spec.Names.Plural = fmt.Sprintf("w%d", i)
					crd.ObjectMeta = metav1.ObjectMeta{Name: crd.Spec.Names.Plural + ".example.com"}
					w.Quietly(func() {
						must(t, w.client.Create(t.Context(), crd))
					})
					w.m.ObserveCRD(crd)
				}
				end := w.start()
				defer end()
				w.Eventually("ready", func() bool {
					w.goOn(h)
					return w.m.Ready() == nil && w.m.AllReported()
				})
				h.mu.Lock()
				defer h.mu.Unlock()
				if !h.has || !errors.Is(h.ended, errTooLong) {
					t.Errorf("it hung: %v, and ended with %v", h.has, h.ended)
				}
			})
		}
	}
}

// start runs the member, and returns a function that stops it.
func (w *world) start() (end func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.m.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}

// TestLimit: an attempt for resources that failed before gets more time, within bounds.
func TestLimit(t *testing.T) {
	for _, test := range []struct {
		lease  time.Duration
		claims []claim
		want   time.Duration
	}{
		{15 * time.Second, nil, 15 * time.Second},
		{15 * time.Second, []claim{{failures: 1}, {}}, 30 * time.Second},
		{15 * time.Second, []claim{{failures: 100}}, 2 * time.Minute},
		{time.Second, nil, minLimit},
		{10 * 365 * 24 * time.Hour, nil, maxLimit}, // the duration of an aggregated server's Lease in its host
	} {
		w := newWorld(t, nil, func(c *Config) { c.LeaseDuration, c.RenewInterval = test.lease, test.lease/3 })
		if got := w.m.limit(test.claims...); got != test.want {
			t.Errorf("Leases of %s, %d claims: %s, want %s", test.lease, len(test.claims), got, test.want)
		}
	}
}
