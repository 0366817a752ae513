package progress

import (
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestMeanwhile: a caller with news does not wait while the listener is busy. The news of several
// callers are told in one call, by the caller that is telling already.
func TestMeanwhile(t *testing.T) {
	var n atomic.Int64
	var heard []int64
	telling, resume := make(chan struct{}), make(chan struct{})
	teller := NewTeller(n.Load, func(now int64) {
		heard = append(heard, now)
		if len(heard) == 1 {
			close(telling)
			<-resume
		}
	})
	done := make(chan struct{})
	n.Store(1)
	go func() {
		defer close(done)
		teller.Tell()
	}()
	<-telling
	others := make(chan struct{})
	go func() {
		defer close(others)
		for range 3 {
			n.Add(1)
			teller.Tell()
		}
	}()
	select {
	case <-others:
	case <-time.After(time.Minute):
		t.Error("others wait for the listener")
	}
	close(resume)
	<-done
	if !slices.Equal(heard, []int64{1, 4}) {
		t.Errorf("heard %v, want 1 and then 4, once", heard)
	}
}

// TestInOrder: the listener is called by one caller at a time, with growing values, and gets the last
// value.
func TestInOrder(t *testing.T) {
	const workers, each = 8, 500
	var n atomic.Int64
	var calls atomic.Int32
	var last int64
	teller := NewTeller(n.Load, func(now int64) {
		if calls.Add(1) > 1 {
			t.Error("two calls at a time")
		}
		if now < last {
			t.Errorf("%d after %d", now, last)
		}
		last = now
		calls.Add(-1)
	})
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for range each {
				n.Add(1)
				teller.Tell()
			}
		})
	}
	working.Wait()
	if last != workers*each {
		t.Errorf("the last was %d of %d", last, workers*each)
	}
}

// TestListenerThatPanics: the listener's panic reaches the caller, and the lock is released, so that
// later callers do not hang.
func TestListenerThatPanics(t *testing.T) {
	teller := NewTeller(func() int { return 7 }, func(int) { panic("told") })
	func() {
		defer func() {
			if cause := recover(); cause != "told" {
				t.Errorf("recovered %v", cause)
			}
		}()
		teller.Tell()
	}()
	if !teller.mu.TryLock() {
		t.Fatal("the lock is still held")
	}
	teller.mu.Unlock()
	teller.Tell()
}

func TestNobodyListens(*testing.T) {
	NewTeller(func() int { return 0 }, nil).Tell()
}
