package claim

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

// TestSlow: another migration may run beside one that waits for something of its own (such as a webhook), or that is
// slow because of its user's limit or as measured. It may not run beside one that waits for the server or etcd, since
// the other would have to wait, too.
func TestSlow(t *testing.T) {
	const s = time.Second
	type report struct {
		at time.Duration
		p  Progress
	}
	for name, test := range map[string]struct {
		bound   *int64
		reports []report
		want    bool
	}{
		"begun":                           {nil, []report{{0, Progress{Done: 1}}}, false},
		"hindered":                        {nil, []report{{0, Progress{Hindered: "the webhook hangs"}}}, true},
		"the server is away":              {nil, []report{{0, Progress{Hindered: "etcd is away", Overloaded: true}}}, false},
		"bounded to one a second":         {ptr.To[int64](1), []report{{0, Progress{}}}, true},
		"bounded, and the server is away": {ptr.To[int64](1), []report{{0, Progress{Hindered: "etcd is away", Overloaded: true}}}, false},
		"bounded to two a second":         {ptr.To[int64](2), []report{{0, Progress{}}, {40 * s, Progress{Done: 80}}}, false},
		"no bound":                        {ptr.To[int64](0), []report{{0, Progress{}}}, false},
		"one in three seconds":            {nil, []report{{0, Progress{Done: 1000}}, {30 * s, Progress{Done: 1010}}}, true},
		"too short to tell":               {nil, []report{{0, Progress{Done: 1000}}, {29 * s, Progress{Done: 1001}}}, false},
		"failures are progress":           {nil, []report{{0, Progress{}}, {30 * s, Progress{Failed: 40}}}, false},
		"nothing is done, without a word": {nil, []report{{0, Progress{Done: 10}}, {60 * s, Progress{Done: 10}}}, false},
		"slow later":                      {nil, []report{{0, Progress{}}, {30 * s, Progress{Done: 9000}}, {60 * s, Progress{Done: 9005}}}, true},
		"fast again":                      {nil, []report{{0, Progress{}}, {30 * s, Progress{Done: 5}}, {60 * s, Progress{Done: 500}}}, false},
		"fast before the window ends":     {nil, []report{{0, Progress{}}, {30 * s, Progress{Done: 5}}, {40 * s, Progress{Done: 500}}}, false},
		"slow, and all is done":           {nil, []report{{0, Progress{}}, {30 * s, Progress{Done: 5}}, {40 * s, Progress{Done: 6, Proving: true}}}, false},
		"slow since the server was away":  {nil, []report{{0, Progress{}}, {29 * s, Progress{Done: 1, Hindered: "etcd is away", Overloaded: true}}, {31 * s, Progress{Done: 2}}}, false},
		"begun again":                     {nil, []report{{0, Progress{Done: 500}}, {30 * s, Progress{Done: 0}}, {40 * s, Progress{Done: 9}}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			var measured marks
			got := false
			for _, r := range test.reports {
				now := time.Unix(1e9, 0).Add(r.at)
				measured = measured.next(now, r.p)
				got = hindered(now, r.p, test.bound, measured)
			}
			if got != test.want {
				t.Errorf("hindered: %t, want %t", got, test.want)
			}
		})
	}
}

// TestRate: the rate is that of the last ten seconds. It counts objects that were written, and those that had the target
// encoding already, which is faster.
func TestRate(t *testing.T) {
	for name, test := range map[string]struct {
		first, then int64 // objects per second in the first minute, and after it
		seconds     int   // seconds after the first minute
		want        float64
	}{
		"steady":                       {20, 20, 40, 20},
		"fast, then slow":              {3000, 20, 11, 20},
		"fast until a moment ago":      {3000, 20, 5, 1510},
		"slow, then fast":              {10, 300, 11, 300},
		"nothing is done for a moment": {90, 0, 3, 63},
		"nothing is done for long":     {90, 0, 40, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var p Progress
			now := time.Unix(1e9, 0)
			m := marks{{at: now}}
			for second := 1; second <= 60+test.seconds; second++ {
				now = now.Add(time.Second)
				if p.Done += test.then; second <= 60 {
					p.Done += test.first - test.then
				}
				m = m.next(now, p)
			}
			if got := m.rate(now, p); got < 0.99*test.want || got > 1.01*test.want {
				t.Errorf("%v objects/s, want %v", got, test.want)
			}
			if len(m) > 32 {
				t.Errorf("%d marks are kept", len(m))
			}
		})
	}
}
