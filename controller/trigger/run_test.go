package trigger

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/metrics/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestRun: the events of the watches make the trigger look at a resource. It waits for a starting
// server, and that ends when the Lease says that the server has reported.
func TestRun(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	lease := w.lease("apiserver-1", false)
	ctx := t.Context() // is cancelled before the cleanup functions run
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(running.Wait)
	w.Eventually("a state", func() bool {
		s := &migrationv1alpha1.StorageState{}
		s, err := get(ctx, c.cfg.Client, migrationv1alpha1.StateName(cronJobs), s)
		return err == nil && s != nil && s.Status.StorageVersionUID != ""
	})
	lease.Annotations = map[string]string{"concord.dev/reported": "true"}
	if err := c.cfg.Client.Update(ctx, lease); err != nil {
		t.Fatal(err)
	}
	// The fake clock stands still, so only the change of the Lease can lead to the migration.
	w.Eventually("a migration", func() bool {
		var list migrationv1alpha1.StorageVersionMigrationList
		return c.cfg.Client.List(ctx, &list) == nil && len(list.Items) == 1
	})
}

// TestPanic: a look that panics is logged and counted, and the resource is looked at again.
func TestPanic(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	var panicked atomic.Bool
	w.Before = func(call string) error {
		if call == "create StorageState" && panicked.CompareAndSwap(false, true) {
			panic(call)
		}
		return nil
	}
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx := klog.NewContext(t.Context(), logger)
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(running.Wait)
	w.Eventually("a migration", func() bool {
		w.clock.Step(maxRetry)
		var list migrationv1alpha1.StorageVersionMigrationList
		return c.cfg.Client.List(ctx, &list) == nil && len(list.Items) == 1
	})
	if log := logger.GetSink().(ktesting.Underlier).GetBuffer().String(); !panicked.Load() || !strings.Contains(log, "A worker panicked") || !strings.Contains(log, "create StorageState") {
		t.Errorf("it has panicked: %t, logged is %q", panicked.Load(), log)
	}
	counted, err := testutil.GetCounterValuesFromGatherer(legacyregistry.DefaultGatherer, "concord_worker_panics_total", nil, "worker")
	if err != nil || counted["trigger"] == 0 {
		t.Errorf("counted are %v, %v", counted, err)
	}
}

// TestKept: while Run runs, StorageStates and migrations are answered from the watches' cache; before and after that
// it is waited until the context ends.
func TestKept(t *testing.T) {
	w, c := newWorld(t, served)
	w.report(v1)
	waits := func(when string) {
		t.Helper()
		ended, end := context.WithTimeout(t.Context(), time.Millisecond)
		defer end()
		if _, _, err := c.Kept(ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s Run: %v", when, err)
		}
	}
	waits("before")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Run(ctx)
	}()
	w.Eventually("both are kept", func() bool {
		states, migrations, err := c.Kept(ctx)
		return err == nil && len(states) == 1 && len(migrations) == 1
	})
	cancel()
	<-done
	waits("after")
}

// TestTellsOnce: an error that is the same for all resources, for example because the CRD of
// StorageStates is missing, is logged once a minute; another error is logged at once.
func TestTellsOnce(t *testing.T) {
	w, c := newWorld(t, served)
	var told []string
	c.cfg.Logger = funcr.New(func(_, args string) { told = append(told, args) }, funcr.Options{})
	why := "the server could not find the requested resource"
	w.Before = func(call string) error { return errors.New(why) }
	r := newRun(c)
	look := func(want int) {
		t.Helper()
		told = nil
		for range 3 {
			for _, gr := range []schema.GroupResource{cronJobs, {Resource: "pods"}, {Group: "apps", Resource: "deployments"}} {
				r.one(t.Context(), gr)
			}
		}
		if len(told) != want || want > 0 && !strings.Contains(told[0], "cronjobs.batch.example.com") {
			t.Errorf("logged are %q, want %d lines", told, want)
		}
	}
	look(1)
	look(0)
	why = "etcdserver: no leader"
	look(1)
	w.clock.Step(tellPeriod)
	look(1)
}
