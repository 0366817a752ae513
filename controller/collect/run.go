package collect

import (
	"context"
	"sync"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/client-go/tools/cache"

	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

// stepTimeout bounds one Step of Run, in real time: an answer that never comes must not
// end the observation.
const stepTimeout = 30 * time.Second

// Run steps at every interval until ctx ends. leader is asked before each step.
func (c *Collector) Run(ctx context.Context, leader func() bool) {
	var wg sync.WaitGroup
	wg.Go(func() { workers.Loop(ctx, "collect-watch", c.watch) })
	defer wg.Wait()
	timer := c.cfg.Clock.NewTimer(c.cfg.Interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
		}
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		if err := workers.Do(step, "collect", func() error { return c.Step(step, leader()) }); err != nil && ctx.Err() == nil {
			c.cfg.Logger.Info("Collecting will be repeated", "reason", err.Error())
		}
		cancel()
		timer.Reset(c.cfg.Interval)
	}
}

// watch notices changes of StorageVersions, so that Step need not read them all.
func (c *Collector) watch(ctx context.Context) {
	cache.NewReflectorWithOptions(listwatch.Of(c.cfg.Client, &v1alpha1.StorageVersionList{}), &v1alpha1.StorageVersion{}, c.sink(), cache.ReflectorOptions{
		Name:            "collect",
		TypeDescription: "StorageVersions",
		Logger:          &c.cfg.Logger,
		Clock:           c.cfg.Clock,
	}).RunWithContext(ctx)
}

// sink notes that something changed.
func (c *Collector) sink() listwatch.Sink[v1alpha1.StorageVersion] {
	return listwatch.Sink[v1alpha1.StorageVersion]{
		Event: func(*v1alpha1.StorageVersion, bool) { c.touched.Store(true) },
		Listed: func([]v1alpha1.StorageVersion, int64) {
			c.touched.Store(true)
			c.watched.Store(true)
		},
	}
}
