package agree

import (
	"slices"
	"testing"
	"time"
)

// leases is a cluster whose identity Leases have a duration of 15 s, as Liveness observes it.
type leases struct {
	t        *testing.T
	liveness Liveness
	renewals map[ServerID]string
}

func newLeases(t *testing.T, servers ...ServerID) *leases {
	l := &leases{t: t, renewals: map[ServerID]string{}}
	l.pass(0, servers...)
	return l
}

// pass lets the time d go by and has Liveness observe the Leases once. The named servers have
// renewed their Leases, or created them, before.
func (l *leases) pass(d time.Duration, renewed ...ServerID) {
	for _, id := range renewed {
		l.renewals[id] += "+"
	}
	var beats []Beat
	for id, r := range l.renewals {
		beats = append(beats, Beat{Server: id, UID: "uid-" + string(id), Renewed: r, Duration: 15 * time.Second})
	}
	l.liveness.Observe(d, beats)
}

// seconds has Liveness observe once a second; the named servers renew their Leases in every fifth of
// the seconds.
func (l *leases) seconds(n int, alive ...ServerID) {
	for i := range n {
		if i%5 == 4 {
			l.pass(time.Second, alive...)
		} else {
			l.pass(time.Second)
		}
	}
}

func (l *leases) expect(why string, want ...ServerID) {
	l.t.Helper()
	var got []ServerID
	for _, b := range l.liveness.Expired() {
		got = append(got, b.Server)
	}
	if !slices.Equal(got, want) {
		l.t.Errorf("%s: expired %v, want %v", why, got, want)
	}
}

func TestLiveness(t *testing.T) {
	l := newLeases(t)
	l.pass(time.Hour, "a", "b")
	l.expect("the first sighting starts the count")
	l.pass(10*time.Second, "a")
	l.pass(5*time.Second, "a")
	l.expect("exactly the duration")
	l.pass(0, "a")
	l.expect("no time has passed")
	l.pass(time.Second, "a")
	l.expect("b was not renewed during its whole duration", "b")
	l.pass(time.Second, "a", "b")
	l.expect("b came back")
	l.liveness.Observe(16*time.Second, []Beat{{Server: "b", UID: "another", Renewed: l.renewals["b"], Duration: 15 * time.Second}})
	l.expect("another Lease of the same name starts anew, and a's is gone")
}

// TestLivenessForgets: the time in which a Lease was not renewed does not count across a gap in the
// observation.
func TestLivenessForgets(t *testing.T) {
	l := newLeases(t, "a", "b")
	l.seconds(14, "a")
	l.liveness.Forget()
	l.pass(0, "a")
	l.seconds(15, "a")
	l.expect("14 s and 15 s are no contiguous 16 s")
	l.seconds(1, "a")
	l.expect("a whole duration, observed anew", "b")
}

// TestLivenessWithoutPuts: while the API answers lists but nobody can renew a Lease, no server
// expires, and none directly after the outage either.
func TestLivenessWithoutPuts(t *testing.T) {
	for outage := range 120 {
		l := newLeases(t, "a", "b", "dead")
		l.seconds(5, "a") // b renewed its Lease 5 s ago, as usual
		for range outage {
			l.pass(time.Second)
			l.expect("nobody can renew")
		}
		l.pass(time.Second, "a") // the first renewal; b's follows with its next attempt
		l.expect("mended")
		l.seconds(2)
		l.expect("b is about to renew")
		l.pass(time.Second, "b")
		l.seconds(25, "a", "b")
		l.expect("only the dead are gone", "dead")
	}
	t.Run("repeatedly", func(t *testing.T) {
		l := newLeases(t, "a", "b")
		for range 5 {
			for range 11 {
				l.pass(time.Second)
			}
			l.pass(time.Second, "a")
		}
		l.expect("11 s without a put are an outage, each time")
	})
}

// TestLivenessLastServer: if only the observing server renews its Lease, all others expire.
func TestLivenessLastServer(t *testing.T) {
	for _, every := range []int{1, 5, 7} { // up to half of the duration
		l := newLeases(t, "self", "b", "c")
		passed := 0
		for len(l.liveness.Expired()) == 0 && passed < 60 {
			if passed++; passed%every == every-1 {
				l.pass(time.Second, "self")
			} else {
				l.pass(time.Second)
			}
		}
		l.expect("the others do not renew", "b", "c")
		if most := 16 + 16/every*max(every-5, 0); passed > most+1 {
			t.Errorf("renewed every %d s: expired after %d s, want %d", every, passed, most)
		}
	}
}

// TestLivenessMixedDurations: neither a Lease with a short duration nor one with a long one makes
// servers expire while no Lease can be renewed.
func TestLivenessMixedDurations(t *testing.T) {
	beat := func(server ServerID, renewed string, d time.Duration) Beat {
		return Beat{Server: server, UID: "uid", Renewed: renewed, Duration: d}
	}
	var l Liveness
	observe := func(n int, long string) {
		for range n {
			l.Observe(time.Second, []Beat{beat("long", long, time.Hour), beat("short", "1", 15*time.Second)})
		}
	}
	observe(2, "1")
	observe(600, "1")
	if got := l.Expired(); len(got) != 0 {
		t.Errorf("expired %v although only a Lease of an hour was ever put", got)
	}
	observe(1, "2")
	observe(60, "2")
	if got := l.Expired(); len(got) != 0 {
		t.Errorf("expired %v a minute after the last put", got)
	}
	for i := range 20 {
		observe(1, "later"+string(rune('a'+i)))
	}
	if got := l.Expired(); len(got) != 1 || got[0].Server != "short" {
		t.Errorf("expired %v, want the short one", got)
	}
}

// TestLivenessLongLast: a Lease with a duration of an hour is the last one that was renewed before
// an outage, and the first one after it. The other servers, with shorter durations, do not expire
// for that.
func TestLivenessLongLast(t *testing.T) {
	renewed := map[ServerID]string{}
	durations := map[ServerID]time.Duration{"long": time.Hour, "a": 15 * time.Second, "b": 15 * time.Second, "short": 4 * time.Second}
	var l Liveness
	second := func(put ...ServerID) {
		for _, id := range put {
			renewed[id] += "+"
		}
		var beats []Beat
		for id, r := range renewed {
			beats = append(beats, Beat{Server: id, UID: "uid", Renewed: r, Duration: durations[id]})
		}
		l.Observe(time.Second, beats)
	}
	second("long", "a", "b")
	for outage := range 5 {
		second("long")
		for range 60 {
			second()
		}
		if got := l.Expired(); len(got) != 0 {
			t.Fatalf("outage %d: expired %v, which could not be renewed", outage, got)
		}
	}
	// A dead server whose Lease has a short duration expires, and the servers that renew do not.
	second("a", "b", "short")
	for passed := 0; len(l.Expired()) == 0; passed++ {
		if passed > 120 {
			t.Fatal("a dead server is never buried")
		}
		second("a", "b")
		for range 4 {
			second()
		}
	}
	if got := l.Expired(); len(got) != 1 || got[0].Server != "short" {
		t.Errorf("expired %v, want the short one", got)
	}
}
