package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/migrate/pace"
	"github.com/concord-dev/concord/workers"
)

// TestCountLeft counts the values in another encoding, those encrypted with another key, and those that cannot be
// decrypted.
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
		5:   {widget(t, "v2", 5), Undecryptable}, // not encrypted
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

// TestCountGivesWay: while clients are served, a census reads smaller pages, with pauses between them.
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

// served says whether clients are being served.
type served bool

// Watch implements pace.Clients.
func (s served) Watch() (look func() pace.Seen, stop func()) {
	return func() pace.Seen { return pace.Seen{Serving: bool(s)} }, func() {}
}

// timers counts the timers that are made, one for each pause.
type timers struct {
	clock.RealClock
	made int
}

// NewTimer implements clock.Clock.
func (t *timers) NewTimer(d time.Duration) clock.Timer {
	t.made++
	return t.RealClock.NewTimer(d)
}

// ranged calls read with every page.
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

// visitingReader counts the keys that etcd goes through for each page. It has no streams.
type visitingReader struct {
	Reader
	visited, pages int64
}

// Range implements Reader.
func (r *visitingReader) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	page, err := r.Reader.Range(ctx, start, end, limit, revision)
	r.visited += page.Count
	r.pages++
	return page, err
}

// TestPagerAsksForShortRanges: with keys of any form, all are read once and in order, and the work of etcd grows with
// the number of keys, not with its square.
func TestPagerAsksForShortRanges(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	const n = 30_000
	for name, key := range map[string]func(i int) string{
		"numbered":   func(i int) string { return fmt.Sprintf("object-%d", i) },
		"padded":     func(i int) string { return fmt.Sprintf("a-name-that-many-begin-with-%08d", i) },
		"random":     func(int) string { return fmt.Sprintf("%016x", random.Uint64()) },
		"namespaced": func(i int) string { return fmt.Sprintf("team-%d/app-%x", i%300, random.Uint32()) },
		"nested":     func(i int) string { return fmt.Sprintf("%0*d", 1+i%200, 0) + fmt.Sprint(i) },
		"high bytes": func(i int) string { return fmt.Sprintf("\xff\xff%c\xff%d", rune('a'+i%3), i) },
	} {
		t.Run(name, func(t *testing.T) {
			c := startEtcd(t)
			prefix := widgetPrefix
			load(t, c, n, func(i int) string { return prefix + key(i) }, func(int) []byte { return []byte("small") })
			put(t, c, "/registry/example.com/widgetsets/a", []byte("another resource"))
			stored, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
			must(t, err)
			reader := &visitingReader{Reader: NewEtcd(c)}
			i := 0
			must(t, Walk(t.Context(), reader, prefix, func(e Entry) error {
				if want := string(stored.Kvs[i].Key); e.Key != want {
					t.Fatalf("key %d is %q, want %q", i, e.Key, want)
				}
				i++
				return nil
			}))
			if i != len(stored.Kvs) {
				t.Errorf("%d of %d keys were read", i, len(stored.Kvs))
			}
			t.Logf("%d keys visited in %d pages", reader.visited, reader.pages)
			if most := int64(20 * n); reader.visited > most {
				t.Errorf("%d keys were visited for %d, more than %d", reader.visited, n, most)
			}
			if most := int64(4 * n / 500); reader.pages > most {
				t.Errorf("%d pages for %d keys, more than %d", reader.pages, n, most)
			}
		})
	}
}

