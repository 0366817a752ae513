package member

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// TestPanics: whichever call panics once, the member registers and reports, and leaves in order.
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
					c.WaitLimit = 20 * time.Second
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
				eventually(t, "ready", func() bool { return w.m.Ready() == nil && w.status(widgets).Open })
				eventually(t, call, func() bool { // some come only after it is ready
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
