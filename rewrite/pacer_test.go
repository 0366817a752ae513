package rewrite

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestPace(t *testing.T) {
	const target = 5 * time.Millisecond
	for _, test := range []struct {
		name     string
		now      pace
		added    time.Duration
		achieved float64
		want     pace
	}{
		{"it climbs while little is added", pace{rate: 100}, target / 2, 95, pace{rate: 200}},
		{"half of what may be added halts the climb", pace{rate: 1000}, target/2 + 1, 900, pace{rate: 1000, near: true}},
		{"the second time it ends it", pace{rate: 1000, near: true}, target/2 + 1, 900, pace{rate: 1000, knee: 900, near: true}},
		{"or it was chance", pace{rate: 1000, near: true}, 0, 900, pace{rate: 2000}},
		{"then it grows by little", pace{rate: 1000, knee: 1000}, target, 1000, pace{rate: 1050, knee: 1000}},
		{"and by something", pace{rate: 50, knee: 60}, target, 50, pace{rate: 70, knee: 60}},
		{"an excess lowers it", pace{rate: 1000}, target + 1, 1000, pace{rate: 700, knee: 1000, draining: true}},
		{"a large one by much", pace{rate: 1000, knee: 800}, 2*target + 1, 1000, pace{rate: 350, knee: 1000, draining: true}},
		{"a store that stood still tells little of the knee", pace{rate: 1000, knee: 1000}, time.Second, 0, pace{rate: step, knee: 500, draining: true}},
		{"it is blamed on what was written", pace{rate: 10_000}, target + 1, 1000, pace{rate: 700, knee: 1000, draining: true}},
		{"what comes right after it is not blamed on anything", pace{rate: 700, knee: 1000, draining: true}, time.Second, 700, pace{rate: 700, knee: 1000}},
		{"far from the knee it climbs", pace{rate: 400, knee: 1000}, target, 400, pace{rate: 800, knee: 1000}},
		{"what is not used does not grow", pace{rate: 10_000}, 0, 1000, pace{rate: 10_000}},
		{"it never ends", pace{rate: step}, time.Second, step, pace{rate: step, knee: step, draining: true}},
		{"latency may fall", pace{rate: 100}, -time.Millisecond, 100, pace{rate: 200}},
	} {
		if got := test.now.next(test.added, target, test.achieved, step); math.Abs(got.rate-test.want.rate) > 1e-6 || got.knee != test.want.knee || got.draining != test.want.draining || got.near != test.want.near {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestPaceSettles lets a store answer later the more is written, and asserts that the rate
// comes to where the target is, from above and from below.
func TestPaceSettles(t *testing.T) {
	const target = 5 * time.Millisecond
	for _, start := range []pace{{rate: 100}, {rate: 50_000}} {
		p, sum, most := start, 0.0, 0.0
		for i := range 400 {
			added := time.Duration(p.rate * 5 * float64(time.Microsecond)) // 1000/s add the target
			p = p.next(added, target, p.rate, step)
			if i >= 200 {
				sum += p.rate
				most = max(most, p.rate)
			}
		}
		if mean := sum / 200; mean < 700 || most > 1100 {
			t.Errorf("from %+v: %v objects/s on average, %v at most, want nearly 1000", start, mean, most)
		}
	}
}

// TestGovern has the first rest disturbed: the calmer second one is what is compared with.
func TestGovern(t *testing.T) {
	fastest, _ := governed(t, Yield{}, 1000, func(at time.Duration, rate float64) time.Duration {
		if at < tick {
			return 30 * time.Millisecond
		}
		return time.Millisecond + time.Duration(rate)*time.Microsecond // 2000/s add the target
	})
	if fastest < 1500 || fastest > 2500 {
		t.Errorf("at most %v objects/s, want about 2000", fastest)
	}
}

// TestGovernInNoise has something else make latencies high now and then, whatever the rate is.
func TestGovernInNoise(t *testing.T) {
	for _, test := range []struct {
		bytes int
		least float64
	}{{1000, slowest}, {1 << 20, step}} {
		probes := 0
		_, mean := governed(t, Yield{}, test.bytes, func(time.Duration, float64) time.Duration {
			probes++
			return time.Millisecond + time.Duration(probes%97)*time.Millisecond/2
		})
		if most := 5 * test.least; mean < 0.8*test.least || mean > most {
			t.Errorf("%v objects/s of %d bytes on average, want at least %v and at most %v", mean, test.bytes, test.least, most)
		}
	}
}

// TestGovernBounded: a bound holds, be it below the rate that is kept in any case.
func TestGovernBounded(t *testing.T) {
	slow := func(time.Duration, float64) time.Duration { return 30 * time.Millisecond }
	if fastest, _ := governed(t, Yield{MaxPerSecond: 50}, 1000, slow); fastest != 50 {
		t.Errorf("%v objects/s, want 50", fastest)
	}
}

// TestLeast follows the sizes of what was written last.
func TestLeast(t *testing.T) {
	p := newPacer(Yield{}, 1, clocktesting.NewFakeClock(time.Unix(0, 0)), &crowd{})
	if p.least() != step {
		t.Errorf("%v before anything was written", p.least())
	}
	for _, size := range []struct {
		bytes int
		want  float64
	}{{1000, slowest}, {1 << 20, step}, {1000, slowest}, {50 << 10, 80}} {
		for range 2000 {
			p.wrote(1, size.bytes, 0)
		}
		if got := p.least(); got < 0.9*size.want || got > 1.1*size.want {
			t.Errorf("%v after objects of %d bytes, want about %v", got, size.bytes, size.want)
		}
	}
}

// governed lets a pacer with a target of 2 ms decide for 20 s in which it writes as fast as it
// may, objects of a size, and a probe takes what latency says. It returns the highest rate and
// what was written per second.
func governed(t *testing.T, yield Yield, bytes int, latency func(at time.Duration, rate float64) time.Duration) (fastest, mean float64) {
	t.Helper()
	const lasts = 20 * time.Second
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	yield.MaxAddedLatency, yield.Busy = 2*time.Millisecond, func() bool { return true }
	p := newPacer(yield, 1, clock, &crowd{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := clock.Now()
	rate := func() float64 {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.rate
	}
	var stepping sync.WaitGroup
	stepping.Go(func() {
		for ctx.Err() == nil {
			if clock.HasWaiters() {
				clock.Step(time.Millisecond)
			}
			runtime.Gosched()
		}
	})
	defer stepping.Wait()
	defer cancel()
	written, told := 0.0, 0
	last := began
	p.govern(ctx, func(context.Context) (int64, error) {
		at := clock.Since(began)
		took := latency(at, rate())
		if at > lasts {
			cancel()
		}
		clock.Step(took)
		if now := rate(); !math.IsInf(now, 1) {
			written += now * clock.Since(last).Seconds()
			fastest = max(fastest, now)
		}
		last = clock.Now()
		p.wrote(int(written)-told, (int(written)-told)*bytes, 0)
		told = int(written)
		return 0, nil
	})
	return fastest, written / clock.Since(began).Seconds()
}

func TestReserve(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	p := newPacer(Yield{MaxPerSecond: 1000}, 1, clock, &crowd{})
	for i := range 3 {
		n, after, _ := p.reserve(100)
		if n != 5 || after != time.Duration(i)*5*time.Millisecond {
			t.Errorf("%d: %d objects after %s", i, n, after)
		}
	}
	p.set(math.Inf(1))
	if n, _, _ := p.reserve(100); n != 5 {
		t.Errorf("%d objects past the bound", n)
	}
	p.set(0)
	if n, _, _ := p.reserve(100); n != 0 {
		t.Errorf("%d objects while resting", n)
	}
	p.set(50)
	if n, after, _ := p.reserve(100); n != 1 || after != 0 {
		t.Errorf("%d objects after %s", n, after)
	}
	if n, after, _ := p.reserve(100); n != 1 || after != 20*time.Millisecond {
		t.Errorf("%d objects after %s", n, after)
	}
	clock.Step(220 * time.Millisecond) // 20 ms of it go to the second object, and the rest is missed
	for i, want := range []int{8, 1} {
		if n, after, _ := p.reserve(100); n != want || after != 0 {
			t.Errorf("%d: %d objects after %s, want %d at once", i, n, after, want)
		}
	}
	if n, after, _ := p.reserve(100); n != 1 || after != 20*time.Millisecond {
		t.Errorf("what was missed is caught up twice: %d objects after %s", n, after)
	}
	p.set(1)
	if n, after, _ := p.reserve(100); n != 1 || after != 0 {
		t.Errorf("%d objects after %s", n, after)
	}
	clock.Step(10 * time.Second)
	if n, after, _ := p.reserve(100); n != 1 || after != 0 {
		t.Errorf("%d objects after %s at one per second, although it was not used for 9 s", n, after)
	}
	free := newPacer(Yield{}, 1, clock, &crowd{})
	if n, after, _ := free.reserve(100); n != 100 || after != 0 {
		t.Errorf("without a bound %d objects after %s", n, after)
	}
}

func TestAhead(t *testing.T) {
	p := newPacer(Yield{}, 1, clocktesting.NewFakeClock(time.Unix(0, 0)), &crowd{})
	for _, test := range []struct {
		rate float64
		want int
	}{{math.Inf(1), 2000}, {100_000, 2000}, {5000, 500}, {200, 20}, {20, minAhead}, {0, minAhead}} {
		if p.set(test.rate); p.ahead(2000) != test.want {
			t.Errorf("at %v/s %d keys are read at a time, want %d", test.rate, p.ahead(2000), test.want)
		}
	}
	if p.ahead(5) != 5 {
		t.Errorf("%d keys are read of at most 5", p.ahead(5))
	}
}

// TestAdmitFollowsTheRate: who waits for a turn at an old rate gets one at the new.
func TestAdmitFollowsTheRate(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(0, 0))
	p := newPacer(Yield{}, 1, clock, &crowd{})
	p.set(0)
	admitted := make(chan int, 1)
	go func() {
		n, _ := p.admit(t.Context(), 7)
		admitted <- n
	}()
	for deadline := time.After(time.Minute); !clock.HasWaiters(); {
		select {
		case <-deadline:
			t.Fatal("nobody waits")
		default:
			runtime.Gosched()
		}
	}
	p.set(math.Inf(1))
	if n := <-admitted; n != 7 {
		t.Errorf("%d admitted", n)
	}
	p.set(0)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.admit(ctx, 7); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestWindow counts what others wrote in the last second.
func TestWindow(t *testing.T) {
	var w window
	own, newest, got := int64(0), int64(0), int64(0)
	if w.add(0, 0) != 0 {
		t.Error("others are seen before anything is known")
	}
	newest = 1000
	for range 30 {
		own, newest = own+50, newest+50+2
		got = w.add(own, newest)
	}
	if got != 20 {
		t.Errorf("%d transactions of others in a second with 2 per tick", got)
	}
	for range 11 {
		own, newest = own+50, newest+50
		got = w.add(own, newest)
	}
	if got != 0 {
		t.Errorf("%d a second after the last one", got)
	}
}

// TestLowRate: however often a run rests, it writes no more than it may.
func TestLowRate(t *testing.T) {
	for _, most := range []int{1, 2, 7} {
		synctest.Test(t, func(t *testing.T) {
			p := newPacer(Yield{MaxAddedLatency: time.Millisecond, MaxPerSecond: most, Busy: func() bool { return true }}, 1, clock.RealClock{}, &crowd{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var governing sync.WaitGroup
			governing.Go(func() { p.govern(ctx, func(context.Context) (int64, error) { return 0, nil }) })
			written := 0
			for {
				n, err := p.admit(ctx, 100)
				if err != nil {
					break
				}
				written += n
				p.wrote(n, n*1000, 0)
			}
			governing.Wait()
			if written > 60*most+1 || written < 60*most*8/10 {
				t.Errorf("%d in a minute at %d per second", written, most)
			}
		})
	}
}

// TestOthers: a run gives way to what others write, and not to other runs of its engine.
func TestOthers(t *testing.T) {
	for name, test := range map[string]struct {
		perSecond int64
		ofEngine  bool
		slower    bool
	}{
		"nobody":               {0, false, false},
		"servers that idle":    {5, false, false},
		"clients":              {50, false, true},
		"runs of the engine":   {200, true, false},
		"runs, and few others": {204, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs crowd
				yield := Yield{MaxAddedLatency: time.Millisecond}
				p, another := newPacer(yield, 8, clock.RealClock{}, &runs), newPacer(yield, 8, clock.RealClock{}, &runs)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var all sync.WaitGroup
				defer all.Wait()
				all.Go(func() { p.govern(ctx, func(context.Context) (int64, error) { return 0, nil }) })
				var revision atomic.Int64
				revision.Store(1000)
				every := func(perSecond int64, do func(revision int64)) {
					for perSecond > 0 && wait(ctx, clock.RealClock{}, time.Second/time.Duration(perSecond)) == nil {
						do(revision.Add(1))
					}
				}
				all.Go(func() { every(100, func(r int64) { p.wrote(100, 100_000, r) }) })
				if test.ofEngine {
					all.Go(func() { every(200, func(r int64) { another.wrote(100, 100_000, r) }) })
					test.perSecond -= 200
				}
				all.Go(func() { every(test.perSecond, func(int64) {}) })
				slower := false
				for wait(ctx, clock.RealClock{}, tick) == nil {
					p.mu.Lock()
					slower = slower || !math.IsInf(p.rate, 1)
					p.mu.Unlock()
				}
				if slower != test.slower {
					t.Errorf("it gives way: %v", slower)
				}
			})
		})
	}
}

// TestGivesWay runs with clients that are always served and a store that is slow while
// much is written: everything is done, at a rate that the store bears.
func TestGivesWay(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	contents := loadOld(t, c, 400)
	transactions, largest := 0, 0
	kv := hooked{KV: NewEtcd(c), beforeCommit: func(_ Fence, puts []Put) error {
		transactions++
		largest = max(largest, len(puts))
		return nil
	}}
	result, err := New(kv).Run(t.Context(), target, Options{Workers: 1, Yield: Yield{MaxAddedLatency: 10 * time.Millisecond, Busy: func() bool { return true }}}, nil)
	must(t, err)
	// At full speed it would be four transactions.
	if result.Rewritten != 400 || transactions < 8 {
		t.Errorf("%+v in %d transactions of up to %d", result.Progress, transactions, largest)
	}
	requireNew(t, c, contents)
	must(t, Yield{}.Validate())
	for _, bad := range []Yield{{MaxAddedLatency: -1}, {MaxPerSecond: -1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
}
