package pace

import (
	"context"
	"errors"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

const ms = time.Millisecond

// patches is an observation of clients whose patches take so long.
func patches(slow time.Duration) Seen {
	return Seen{Serving: true, Latencies: map[string]Latency{"patch": {Requests: 20, Slow: slow}}}
}

// rested is the state after a first rest, in which patches took so long.
func rested(slow time.Duration) State {
	s := State{}.Next(Bounds{}, Seen{Serving: true}, 0)
	s = s.Next(Bounds{}, patches(0), 0)
	return s.Next(Bounds{}, patches(slow), 0)
}

func TestNext(t *testing.T) {
	inf := math.Inf(1)
	// at is a state with this pressure, compared with what clients may feel, in the tick before.
	at := func(going, knee, felt float64) State {
		s := rested(20 * ms)
		s.going, s.knee, s.felt = going, knee, felt
		return s
	}
	collecting := patches(time.Second)
	collecting.Collecting = true
	known := Seen{Serving: true, Undisturbed: true, Latencies: patches(20 * ms).Latencies}
	for name, test := range map[string]struct {
		state  State
		bounds Bounds
		seen   Seen
		wrote  float64
		want   float64
	}{
		"nobody":                              {State{}, Bounds{}, Seen{}, 0, inf},
		"nobody any more":                     {rested(20 * ms), Bounds{}, Seen{}, 900, inf},
		"nobody, bounded":                     {State{}, Bounds{MaxPerSecond: 70}, Seen{}, 0, 70},
		"blind":                               {State{}, Bounds{Blind: true}, patches(time.Second), 0, inf},
		"clients come: a rest":                {State{}, Bounds{}, patches(20 * ms), 9000, 0},
		"it is known what they felt before":   {State{}, Bounds{}, known, 0, 2 * Default},
		"the same, for patches":               {State{}, Bounds{Least: Patched}, known, 0, 200},
		"behind the rest":                     {rested(20 * ms), Bounds{}, patches(20 * ms), 2 * Default, 4 * Default},
		"they feel nothing":                   {at(2000, 0, 0), Bounds{}, patches(20 * ms), 2000, 4000},
		"they wait a little longer":           {at(2000, 0, 0.6), Bounds{}, patches(26 * ms), 2000, 2000},
		"they wait longer, once":              {at(2000, 0, 0.5), Bounds{}, patches(31 * ms), 2000, 2000},
		"they wait longer":                    {at(2000, 0, 1.1), Bounds{}, patches(31 * ms), 2000, 1400},
		"they wait much longer":               {at(2000, 0, 9), Bounds{}, patches(50 * ms), 2000, 700},
		"it was slower than it might":         {at(4000, 0, 9), Bounds{}, patches(31 * ms), 2000, 1400},
		"it does not make use of what it may": {at(4000, 0, 0), Bounds{}, patches(20 * ms), 1000, 4000},
		"far below what was too fast":         {at(1000, 4000, 0), Bounds{}, patches(20 * ms), 1000, 2000},
		"near what was too fast":              {at(3000, 4000, 0), Bounds{}, patches(20 * ms), 3000, 3150},
		"it never stops":                      {at(Default, 0, 9), Bounds{}, patches(time.Second), Default, Default / (1 - rested(0).resting)},
		"it never stops patching":             {at(Patched, 0, 9), Bounds{Least: Patched}, patches(time.Second), Patched, Patched / (1 - rested(0).resting)},
		"garbage is collected":                {at(2000, 0, 0), Bounds{}, collecting, 2000, 0},
		"an absolute bound is kept":           {at(2000, 0, 9), Bounds{MaxAdded: 5 * ms}, patches(26 * ms), 2000, 1400},
		"a wide one is made use of":           {at(2000, 0, 0), Bounds{MaxAdded: 50 * ms}, patches(35 * ms), 2000, 4000},
		"so is the bound of objects":          {at(2000, 0, 0), Bounds{MaxPerSecond: 300}, patches(20 * ms), 300, 300},
		"requests of another kind":            {at(2000, 0, 9), Bounds{}, Seen{Serving: true, Latencies: map[string]Latency{"get": {20, time.Second}}}, 2000, 2000},
		"too few requests to say":             {at(2000, 0, 9), Bounds{}, Seen{Serving: true, Latencies: map[string]Latency{"patch": {enough - 1, time.Second}}}, 2000, 2000},
	} {
		if got := test.state.Next(test.bounds, test.seen, test.wrote).Rate; math.Abs(got-test.want) > 1 {
			t.Errorf("%s: %v objects/s, want %v", name, got, test.want)
		}
	}
	quick := rested(time.Millisecond)
	quick.felt = 9
	if got := quick.Next(Bounds{}, patches(2500*time.Microsecond), 1000).Rate; got < 1000 {
		t.Errorf("quick requests may take 2 ms more, and the rate becomes %v", got)
	}
}

// TestFewClients: if a tick has few requests, they are put together with those of the next tick.
func TestFewClients(t *testing.T) {
	s := rested(20 * ms)
	s.going, s.felt = 2000, 9
	few := Seen{Serving: true, Latencies: map[string]Latency{"patch": {Requests: 3, Slow: 31 * ms}}}
	if s = s.Next(Bounds{}, few, 2000); s.Rate != 2000 {
		t.Errorf("3 requests made the rate %v", s.Rate)
	}
	if s = s.Next(Bounds{}, few, 2000); s.Rate != 1400 {
		t.Errorf("6 requests made the rate %v", s.Rate)
	}
}

// TestCollecting: nothing is written during a garbage collection, and latencies because of the
// collection do not change the rate. The least rate is still reached on the average.
func TestCollecting(t *testing.T) {
	for name, test := range map[string]struct {
		collects    func(tick int) bool
		felt        time.Duration // more latency for each 20 ms, while the migration writes
		least, most float64
	}{
		"they bear it":   {func(tick int) bool { return tick%10 < 4 }, 0, 5000, math.Inf(1)},
		"they do not":    {func(tick int) bool { return tick%10 < 4 }, 40 * ms, 0.9 * Default, 1.2 * Default},
		"without an end": {func(int) bool { return true }, 40 * ms, 0.8 * Default, 1.2 * Default},
	} {
		s, written, collecting := rested(20*ms), 0., false
		const ticks = 1000
		for tick := range ticks {
			// Requests that end after a collection were delayed by it, too.
			slow := 20 * ms
			if collecting {
				slow = time.Minute
			}
			if s.Rate > 0 {
				slow += test.felt / (20 * ms) * slow
			}
			collecting = test.collects(tick)
			seen := patches(slow)
			seen.Collecting = collecting
			s = s.Next(Bounds{}, seen, s.Rate)
			written += s.Rate
		}
		if rate := written / ticks; rate < test.least || rate > test.most {
			t.Errorf("%s: %.0f objects/s, want %.0f to %.0f", name, rate, test.least, test.most)
		}
	}
}

// TestRests: the migration rests in two of restEvery ticks. The latencies with it are compared with
// the median of those in the last rests.
func TestRests(t *testing.T) {
	s, rests := State{}, 0
	took := []time.Duration{20 * ms, 500 * ms, 30 * ms, 40 * ms, 50 * ms, 10 * ms}
	for tick := range len(took) * restEvery {
		if s = s.Next(Bounds{}, patches(took[tick/restEvery]), s.Rate); s.Rate == 0 {
			rests++
		}
		if tick%restEvery == restEvery-1 && len(s.rests) > keptRests {
			t.Fatalf("%d rests are kept", len(s.rests))
		}
	}
	if rests != 2*len(took) {
		t.Errorf("%d ticks of rest in %d", rests, len(took)*restEvery)
	}
	s.seen = patches(45 * ms).Latencies
	if half, known := s.pressure(Bounds{MaxAdded: 10 * ms}); half != 0.5 || !known {
		t.Errorf("45 ms where the median of the last rests had 40 ms are a pressure of %v", half)
	}
}

// crowd are clients whose latency is a function of the test.
type crowd struct {
	slow    func() time.Duration
	serving atomic.Bool
	ended   atomic.Bool
}

func (c *crowd) Watch() (func() Seen, func()) {
	return func() Seen {
		seen := patches(c.slow())
		seen.Serving = c.serving.Load()
		return seen
	}, func() { c.ended.Store(true) }
}

// TestSettles: from some rate on, clients feel more than they may. The migration settles at nearly
// that rate, also if there is other noise in the latencies now and then.
func TestSettles(t *testing.T) {
	for name, noise := range map[string]time.Duration{"alone": 0, "noise": 60 * ms} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const bearable = 3000
				var p *Pacer
				ticks := 0
				clients := &crowd{}
				clients.serving.Store(true)
				clients.slow = func() time.Duration {
					slow := 20 * ms
					if p != nil {
						slow += time.Duration(float64(10*ms) * math.Pow(p.state.Rate/bearable, 2))
					}
					if ticks++; ticks%17 == 0 {
						slow += noise
					}
					return slow
				}
				p, stop := New(Bounds{}, clients, clock.RealClock{})
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				var wrote atomic.Int64
				var writing sync.WaitGroup
				for range 64 {
					writing.Go(func() {
						for {
							if _, err := p.Admit(ctx, 1000); err != nil {
								return
							}
							wrote.Add(1)
							time.Sleep(ms) // stands for the transaction
						}
					})
				}
				writing.Wait()
				stop()
				rate := float64(wrote.Load()) / 60
				if rate < 0.6*bearable || rate > 1.1*bearable || !clients.ended.Load() {
					t.Errorf("%v objects/s where %d can be borne", rate, bearable)
				}
			})
		})
	}
}

