package store

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/migrate/pace"
)

func TestCountEncodings(t *testing.T) {
	c := startEtcd(t)
	load(t, c, 700, numbered("/registry/example.com/widgets/default/"), func(i int) []byte { return widget(t, "v1", i) })
	load(t, c, 50, numbered("/registry/example.com/widgets/other/"), func(i int) []byte { return widget(t, "v2", i) })
	put(t, c, "/registry/example.com/widgets/sealed", []byte("k8s:enc:aescbc:v1:key1:\x00"))
	put(t, c, "/registry/example.com/widgets/damaged", []byte{0xff})
	put(t, c, "/registry/example.com/widgetsets/a", widget(t, "v3", 1))
	counts, err := CountEncodings(t.Context(), NewEtcd(c), "/registry/example.com/widgets/")
	must(t, err)
	want := map[string]int64{"example.com/v1": 700, "example.com/v2": 50, EncodingEncrypted + "aescbc:v1:key1": 1, EncodingUnknown: 1}
	if !maps.Equal(counts, want) {
		t.Errorf("got %v, want %v", counts, want)
	}
}

// The values left are those in another encoding, or sealed with another key, or not to be opened.
func TestCountLeft(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	sealed := func(by value.Transformer, version string) func(int) []byte {
		return func(i int) []byte {
			out, err := by.TransformToStorage(t.Context(), widget(t, version, i), value.DefaultContext(numbered(prefix)(i)))
			must(t, err)
			return out
		}
	}
	target := Target{GroupResource: policies, Encoding: "example.com/v2", Prefix: prefix, Transformer: sealing(t, "new", "old")}
	load(t, c, 700, numbered(prefix), sealed(target.Transformer, "v2"))
	put(t, c, "/registry/example.com/widgetsets/a", widget(t, "v1", 1))
	if left, err := CountLeft(t.Context(), NewEtcd(c), &target, Options{Patience: 100 * time.Millisecond}); err != nil || left.Values != 0 {
		t.Fatalf("of none: %+v, %v", left, err)
	}
	for i, wrong := range map[int]struct {
		value  []byte
		reason Reason
	}{
		699: {sealed(target.Transformer, "v1")(699), WrongEncoding},
		650: {sealed(sealing(t, "old"), "v2")(650), Undecryptable},
		300: {sealed(sealing(t, "other"), "v2")(300), Undecryptable},
		5:   {widget(t, "v2", 5), Undecryptable}, // not sealed at all
	} {
		key := numbered(prefix)(i)
		right := stored(t, c, prefix)[key].Value
		put(t, c, key, wrong.value)
		left, err := CountLeft(t.Context(), NewEtcd(c), &target, Options{Patience: 100 * time.Millisecond})
		if err != nil || left.Values != 1 || left.First.Key != key || left.First.Reason != wrong.reason {
			t.Errorf("%d: %+v, %v, want one that is %s", i, left, err, wrong.reason)
		}
		put(t, c, key, right)
	}
	load(t, c, 3, numbered(prefix), sealed(target.Transformer, "v1"))
	if left, err := CountLeft(t.Context(), NewEtcd(c), &target, Options{Patience: 100 * time.Millisecond}); err != nil || left.Values != 3 || left.First.Key != numbered(prefix)(0) {
		t.Errorf("of three: %+v, %v", left, err)
	}
}

// TestCountGivesWay: beside clients a census reads less at a time, and rests.
func TestCountGivesWay(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	load(t, c, 5*besideClients, numbered(prefix), func(i int) []byte { return widget(t, "v2", i) })
	target := Target{GroupResource: policies, Encoding: "example.com/v2", Prefix: prefix}
	for _, test := range []struct {
		bounds  pace.Bounds
		serving pace.Clients
		gives   bool
	}{
		{pace.Bounds{}, nil, false},
		{pace.Bounds{}, served(false), false},
		{pace.Bounds{}, served(true), true},
		{pace.Bounds{MaxAdded: time.Millisecond}, served(true), true},
		{pace.Bounds{Blind: true}, served(true), false},
	} {
		largest, timers := 0, &timers{}
		pacer, stop := pace.New(test.bounds, test.serving, clock.RealClock{})
		defer stop()
		left, err := CountLeft(t.Context(), ranged{NewEtcd(c), func(p Page) { largest = max(largest, len(p.Entries)) }}, &target, Options{Pacer: pacer, Clock: timers})
		if err != nil || left.Values != 0 {
			t.Fatalf("%+v, %v", left, err)
		}
		if test.gives != (largest <= besideClients) || test.gives != (timers.made > 0) {
			t.Errorf("%+v: up to %d keys at a time, %d rests", test, largest, timers.made)
		}
	}
}

// served are clients that are served, or not.
type served bool

// Watch implements pace.Clients.
func (s served) Watch() (look func() pace.Seen, stop func()) {
	return func() pace.Seen { return pace.Seen{Serving: bool(s)} }, func() {}
}

// timers counts the callers that wait.
type timers struct {
	clock.RealClock
	made int
}

// NewTimer implements clock.Clock.
func (t *timers) NewTimer(d time.Duration) clock.Timer {
	t.made++
	return t.RealClock.NewTimer(d)
}

// ranged tells every page that is read.
type ranged struct {
	Reader
	read func(Page)
}

// Range implements Reader.
func (r ranged) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	page, err := r.Reader.Range(ctx, start, end, limit, revision)
	r.read(page)
	return page, err
}

func TestWalkStops(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	load(t, c, 100, numbered(prefix), func(i int) []byte { return widget(t, "v1", i) })
	stop, visited := errors.New("stop"), 0
	err := Walk(t.Context(), NewEtcd(c), prefix, func(Entry) error {
		if visited++; visited == 20 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || visited != 20 {
		t.Errorf("got %v after %d", err, visited)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if counts, err := CountEncodings(ctx, NewEtcd(c), prefix); err == nil || len(counts) != 0 {
		t.Errorf("got %v, %v", counts, err)
	}
}
