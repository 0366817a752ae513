package claim

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/concord-dev/concord/agree"
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
		w.Eventually("queued", func() bool {
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

// TestLaterAtLast: migrations for which Later is true, and those that have not begun, get every eighth turn (one that is behind in both respects: every 64th), even if
// others are queued again and again because they fail, and however many wait before them. Turns in which none of them
// waits do not count.
func TestLaterAtLast(t *testing.T) {
	ranks := map[string]int{"begun": interrupted, "fresh": fresh, "built-in-begun": later + interrupted, "built-in": later + fresh}
	for _, test := range []struct {
		again string // the name that is queued again and again
		wait  []string
		of    string
		turns int
	}{
		{"begun", []string{"fresh"}, "fresh", turnsOfLate},
		{"begun", []string{"built-in"}, "built-in", turnsOfLate},
		{"begun", slices.Repeat([]string{"fresh"}, 2*turnsOfLate), "fresh", turnsOfLate},
		{"begun", append(slices.Repeat([]string{"fresh"}, 2*turnsOfLate), "built-in"), "built-in", turnsOfLate},
		{"begun", []string{"built-in", "fresh"}, "fresh", turnsOfLate + 1}, // one turn was another one's
		{"built-in-begun", []string{"built-in"}, "built-in", turnsOfLate},
		{"begun", append(slices.Repeat([]string{"built-in-begun"}, 2*turnsOfLate), "built-in"), "built-in", turnsOfLate * turnsOfLate},
	} {
		o := &order{rank: func(name string) int { return ranks[name] }}
		for range 3*turnsOfLate + 1 {
			o.Push(test.again)
			o.Pop()
		}
		o.names = slices.Concat(test.wait, []string{test.again})
		turn := 1
		for name := o.Pop(); name != test.of && turn <= len(ranks)*turnsOfLate*turnsOfLate; name = o.Pop() {
			turn++
			if name == test.again {
				o.Push(name)
			}
		}
		if turn != test.turns {
			t.Errorf("%s behind %s: it has turn %d, want %d", test.of, test.again, turn, test.turns)
		}
	}
}

// begun returns a migration that a server claimed and began; an empty claimer has let it go.
func begun(name string, claimer agree.ServerID, reason string) *migrationv1alpha1.StorageVersionMigration {
	m := &migrationv1alpha1.StorageVersionMigration{}
	m.Name = name
	if claimer != "" {
		m.Annotations = map[string]string{migrationv1alpha1.ClaimedByAnnotation: string(claimer)}
	}
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationRunning, Status: corev1.ConditionTrue, Reason: reason}}
	return m
}

// TestHasBegun: which migrations go on before others begin.
func TestHasBegun(t *testing.T) {
	paused := begun("m", "", migrationv1alpha1.ReasonPaused)
	paused.Spec.Paused = true
	waits := begun("m", "", migrationv1alpha1.ReasonWaitingForAgreement)
	waits.Status.Conditions[0].Status = corev1.ConditionFalse
	for name, test := range map[string]struct {
		of   *migrationv1alpha1.StorageVersionMigration
		want bool
	}{
		"not begun":             {&migrationv1alpha1.StorageVersionMigration{}, false},
		"waits":                 {waits, false},
		"another server's":      {begun("m", other, migrationv1alpha1.ReasonRewriting), true},
		"tried by another one":  {begun("m", other, migrationv1alpha1.ReasonRetrying), true},
		"this server's, failed": {begun("m", self, migrationv1alpha1.ReasonRetrying), true},
		"let go":                {begun("m", "", migrationv1alpha1.ReasonRewriting), true},
		"paused":                {paused, false},
		"resumed":               {begun("m", "", migrationv1alpha1.ReasonPaused), true},
	} {
		if got := hasBegun(test.of); got != test.want {
			t.Errorf("%s: begun %v, want %v", name, got, test.want)
		}
	}
}

// TestInterruptedFirst: migrations that have begun are taken before others like them that have not, also if another
// server began them while they waited here, which it writes in two steps. What comes later comes later all the same.
func TestInterruptedFirst(t *testing.T) {
	w := newWorld(t)
	w.c.cfg.Later = func(m *migrationv1alpha1.StorageVersionMigration) bool { return strings.HasPrefix(m.Name, "built-in") }
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	queue := w.c.newQueue(func() cache.Store { return store })
	defer queue.ShutDown()
	seen := func(is *migrationv1alpha1.StorageVersionMigration) {
		var was *migrationv1alpha1.StorageVersionMigration
		if obj, ok, _ := store.GetByKey(is.Name); ok {
			was = obj.(*migrationv1alpha1.StorageVersionMigration)
		}
		w.must(store.Add(is))
		w.c.seen(queue, was, is, false)
	}
	fresh := func(name string) *migrationv1alpha1.StorageVersionMigration {
		m := &migrationv1alpha1.StorageVersionMigration{}
		m.Name = name
		return m
	}
	seen(fresh("built-in"))
	seen(begun("built-in-begun", other, migrationv1alpha1.ReasonRewriting))
	seen(fresh("fresh"))
	seen(fresh("claimed"))
	seen(begun("tried", self, migrationv1alpha1.ReasonRetrying))
	seen(begun("begun", other, migrationv1alpha1.ReasonRewriting))
	claimed := begun("claimed", other, migrationv1alpha1.ReasonRewriting)
	first := claimed.DeepCopy()
	first.Status = fresh("").Status
	seen(first)
	seen(claimed)
	var got []string
	for queue.Len() > 0 {
		name, _ := queue.Get()
		got = append(got, name)
		queue.Done(name)
	}
	if want := []string{"claimed", "tried", "begun", "fresh", "built-in-begun", "built-in"}; !slices.Equal(got, want) {
		t.Errorf("they are taken in the order %q, want %q", got, want)
	}
}

// TestBeginsWithInterrupted: a server that starts goes on with a migration that another one began, which is gone, before
// it begins others, although these are listed first.
func TestBeginsWithInterrupted(t *testing.T) {
	w := newWorld(t)
	w.c.cfg.Workers = 1
	w.c.cfg.ID = func() agree.ServerID { // it is asked for each migration that is listed
		runtime.Gosched()
		return self
	}
	w.must(w.client.Delete(t.Context(), leaseObject(t, w, other)))
	w.migration(nil)
	for i := range 200 { // so many that a worker could take one while they are listed
		w.migration(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name = fmt.Sprint("a", i)
			m.UID = types.UID(m.Name)
		})
	}
	m := w.edit(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Annotations[migrationv1alpha1.ClaimedByAnnotation] = string(other)
	})
	m.Status = begun("m", other, migrationv1alpha1.ReasonRewriting).Status
	w.must(w.client.Status().Update(t.Context(), m))
	first := make(chan types.UID, 1)
	w.rewrite = func(ctx context.Context, _ Job, _ func(Progress)) (Result, error) {
		for _, of := range w.c.works() {
			select {
			case first <- of.uid:
			default:
			}
		}
		return untilInterrupted(ctx)
	}
	runs(t, w)
	if uid := <-first; uid != m.UID {
		t.Errorf("it begins with %s, want %s", uid, m.UID)
	}
}
