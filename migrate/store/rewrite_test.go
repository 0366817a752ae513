package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	policyPrefix = "/registry/mutatingadmissionpolicies/"
	policyFence  = "/registry/storageversions/admissionregistration.k8s.io.mutatingadmissionpolicies"
)

// policyTarget returns the rewrite of a built-in resource to its new encoding. It also writes the key of
// the StorageVersion.
func policyTarget(tb testing.TB, c *clientv3.Client) Target {
	tb.Helper()
	return Target{
		GroupResource: policies,
		Encoding:      newEncoding,
		Prefix:        policyPrefix,
		FenceKey:      policyFence,
		FenceRevision: put(tb, c, policyFence, []byte("a StorageVersion")),
		Codec:         newTyped(tb).new,
		New:           newPolicy,
	}
}

const widgetPrefix = "/registry/example.com/widgets/"

// widgetTarget returns the rewrite of a custom resource to v2.
func widgetTarget(tb testing.TB, c *clientv3.Client) Target {
	tb.Helper()
	return Target{
		GroupResource: policies, Encoding: "example.com/v2", Prefix: widgetPrefix,
		FenceKey: policyFence, FenceRevision: put(tb, c, policyFence, nil), Codec: widgets("v2"), New: newWidget,
	}
}

// loadOld stores n objects in the old encoding and returns their contents by key.
func loadOld(tb testing.TB, c *clientv3.Client, n int) map[string]string {
	tb.Helper()
	codecs := newTyped(tb)
	contents := map[string]string{}
	key := numbered(policyPrefix)
	load(tb, c, n, key, func(i int) []byte {
		value := codecs.value(tb, codecs.old, i)
		contents[key(i)] = codecs.content(tb, value)
		return value
	})
	return contents
}

// oldPolicies returns an etcd with n objects in the old encoding, their rewrite, and their contents by key.
func oldPolicies(tb testing.TB, n int) (*clientv3.Client, Target, map[string]string) {
	tb.Helper()
	c := startEtcd(tb)
	target := policyTarget(tb, c)
	return c, target, loadOld(tb, c, n)
}

// rewritten runs a rewrite that must succeed and whose counts must add up.
func rewritten(tb testing.TB, kv KV, target Target, options Options, report func(Report)) Result {
	tb.Helper()
	result, err := New(kv).Run(tb.Context(), target, options, report)
	must(tb, err)
	requireSum(tb, result)
	return result
}

// requireUntouched asserts that nothing under a prefix was written since.
func requireUntouched(tb testing.TB, c *clientv3.Client, prefix string, before map[string]Entry) {
	tb.Helper()
	for key, e := range stored(tb, c, prefix) {
		if e.ModRevision != before[key].ModRevision {
			tb.Errorf("%s was written", key)
		}
	}
}

// requireNew asserts that exactly these objects are stored, in the new encoding.
func requireNew(tb testing.TB, c *clientv3.Client, contents map[string]string) {
	tb.Helper()
	codecs := newTyped(tb)
	all := stored(tb, c, policyPrefix)
	if len(all) != len(contents) {
		tb.Errorf("%d objects are stored, want %d", len(all), len(contents))
	}
	for key, e := range all {
		if encoding, _, ok := Envelope(e.Value); !ok || encoding != newEncoding {
			tb.Fatalf("%s is stored as %q", key, encoding)
		}
		if got := codecs.content(tb, e.Value); got != contents[key] {
			tb.Fatalf("the content of %s changed", key)
		}
	}
}

func requireSum(tb testing.TB, r Result) {
	tb.Helper()
	if r.Total != r.Rewritten+r.AlreadyCurrent+r.Gone+r.Failures {
		tb.Fatalf("Total is not the sum of its parts: %+v", r.Progress)
	}
}

