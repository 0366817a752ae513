package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

var errCrash = errors.New("the process is gone")

// TestResumesAfterCrashes ends runs at random points: before a transaction, or after it was written
// and before its answer arrived. The next run goes on at the last cursor that was saved.
func TestResumesAfterCrashes(t *testing.T) {
	for seed := range int64(6) {
		underWay := []int{1, 40}[seed%2]
		t.Run(fmt.Sprintf("seed %d, %d under way", seed, underWay), func(t *testing.T) {
			c, target, contents := oldPolicies(t, 1500)
			for i := range 30 {
				key := fmt.Sprintf("%sobject-%06d-bad", policyPrefix, i*50)
				put(t, c, key, []byte("no object"))
			}
			random := rand.New(rand.NewSource(seed))
			crashes := 0
			var saved Cursor
			var result Result
			var failed []Failure
			for {
				var mu sync.Mutex
				left, crashed := random.Intn(240), false
				hooks := hooked{KV: NewEtcd(c), beforeRange: func(start string, _ int64) error {
					if strings.HasPrefix(start, policyPrefix) && start <= saved.After {
						t.Errorf("%q is read again, although everything to %q is done", start, saved.After)
					}
					return nil
				}}
				kv := crashing{hooks, func() (before, after bool) {
					mu.Lock()
					defer mu.Unlock()
					if left--; left < 0 {
						crashed = true
					}
					return crashed && left < -1, crashed
				}}
				newest := saved
				every, reports := 1+random.Intn(3), 0
				var err error
				result, err = New(kv).Run(t.Context(), target, Options{UnderWay: underWay, PageKeys: 70, PieceKeys: 20, Resume: saved}, func(r Report) {
					mu.Lock()
					defer mu.Unlock()
					if reports++; reports%every == 0 && !crashed {
						newest = r.Cursor
					}
				})
				if err == nil {
					failed = append(failed, result.Failed...)
					break
				}
				if !errors.Is(err, errCrash) {
					t.Fatal(err)
				}
				crashes++
				failed = append(failed, newest.Failed...)
				saved = Cursor{After: newest.After, Progress: newest.Progress}
				requireSum(t, Result{Progress: saved.Progress})
			}
			t.Logf("%d crashes", crashes)
			if crashes < 3 {
				t.Errorf("only %d crashes", crashes)
			}
			requireSum(t, result)
			if result.Total != 1530 || result.Failures != 30 || len(failed) != 30 {
				t.Errorf("got %+v and %d failures by name", result.Progress, len(failed))
			}
			if !slices.IsSortedFunc(failed, func(a, b Failure) int { return strings.Compare(a.Key, b.Key) }) {
				t.Errorf("failures in the order %v", failed)
			}
			for key := range stored(t, c, policyPrefix) {
				if strings.HasSuffix(key, "-bad") {
					_, err := c.Delete(t.Context(), key)
					must(t, err)
				}
			}
			requireNew(t, c, contents)
		})
	}
}

// crashing is a KV that fails from some call on, as if the process had ended before a put or after
// it.
type crashing struct {
	KV
	gone func() (before, after bool)
}

func (k crashing) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	before, after := k.gone()
	if before {
		return false, 0, errCrash
	}
	written, revision, err := k.KV.Put(ctx, fence, put)
	if after {
		return false, 0, errCrash
	}
	return written, revision, err
}

// TestTheFenceHoldsTheCursorBack: if the StorageVersions themselves are rewritten, the one that is
// the fence is written last, so no cursor is behind it before that.
func TestTheFenceHoldsTheCursorBack(t *testing.T) {
	c := startEtcd(t)
	prefix := "/registry/storageversions/"
	load(t, c, 40, numbered(prefix), func(i int) []byte { return widget(t, "v1", i) })
	fence := numbered(prefix)(13)
	target := Target{
		GroupResource: policies, Encoding: "example.com/v2", Prefix: prefix, Codec: widgets("v2"), New: newWidget,
		FenceKey: fence, FenceRevision: put(t, c, fence, widget(t, "v1", 13)),
	}
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{UnderWay: 1, PieceKeys: 5}, func(r Report) {
		if r.Cursor.After >= fence {
			t.Errorf("the cursor is at %q before the StorageVersion is written", r.Cursor.After)
		}
	})
	must(t, err)
	if result.Rewritten != 40 || result.Cursor.After != numbered(prefix)(39) {
		t.Errorf("got %+v at %q", result.Progress, result.Cursor.After)
	}
}

// counting is a KV that counts the bytes of values that were read and are not written yet, if every
// value has to be written.
type counting struct {
	KV
	mu         sync.Mutex
	out        map[string]int
	held, peak int
	replies    int // bytes of the largest page with several values
}

func (k *counting) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	page, err := k.KV.Range(ctx, start, end, limit, revision)
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(page.Entries) > 1 {
		k.replies = max(k.replies, size(page.Entries))
	}
	for _, e := range page.Entries {
		k.out[e.Key] = len(e.Value)
		k.held += len(e.Value)
	}
	k.peak = max(k.peak, k.held)
	return page, err
}

func (k *counting) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	written, revision, err := k.KV.Put(ctx, fence, put)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held -= k.out[put.Key]
	return written, revision, err
}