// TestAdmit: with a limit, objects are admitted one after the other, and a large object counts as
// several. A caller whose context has ended gets its error.
func TestAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := New(Bounds{MaxPerSecond: 100}, nil, clock.RealClock{})
		began := time.Now()
		waits := 0
		for range 200 {
			waited, err := p.Admit(t.Context(), 100)
			if err != nil {
				t.Fatal(err)
			}
			if waited {
				waits++
			}
		}
		if took := time.Since(began); took < 1900*ms || took > 2*time.Second || waits < 90 {
			t.Errorf("200 objects at 100 per second took %s, and %d waited", took, waits)
		}
		began = time.Now()
		for range 11 {
			if _, err := p.Admit(t.Context(), 10*unit); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took < time.Second || took > 1200*ms {
			t.Errorf("11 large ones took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := p.Admit(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
	})
}

// late is the clock of a busy machine, whose timers fire late.
type late struct{ clock.RealClock }

func (l late) After(d time.Duration) <-chan time.Time { return l.RealClock.After(d + 150*ms) }

// TestLateTimers: the rate is reached although timers fire late.
func TestLateTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const rate = 650
		p, _ := New(Bounds{MaxPerSecond: rate}, nil, late{})
		wrote := 0
		for began := time.Now(); time.Since(began) < 10*time.Second; wrote++ {
			if _, err := p.Admit(t.Context(), 100); err != nil {
				t.Fatal(err)
			}
		}
		if got := float64(wrote) / 10; got < 0.95*rate || got > 1.02*rate {
			t.Errorf("%v objects/s, want %d", got, rate)
		}
	})
}