func TestRewritesEveryOldValueAndNoOther(t *testing.T) {
	for _, underWay := range []int{1, DefaultUnderWay} {
		t.Run(fmt.Sprintf("%d under way", underWay), func(t *testing.T) {
			c, target, contents := oldPolicies(t, 1000)
			codecs := newTyped(t)
			for i := 1000; i < 1200; i++ {
				key, value := numbered(policyPrefix)(i), codecs.value(t, codecs.new, i)
				put(t, c, key, value)
				contents[key] = codecs.content(t, value)
			}
			put(t, c, "/registry/mutatingadmissionpoliciesx/other", []byte("not ours"))
			before := stored(t, c, "/registry/")

			// Progress is told by one call at a time, and its counts only grow.
			var calls atomic.Int32
			options, reports := Options{UnderWay: underWay}, []Progress(nil)
			if underWay > 1 {
				options.PageKeys = 50
			}
			result := rewritten(t, NewEtcd(c), target, options, func(r Report) {
				if calls.Add(1) > 1 {
					t.Error("two calls at a time")
				}
				if n := len(reports); n > 0 && (r.Rewritten < reports[n-1].Rewritten || r.Total < reports[n-1].Total || r.Bytes < reports[n-1].Bytes) {
					t.Errorf("%+v after %+v", r.Progress, reports[n-1])
				}
				reports = append(reports, r.Progress)
				calls.Add(-1)
			})

			if result.Total != 1200 || result.Expected != 1200 || result.Rewritten != 1000 || result.AlreadyCurrent != 200 {
				t.Fatalf("got %+v", result.Progress)
			}
			if len(reports) < 3 || reports[len(reports)-1] != result.Progress {
				t.Fatalf("%d reports of progress, the last is %+v", len(reports), reports[len(reports)-1])
			}
			requireNew(t, c, contents)
			for key, e := range stored(t, c, "/registry/") {
				encoding, _, _ := Envelope(before[key].Value)
				if untouched := e.ModRevision == before[key].ModRevision; untouched == (encoding == oldEncoding) {
					t.Fatalf("%s, which was %q, is at revision %d after %d", key, encoding, e.ModRevision, before[key].ModRevision)
				}
			}

			again := rewritten(t, NewEtcd(c), target, Options{UnderWay: underWay}, nil)
			if again.AlreadyCurrent != 1200 || again.Rewritten != 0 {
				t.Fatalf("the second run did %+v", again.Progress)
			}
		})
	}
}

