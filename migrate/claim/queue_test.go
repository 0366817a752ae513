package claim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestLater: migrations that come later wait for all others, also for those that are queued after them, and keep
// their order, as all do where none comes later.
func TestLater(t *testing.T) {
	for _, test := range []struct {
		later func(*migrationv1alpha1.StorageVersionMigration) bool
		want  []string
	}{
		{nil, []string{"built-in-1", "built-in-2", "changed", "gone", "asked-for"}},
		{func(m *migrationv1alpha1.StorageVersionMigration) bool { return strings.HasPrefix(m.Name, "built-in") }, []string{"changed", "gone", "asked-for", "built-in-1", "built-in-2"}},
	} {
		w := newWorld(t)
		w.c.cfg.Later = test.later
		store := cache.NewStore(cache.MetaNamespaceKeyFunc)
		queue := w.c.newQueue(func() cache.Store { return store })
		defer queue.ShutDown()
		for _, name := range []string{"built-in-1", "built-in-2", "changed", "gone"} {
			if name != "gone" {
				m := &migrationv1alpha1.StorageVersionMigration{}
				m.Name = name
				w.must(store.Add(m))
			}
			queue.Add(name)
			queue.Add(name) // once is enough
		}
		queue.AddAfter("asked-for", time.Second)
		eventually(t, func() bool {
			w.clock.Step(time.Second)
			return queue.Len() == len(test.want)
		})
		var got []string
		for queue.Len() > 0 {
			name, _ := queue.Get()
			got = append(got, name)
			queue.Done(name)
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("they are taken in the order %q, want %q", got, test.want)
		}
	}
}
