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
	l := newLanes(&fifo{}, &fifo{}, func(name string) bool { return name == "built-in" })
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

// TestInterrupted: which migrations go on before others begin.
func TestInterrupted(t *testing.T) {
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
		"this server's, failed": {begun("m", self, migrationv1alpha1.ReasonRetrying), false},
		"let go":                {begun("m", "", migrationv1alpha1.ReasonRewriting), true},
		"paused":                {paused, false},
		"resumed":               {begun("m", "", migrationv1alpha1.ReasonPaused), true},
	} {
		if got := interrupted(test.of, self); got != test.want {
			t.Errorf("%s: interrupted %v, want %v", name, got, test.want)
		}
	}
}

// TestInterruptedFirst: migrations that a server began that is gone are taken before others like them that have not
// begun, also if they were begun while they waited. What comes later comes later all the same.
func TestInterruptedFirst(t *testing.T) {
	w := newWorld(t)
	w.c.cfg.Later = func(m *migrationv1alpha1.StorageVersionMigration) bool { return strings.HasPrefix(m.Name, "built-in") }
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	queue := w.c.newQueue(func() cache.Store { return store })
	defer queue.ShutDown()
	add := func(m *migrationv1alpha1.StorageVersionMigration) {
		w.must(store.Add(m))
		queue.Add(m.Name)
	}
	fresh := func(name string) *migrationv1alpha1.StorageVersionMigration {
		m := &migrationv1alpha1.StorageVersionMigration{}
		m.Name = name
		return m
	}
	add(fresh("built-in"))
	add(begun("built-in-begun", other, migrationv1alpha1.ReasonRewriting))
	add(fresh("fresh"))
	add(fresh("claimed"))
	add(begun("tried", self, migrationv1alpha1.ReasonRetrying))
	add(begun("begun", other, migrationv1alpha1.ReasonRewriting))
	add(begun("claimed", other, migrationv1alpha1.ReasonRewriting)) // while it waits
	var got []string
	for queue.Len() > 0 {
		name, _ := queue.Get()
		got = append(got, name)
		queue.Done(name)
	}
	if want := []string{"begun", "claimed", "fresh", "tried", "built-in-begun", "built-in"}; !slices.Equal(got, want) {
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