// TestOddObjects rewrites an object with metadata that must not be stored, and one that looks like a list.
func TestOddObjects(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	put(t, c, prefix+"a", []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","resourceVersion":"7","selfLink":"/x"}}`))
	put(t, c, prefix+"b", []byte(`{"apiVersion":"example.com/v1","items":[{"n":1}],"kind":"Widget","metadata":{"name":"b"}}`))
	target := widgetTarget(t, c)
	rewritten(t, NewEtcd(c), target, Options{}, nil)
	for name, want := range map[string]string{
		"a": `{"apiVersion":"example.com/v2","kind":"Widget","metadata":{"name":"a"}}`,
		"b": `{"apiVersion":"example.com/v2","items":[{"n":1}],"kind":"Widget","metadata":{"name":"b"}}`,
	} {
		if got := string(stored(t, c, prefix)[prefix+name].Value); got != want+"\n" {
			t.Errorf("stored %s", got)
		}
	}
}

// TestConcurrentWritesStand: changes and deletions of objects just before the transactions that would
// rewrite them are kept.
func TestConcurrentWritesStand(t *testing.T) {
	c, target, contents := oldPolicies(t, 1000)
	codecs := newTyped(t)
	var changed, deleted int
	random := rand.New(rand.NewSource(1))
	seen := map[string]bool{}
	kv := hooked{KV: NewEtcd(c), beforePut: func(_ Fence, p Put) error {
		if seen[p.Key] {
			return nil
		}
		seen[p.Key] = true
		switch random.Intn(10) {
		case 0: // in the old encoding, so it has to be rewritten again
			value := codecs.value(t, codecs.old, 100000+changed)
			put(t, c, p.Key, value)
			contents[p.Key] = codecs.content(t, value)
			changed++
		case 1:
			value := codecs.value(t, codecs.new, 100000+changed)
			put(t, c, p.Key, value)
			contents[p.Key] = codecs.content(t, value)
			changed++
		case 2:
			_, err := c.Delete(t.Context(), p.Key)
			must(t, err)
			delete(contents, p.Key)
			deleted++
		}
		return nil
	}}
	result := rewritten(t, kv, target, Options{UnderWay: 1}, nil)
	if changed == 0 || deleted == 0 || result.Changed != int64(changed) || result.Gone != int64(deleted) {
		t.Fatalf("%d changes and %d deletions were made, the run says %+v", changed, deleted, result.Progress)
	}
	requireNew(t, c, contents)
}

func TestMovedFenceStopsTheRun(t *testing.T) {
	for _, underWay := range []int{1, DefaultUnderWay} {
		t.Run(fmt.Sprintf("%d under way", underWay), func(t *testing.T) {
			c, target, _ := oldPolicies(t, 1000)
			var mu sync.Mutex
			puts, movedAt := 0, int64(0)
			kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error {
				mu.Lock()
				defer mu.Unlock()
				if puts++; puts == 300 {
					movedAt = put(t, c, policyFence, []byte("an old server joined"))
				}
				return nil
			}}
			result, err := New(kv).Run(t.Context(), target, Options{UnderWay: underWay}, nil)
			if !errors.Is(err, ErrFenced) {
				t.Fatalf("got %v", err)
			}
			old := 0
			for key, e := range stored(t, c, policyPrefix) {
				if e.ModRevision > movedAt {
					t.Fatalf("%s was written at %d, the fence moved at %d", key, e.ModRevision, movedAt)
				}
				if encoding, _, _ := Envelope(e.Value); encoding == oldEncoding {
					old++
				}
			}
			// Writes that were under way when the first one failed are not counted.
			if old == 0 || old == 1000 || result.Rewritten > int64(1000-old) || result.Rewritten < int64(1000-old-underWay) {
				t.Fatalf("%d objects are still old; %+v", old, result.Progress)
			}
			// The moved fence is found also if there is nothing to write.
			_, err = c.Delete(t.Context(), policyPrefix, clientv3.WithPrefix())
			must(t, err)
			if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil); !errors.Is(err, ErrFenced) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestRefenceGoesOnWhenPermissionStands(t *testing.T) {
	c, target, contents := oldPolicies(t, 1000)
	var mu sync.Mutex
	commits, asked, moved := 0, 0, int64(0)
	target.Refence = func(context.Context) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return moved, nil
	}
	kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error {
		mu.Lock()
		defer mu.Unlock()
		if commits++; commits == 3 || commits == 9 {
			moved = put(t, c, policyFence, []byte("another server joined"))
		}
		return nil
	}}
	result := rewritten(t, kv, target, Options{UnderWay: 4}, nil)
	if result.Rewritten != 1000 || asked == 0 || asked > 4 {
		t.Fatalf("asked %d times, %+v", asked, result.Progress)
	}
	requireNew(t, c, contents)

	gone := errors.New("another epoch")
	target.FenceRevision = 1
	target.Refence = func(context.Context) (int64, error) { return 0, fmt.Errorf("%w: %w", ErrFenced, gone) }
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil); !errors.Is(err, ErrFenced) || !errors.Is(err, gone) {
		t.Fatalf("got %v", err)
	}
	// Refence fails for a while, and later for ever.
	target.Refence = func(context.Context) (int64, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; asked < 5 {
			return 0, errors.New("the server has no leader")
		}
		return moved, nil
	}
	asked, moved = 0, put(t, c, policyFence, []byte("another server left"))
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil); err != nil || asked != 5 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
	asked = -1 << 30
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{Patience: 100 * time.Millisecond}, nil); err == nil || errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "no leader") {
		t.Fatalf("got %v", err)
	}
	target.Refence = func(context.Context) (int64, error) { return 1, nil }
	if _, err := New(NewEtcd(c)).Run(t.Context(), target, Options{}, nil); !errors.Is(err, ErrFenced) {
		t.Fatalf("a fence that is said not to have moved: got %v", err)
	}
}

func TestCompactionIsSurvived(t *testing.T) {
	c, target, contents := oldPolicies(t, 1000)
	compactions := 0
	kv := hooked{KV: NewEtcd(c), beforeRange: func(_ string, revision int64) error {
		if revision == 0 {
			return nil // the first page of the run, or the first after a compaction
		}
		newest := put(t, c, "/elsewhere", nil)
		if _, err := c.Compact(t.Context(), newest); err == nil {
			compactions++
		}
		return nil
	}}
	result := rewritten(t, kv, target, Options{UnderWay: 1, PageKeys: 100}, nil)
	if compactions < 5 || result.Total != 1000 {
		t.Fatalf("%d compactions, %+v", compactions, result.Progress)
	}
	requireNew(t, c, contents)
}