// TestClientsCome: a migration at full speed rests when clients come, and returns to full speed
// when they have gone.
func TestClientsCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clients := &crowd{slow: func() time.Duration { return 10 * ms }}
		p, stop := New(Bounds{}, clients, clock.RealClock{})
		defer stop()
		full := func() bool {
			waited, err := p.Admit(t.Context(), 1)
			return !waited && err == nil
		}
		if !full() {
			t.Error("it waits for nobody")
		}
		clients.serving.Store(true)
		time.Sleep(tick)
		began := time.Now()
		if full() || time.Since(began) != 2*tick {
			t.Errorf("clients came, and it rested for %s", time.Since(began))
		}
		if got := p.Rate(); got != 2*Default {
			t.Errorf("its rate is %v", got)
		}
		clients.serving.Store(false)
		time.Sleep(tick)
		if got := p.Rate(); !math.IsInf(got, 1) {
			t.Errorf("its rate is %v, without clients", got)
		}
		for range 100 {
			if !full() {
				t.Fatal("it still waits")
			}
		}
	})
}

// TestTold: the API, the reference of flags and the documentation have the default rates of the
// code.
func TestTold(t *testing.T) {
	for _, file := range []string{"api/migration/v1alpha1/storageversionmigrations.yaml", "api/migration/v1alpha1/types.go", "docs/reference/concord.md", "docs/migrations.md"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		words := strings.Join(strings.Fields(strings.ReplaceAll(string(text), "//", "")), " ")
		told := regexp.MustCompile(`(\d+) objects (?:per|a) second of up to 16 KiB(?: each)?, or (\d+) through the API`).FindAllStringSubmatch(words, -1)
		if len(told) == 0 {
			t.Errorf("%s does not tell them", file)
		}
		for _, rates := range told {
			if rates[1] != strconv.Itoa(Default) || rates[2] != strconv.Itoa(Patched) {
				t.Errorf("%s tells %q, want %d and %d", file, rates[0], Default, Patched)
			}
		}
	}
}