// TestMemoryIsBounded rewrites small values, then values near etcd's limit, of which the size of the
// small ones gives no idea, then both mixed.
func TestMemoryIsBounded(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	const huge = 1400 << 10
	filler := strings.Repeat("x", huge)
	for i := range 700 {
		length := 500
		if i > 500 && i < 530 || i > 600 && i%10 == 0 {
			length = huge
		}
		value := fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d"},"spec":%q}`, i, filler[:length])
		put(t, c, numbered(prefix)(i), []byte(value))
	}
	target := widgetTarget(t, c)
	const bound = 2 * MaxReply
	kv := &counting{KV: NewEtcd(c), out: map[string]int{}}
	result := rewritten(t, kv, target, Options{UnderWay: 4, MemoryBytes: bound}, nil)
	if result.Rewritten != 700 {
		t.Fatalf("got %+v", result.Progress)
	}
	// Each value counts twice (as read and as written), so half of the bound may be read, and one
	// value on top of it.
	if kv.peak > bound/2+MaxReply/2+huge || kv.replies > MaxReply {
		t.Errorf("%d bytes were in flight, up to %d in a page", kv.peak, kv.replies)
	}
	if result.PeakBytes > bound+2*huge || result.PeakBytes < bound/4 {
		t.Errorf("the run says that it held %d bytes", result.PeakBytes)
	}
	t.Logf("in flight %d, held %d, in a page %d", kv.peak, result.PeakBytes, kv.replies)

	// The way back is read as streams, which only the real etcd reader has.
	target.Encoding, target.Codec = "example.com/v1", widgets("v1")
	back := rewritten(t, NewEtcd(c), target, Options{UnderWay: 4, MemoryBytes: bound}, nil)
	if back.Rewritten != 700 || back.PeakBytes > bound+2*huge || back.PeakBytes < huge {
		t.Errorf("back: %+v", back)
	}
}

// silent is a KV of which every third call returns ErrUnavailable; a put may have been done or not.
type silent struct {
	KV
	calls *atomic.Int64
}

func (k silent) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	if k.calls.Add(1)%3 == 0 {
		return Page{}, ErrUnavailable
	}
	return k.KV.Range(ctx, start, end, limit, revision)
}

func (k silent) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	n := k.calls.Add(1)
	if n%6 == 3 {
		return false, 0, ErrUnavailable
	}
	written, revision, err := k.KV.Put(ctx, fence, put)
	if n%6 == 0 {
		return false, 0, ErrUnavailable
	}
	return written, revision, err
}

func (k silent) Prove(ctx context.Context, fence Fence) error {
	if k.calls.Add(1)%3 == 0 {
		return ErrUnavailable
	}
	return k.KV.Prove(ctx, fence)
}

func TestLostRepliesAreSurvived(t *testing.T) {
	for _, underWay := range []int{1, 40} {
		c, target, contents := oldPolicies(t, 600)
		var calls atomic.Int64
		result := rewritten(t, silent{NewEtcd(c), &calls}, target, Options{UnderWay: underWay, PageKeys: 60, PieceKeys: 10}, nil)
		// Values that were written without an answer count as changed, and are already in the target
		// encoding.
		if result.Total != 600 || result.Changed == 0 || result.AlreadyCurrent != result.Changed {
			t.Errorf("%d under way: %+v", underWay, result.Progress)
		}
		requireNew(t, c, contents)
	}
}

// TestEtcdRestartIsSurvived restarts etcd twice while several workers read and write.
func TestEtcdRestartIsSurvived(t *testing.T) {
	c, restart := startEtcdThatStops(t)
	target := policyTarget(t, c)
	contents := loadOld(t, c, 1200)
	var commits atomic.Int64
	var restarting sync.WaitGroup
	kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error {
		if n := commits.Add(1); n == 40 || n == 400 {
			restarting.Wait()
			restarting.Go(restart)
		}
		return nil
	}}
	result, err := New(kv).Run(t.Context(), target, Options{UnderWay: 4, PageKeys: 60, PieceKeys: 10}, nil)
	restarting.Wait()
	must(t, err)
	requireSum(t, result)
	if result.Total != 1200 || commits.Load() < 1200 {
		t.Errorf("%+v in %d transactions", result.Progress, commits.Load())
	}
	requireNew(t, c, contents)
}

func TestPatienceEnds(t *testing.T) {
	c, target, _ := oldPolicies(t, 3)
	kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error { return ErrUnavailable }}
	_, err := New(kv).Run(t.Context(), target, Options{Patience: 50 * time.Millisecond}, nil)
	if !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestSlowProgressHoldsUpNobody: while the listener is busy with one piece's progress, other pieces
// are written.
func TestSlowProgressHoldsUpNobody(t *testing.T) {
	c, target, contents := oldPolicies(t, 4)
	key := numbered(policyPrefix)
	telling, went := make(chan struct{}), make(chan struct{})
	kv := hooked{KV: NewEtcd(c), beforePut: func(_ Fence, p Put) error {
		switch p.Key {
		case key(2): // the first value of the other page; its put waits until the first page's progress is told
			<-telling
		case key(3): // now key(2) was written and counted
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

// TestProgressWithinAPiece: at a slow pace, progress is told before the end of a piece.
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