// TestStoreErrorEndsTheRun: an error of the store, or the end of the context, ends the run; the next run
// does the rest.
func TestStoreErrorEndsTheRun(t *testing.T) {
	c, target, contents := oldPolicies(t, 1500)
	broken := errors.New("connection lost")
	for _, underWay := range []int{1, DefaultUnderWay} {
		ctx, cancel := context.WithCancel(t.Context())
		kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error { cancel(); return nil }}
		if _, err := New(kv).Run(ctx, target, Options{UnderWay: underWay}, nil); !errors.Is(err, context.Canceled) {
			t.Fatalf("given up: got %v", err)
		}
		var ranges, commits atomic.Int64
		for name, kv := range map[string]hooked{
			"range": {KV: NewEtcd(c), beforeRange: func(string, int64) error {
				if ranges.Add(1) == 2 {
					return broken
				}
				return nil
			}},
			"commit": {KV: NewEtcd(c), beforePut: func(Fence, Put) error {
				if commits.Add(1) == 2 {
					return broken
				}
				return nil
			}},
		} {
			if _, err := New(kv).Run(t.Context(), target, Options{UnderWay: underWay}, nil); !errors.Is(err, broken) {
				t.Fatalf("%s, %d under way: got %v", name, underWay, err)
			}
		}
	}
	rewritten(t, NewEtcd(c), target, Options{}, nil)
	requireNew(t, c, contents)
}

func TestTargetsAreChecked(t *testing.T) {
	good := Target{GroupResource: policies, Encoding: newEncoding, Prefix: policyPrefix, FenceKey: policyFence, FenceRevision: 1, Codec: newTyped(t).new, New: newPolicy}
	must(t, good.Validate())
	for name, spoil := range map[string]func(*Target){
		"no resource":            func(t *Target) { t.GroupResource.Resource = "" },
		"no encoding":            func(t *Target) { t.Encoding = "" },
		"prefix without a slash": func(t *Target) { t.Prefix = "/registry/mutatingadmissionpolicies" },
		"everything":             func(t *Target) { t.Prefix = "/" },
		"no fence":               func(t *Target) { t.FenceKey = "" },
		"no fence revision":      func(t *Target) { t.FenceRevision = 0 },
		"no codec":               func(t *Target) { t.Codec = nil },
		"no new object":          func(t *Target) { t.New = nil },
	} {
		bad := good
		spoil(&bad)
		if _, err := New(nil).Run(t.Context(), bad, Options{}, nil); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := New(nil).Run(t.Context(), good, Options{Resume: Cursor{After: "/registry/pods/p"}}, nil); err == nil || !strings.Contains(err.Error(), "cannot go on behind") {
		t.Errorf("behind a place outside of the range: %v", err)
	}
}

// TestSeveralAtATime: the maximal number of transactions is under way at once, while pages are read. None
// of the transactions is answered before that was seen.
func TestSeveralAtATime(t *testing.T) {
	c, target, contents := oldPolicies(t, 2500)
	const pages = 3
	options := Options{PageKeys: 300}.withDefaults()
	if cpus := runtime.GOMAXPROCS(0); options.pieces() < cpus || cpus > 1 && options.pieces() < 2 {
		t.Fatalf("%d pieces at a time on %d CPUs", options.pieces(), cpus)
	}
	most := min(DefaultUnderWay, options.pieces()*options.PieceKeys)
	var mu sync.Mutex
	read, under := 0, 0
	together := make(chan struct{})
	note := func(n *int) {
		mu.Lock()
		defer mu.Unlock()
		if *n++; read >= pages && under == most {
			select {
			case <-together:
			default:
				close(together)
			}
		}
	}
	kv := hooked{KV: NewEtcd(c),
		beforeRange: func(start string, _ int64) error {
			if strings.HasPrefix(start, policyPrefix) {
				note(&read)
			}
			return nil
		},
		beforePut: func(Fence, Put) error {
			note(&under)
			select {
			case <-together:
				return nil
			case <-time.After(time.Minute):
				return errors.New("they come one after the other")
			}
		},
	}
	rewritten(t, kv, target, options, nil)
	requireNew(t, c, contents)
}