func TestRename(t *testing.T) {
	for _, test := range []struct{ name, value, want string }{
		{"plain", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"name":"w"}}`, `{"apiVersion":"e.com/v2","kind":"W","metadata":{"name":"w"}}`},
		{"spaces, order and numbers stay", " {\n\"metadata\" : {} , \"n\": 12345678901234567890, \"kind\":\"W\",\"apiVersion\"\t:\t\"e.com\\/v1\" }\n", " {\n\"metadata\" : {} , \"n\": 12345678901234567890, \"kind\":\"W\",\"apiVersion\"\t:\t\"e.com/v2\" }\n"},
		{"only the top level counts", `{"metadata":{"managedFields":[{"apiVersion":"e.com/v1"}]},"spec":{"apiVersion":"x"},"kind":"W","apiVersion":"e.com/v1"}`, `{"metadata":{"managedFields":[{"apiVersion":"e.com/v1"}]},"spec":{"apiVersion":"x"},"kind":"W","apiVersion":"e.com/v2"}`},
		{"twice", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"api\u0056ersion":"e.com/v1"}`, ""},
		{"two kinds", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"kind":[]}`, ""},
		{"no metadata", `{"apiVersion":"e.com/v1","kind":"W"}`, ""},
		{"metadata is no object", `{"apiVersion":"e.com/v1","kind":"W","metadata":null}`, ""},
		{"a field that is not stored", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"selfLink":"/x"}}`, ""},
		{"another one", `{"apiVersion":"e.com/v1","kind":"W","metadata":{"resourceVersion":"1"}}`, ""},
		{"a number that may be too large", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"spec":1e400}`, ""},
		{"damaged behind the envelope", `{"apiVersion":"e.com/v1","kind":"W","metadata":{},"spec":{"a":tru}}`, ""},
		{"cut off", `{"apiVersion":"e.com/v1","kind":"W","metadata":{}`, ""},
		{"more behind it", `{"apiVersion":"e.com/v1","kind":"W","metadata":{}}{}`, ""},
		{"no text", "{\"apiVersion\":\"e.com/v1\",\"kind\":\"W\",\"metadata\":{},\"spec\":\"\xff\"}", ""},
		{"a list", `[]`, ""},
		{"nothing", ``, ""},
	} {
		got, ok := Rename([]byte(test.value), "e.com/v2")
		if string(got) != test.want || ok != (test.want != "") {
			t.Errorf("%s: %q, %v", test.name, got, ok)
		}
	}
}

// TestShortcutIsVerified: a value that a shortcut or a codec returns is written only if its envelope has the target
// encoding.
func TestShortcutIsVerified(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	load(t, c, 3, numbered(prefix), func(i int) []byte { return widget(t, "v1", i) })
	before := stored(t, c, prefix)
	target := widgetTarget(t, c)
	for _, wrong := range []string{"", `{"apiVersion":"example.com/v3","kind":"Widget"}`, "no object"} {
		target.Codec = widgets(map[bool]string{true: "v1", false: "v2"}[wrong == ""])
		target.Shortcut = func([]byte, agree.Encoding) ([]byte, bool) { return []byte(wrong), wrong != "" }
		result := rewritten(t, NewEtcd(c), target, Options{}, nil)
		if result.Failures != 3 || result.Failed[0].Reason != WrongEncoding {
			t.Fatalf("got %+v", result)
		}
		requireUntouched(t, c, prefix, before)
	}
	target.Shortcut = func(_ []byte, from agree.Encoding) ([]byte, bool) {
		if from != "example.com/v1" {
			t.Errorf("from %q", from)
		}
		return nil, false
	}
	result := rewritten(t, NewEtcd(c), target, Options{}, nil)
	if result.Rewritten != 3 {
		t.Errorf("got %+v", result.Progress)
	}
}

// panicking is a codec with a bug.
type panicking struct{ machinery.Codec }

// Decode implements machinery.Codec.
func (panicking) Decode([]byte, *schema.GroupVersionKind, machinery.Object) (machinery.Object, *schema.GroupVersionKind, error) {
	panic("a bug")
}

// TestPanic: a panic makes the rewrite fail, not the process, and nothing is written.
func TestPanic(t *testing.T) {
	c, target, _ := oldPolicies(t, 50)
	before := stored(t, c, policyPrefix)
	target.Codec = panicking{target.Codec}
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{UnderWay: 4}, nil); !errors.Is(err, workers.ErrPanicked) {
		t.Fatalf("the rewrite ends with %v", err)
	}
	requireUntouched(t, c, policyPrefix, before)
}
