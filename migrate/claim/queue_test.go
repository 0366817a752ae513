package claim

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// TestLater: migrations for which Config.Later is true wait for all others, also for those that are queued after them.
// Apart from that, and without Later, migrations keep their order.
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
			queue.Add(name) // adding it twice changes nothing
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

// TestLaterAtLast: migrations for which Later is true get their turn, even if others are queued again and again because
// they fail.
func TestLaterAtLast(t *testing.T) {
	l := &lanes{soon: workqueue.DefaultQueue[string](), late: workqueue.DefaultQueue[string](), later: func(name string) bool { return name == "built-in" }}
	l.Push("built-in")
	l.Push("failing")
	for turn := range turnsOfLate {
		switch name := l.Pop(); {
		case name == "failing":
			l.Push(name)
		case turn == turnsOfLate-1:
			return
		default:
			t.Fatalf("%s has turn %d", name, turn)
		}
	}
	t.Errorf("it has none of %d turns", turnsOfLate)
}
