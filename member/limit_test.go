package member

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/concord-dev/concord/agree"
)

// hanging is a client one of whose calls never answers: before it is done, or after.
type hanging struct {
	mu    sync.Mutex
	call  string // the beginning of its name; empty: none
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

// in has the client hang. The requests of reflectors do not: they have no end.
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

// goOn has the time pass: a call that hangs waits for its limit, one that failed for its next attempt.
func (w *world) goOn(h *hanging) {
	step := 20 * time.Millisecond
	if h.now() {
		step = minLimit
	}
	w.clock.Step(step)
}

// TestHangs: a call that never answers, once, is given up and tried again; what another attempt
// needs meanwhile is not held up for ever.
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
				eventually(t, "ready", func() bool {
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

// TestHangsWhileMoving: a report in another encoding whose outcome is not known permits
// neither encoding, and is made or found by the next attempt.
func TestHangsWhileMoving(t *testing.T) {
	for _, after := range []bool{false, true} {
		t.Run(fmt.Sprintf("done %v", after), func(t *testing.T) {
			h := &hanging{after: after}
			w := newWorld(t, nil, h.in)
			w.m.ObserveCRD(w.setCRD("v1"))
			end := w.start()
			defer end()
			eventually(t, "open", func() bool { w.goOn(h); return w.status(widgets).Open })
			h.mu.Lock()
			h.call = "status *v1alpha1.StorageVersion"
			h.mu.Unlock()
			w.m.ObserveCRD(w.setCRD("v2"))
			eventually(t, "the report hangs", h.now)
			for _, e := range []agree.Encoding{v1, v2} {
				if revision, err := w.m.Revision(t.Context(), widgets, e); err == nil {
					t.Errorf("%s is permitted, at %d", e, revision)
				}
			}
			eventually(t, "open in v2", func() bool {
				w.goOn(h)
				s := w.status(widgets)
				return s.Open && s.Reported == v2
			})
			_, at := w.reports(widgets)
			if revision, err := w.m.Revision(t.Context(), widgets, v2); err != nil || revision != at {
				t.Errorf("the revision is %d, %v, want %d", revision, err, at)
			}
		})
	}
}

// start runs the member; the function that it returns ends that.
func (w *world) start() (end func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { w.m.Run(ctx) })
	return func() { cancel(); wg.Wait() }
}

// TestLimit: an attempt for claims that failed before gets more time, within bounds.
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
		{10 * 365 * 24 * time.Hour, nil, maxLimit}, // that of an aggregated server in its host
	} {
		w := newWorld(t, nil, func(c *Config) { c.LeaseDuration, c.RenewInterval = test.lease, test.lease/3 })
		if got := w.m.limit(test.claims...); got != test.want {
			t.Errorf("Leases of %s, %d claims: %s, want %s", test.lease, len(test.claims), got, test.want)
		}
	}
}
