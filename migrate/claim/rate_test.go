package claim

import (
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

// TestSlow: others may be done beside a migration that makes no progress for a reason of its own, or hardly any, by its
// user's will or as measured; not beside one that has to wait as they would.
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

// TestRate: the rate is of objects that were written in the last window, by the rewrite that is under way.
func TestRate(t *testing.T) {
	const s = time.Second
	// perSecond reports to m, in each second from one to another, so many objects more.
	at := func(second int) time.Time { return time.Unix(1e9, 0).Add(time.Duration(second) * s) }
	perSecond := func(m marks, p Progress, from, to int, written, found int64) (marks, Progress) {
		for second := from; second <= to; second++ {
			p.Done, p.Found = p.Done+written+found, p.Found+found
			m = m.next(at(second), p)
		}
		return m, p
	}
	for name, test := range map[string]struct {
		written, found int64 // per second in the first minute
		then           int64 // are written per second after it, for
		seconds        int
		want           float64
	}{
		"steady":                            {20, 0, 20, 40, 20},
		"fast, then slow":                   {3000, 0, 20, 40, 20},
		"slow, then fast":                   {10, 0, 300, 40, 300},
		"most were found":                   {0, 3000, 20, 9, 20 * 9. / 39},
		"many were found beside":            {20, 3000, 20, 9, 20},
		"all are found":                     {0, 3000, 0, 0, 3000},
		"nothing is written for some time":  {90, 0, 0, 10, 60},
		"nothing is written for a long one": {90, 0, 0, 40, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m, p := perSecond(marks{{at: at(0)}}, Progress{}, 1, 60, test.written, test.found)
			m, p = perSecond(m, p, 61, 60+test.seconds, test.then, 0)
			if got := m[0].rate(at(60+test.seconds), p); got < 0.89*test.want-1 || got > 1.11*test.want+1 {
				t.Errorf("%v objects/s, want %v", got, test.want)
			}
			if len(m) > 12 {
				t.Errorf("%d marks are kept", len(m))
			}
		})
	}
}
