package store

import (
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

// TestSlowProgressHoldsUpNobody: while one piece's progress is being told, others are
// written.
func TestSlowProgressHoldsUpNobody(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	contents := loadOld(t, c, 4)
	key := numbered(policyPrefix)
	telling, went := make(chan struct{}), make(chan struct{})
	kv := hooked{KV: NewEtcd(c), beforePut: func(_ Fence, p Put) error {
		switch p.Key {
		case key(2): // the other page's first value, to be counted while the first page's progress is told
			<-telling
		case key(3): // was counted
			close(went)
		}
		return nil
	}}
	first := true
	result, err := New(kv).Run(t.Context(), target, Options{UnderWay: 2, PageKeys: 2, PieceKeys: 1}, func(Report) {
		if !first {
			return
		}
		first = false
		close(telling)
		select {
		case <-went:
		case <-time.After(time.Minute):
			t.Error("a page waits for the progress of another to be told")
		}
	})
	must(t, err)
	requireSum(t, result)
	requireNew(t, c, contents)
}

// TestProgressComesInOrder: one call at a time, with counts that only grow.
func TestProgressComesInOrder(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	loadOld(t, c, 400)
	var calls atomic.Int32
	var last Progress
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{UnderWay: 8, PageKeys: 5}, func(now Report) {
		p := now.Progress
		if calls.Add(1) > 1 {
			t.Error("two calls at a time")
		}
		if p.Rewritten < last.Rewritten || p.Total < last.Total || p.Bytes < last.Bytes {
			t.Errorf("%+v after %+v", p, last)
		}
		last = p
		calls.Add(-1)
	})
	must(t, err)
	if last != result.Progress {
		t.Errorf("the last was %+v, the result is %+v", last, result.Progress)
	}
}

// TestProgressWithinAPiece: where the pace is slow, progress does not wait for the end of
// the piece that was read together.
func TestProgressWithinAPiece(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	const objects, perSecond = 30, 100
	piece := int64(max(minAhead, perSecond*aheadFor.Seconds()))
	loadOld(t, c, objects)
	pacer, stop := pace.New(pace.Bounds{MaxPerSecond: perSecond}, nil, clock.RealClock{})
	defer stop()
	var told []int64
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{UnderWay: 1, Pacer: pacer}, func(now Report) {
		told = append(told, now.Rewritten)
		if behind := now.Cursor.Progress.Rewritten; behind > now.Rewritten || now.Rewritten-behind > piece {
			t.Errorf("one can go on behind %d with %d done", behind, now.Rewritten)
		}
	})
	must(t, err)
	requireSum(t, result)
	if int64(len(told)) <= objects/piece {
		t.Errorf("%d objects in pieces of %d were told of in %v", objects, piece, told)
	}
}
