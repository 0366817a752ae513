package clientload

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

const mib = 1 << 20

// TestCollecting: a garbage collection is started when most of the memory up to the runtime's next
// collection is allocated. Migrations see it until it ends, and the next one is not started soon
// after.
func TestCollecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now heap
		collections := 0
		c := newCollecting(clock.RealClock{})
		c.read, c.collect = func() heap { return now }, func() {
			if time.Sleep(2 * time.Second); collections == 1 {
				defer panic("a bug") // it has ended all the same
			}
			collections++
		}
		for _, step := range []struct {
			what string
			wait time.Duration
			heap heap
			want bool
		}{
			{"first seen long after a collection, with little allocated", 0, heap{3, 5000 * mib, 400 * mib, 200 * mib, 250 * mib}, false},
			{"half of what may be", 0, heap{3, 5050 * mib, 400 * mib, 200 * mib, 300 * mib}, false},
			{"a collection of the runtime's own that has just ended, and has not freed anything yet", 0, heap{4, 5200 * mib, 600 * mib, 300 * mib, 590 * mib}, false},
			{"most of what may be", 0, heap{4, 5380 * mib, 600 * mib, 300 * mib, 490 * mib}, true},
			{"it goes on", time.Second, heap{4, 5390 * mib, 600 * mib, 300 * mib, 500 * mib}, true},
			{"it has ended", 2 * time.Second, heap{5, 5400 * mib, 640 * mib, 320 * mib, 330 * mib}, false},
			{"most of what may be, soon after", 500 * time.Millisecond, heap{5, 5650 * mib, 640 * mib, 320 * mib, 580 * mib}, false},
			{"most of what may be, later", 5 * time.Second, heap{5, 5660 * mib, 640 * mib, 320 * mib, 590 * mib}, true},
			{"not looked at for long, with much allocated since a collection", time.Minute, heap{9, 9000 * mib, 640 * mib, 320 * mib, 560 * mib}, true},
			{"a small heap", time.Minute, heap{10, 9100 * mib, 9 * mib, 4 * mib, 8 * mib}, false},
			{"a heap at its limit", time.Minute, heap{11, 9900 * mib, 500 * mib, 500 * mib, 500 * mib}, false},
			{"a heap above its limit", time.Minute, heap{12, 9990 * mib, 490 * mib, 500 * mib, 510 * mib}, false},
		} {
			time.Sleep(step.wait)
			synctest.Wait()
			now = step.heap
			if got := c.under(); got != step.want {
				t.Errorf("%s: collecting %v", step.what, got)
			}
		}
		if collections != 3 {
			t.Errorf("garbage was collected %d times", collections)
		}
	})
}

// TestHeap reads the numbers of the Go runtime.
func TestHeap(t *testing.T) {
	if h := readHeap(); h.allocated == 0 || h.goal == 0 || h.size == 0 {
		t.Errorf("the runtime tells %+v", h)
	}
}

// TestCollectingBesideClients: a garbage collection is started only while clients send requests,
// since it is for their latency.
func TestCollectingBesideClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, collections := New(clock.RealClock{}), 0
		l.garbage.read = func() heap { return heap{1, 1000 * mib, 400 * mib, 200 * mib, 390 * mib} }
		l.garbage.collect = func() { collections++ }
		look, stop := l.Watch()
		defer stop()
		if look().Collecting {
			t.Error("garbage is collected beside no clients")
		}
		for range busyRequests {
			end := l.begin("write", 0)
			time.Sleep(loadWindow / 10)
			end()
		}
		if !look().Collecting {
			t.Error("garbage is not collected beside clients")
		}
		synctest.Wait()
		if collections != 1 {
			t.Errorf("garbage was collected %d times", collections)
		}
	})
}
