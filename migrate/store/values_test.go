package store

import (
	"bytes"
	"context"
	"crypto/aes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage/value"
	aestransformer "k8s.io/apiserver/pkg/storage/value/encrypt/aes"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
)

func TestValuesThatCannotBeRewrittenAreNamed(t *testing.T) {
	c, target, contents := oldPolicies(t, 300)
	codecs := newTyped(t)
	damaged := codecs.value(t, codecs.old, 1)
	bad := map[string]struct {
		value  []byte
		reason Reason
	}{
		"bad-empty":     {nil, Undecodable},
		"bad-object":    {[]byte("{}"), Undecodable},
		"bad-text":      {[]byte("no object"), Undecodable},
		"bad-truncated": {damaged[:len(damaged)/2], Undecodable},
		"bad-version":   {unknown("admissionregistration.k8s.io/v9", "MutatingAdmissionPolicy"), Undecodable},
		"bad-kind":      {unknown(string(oldEncoding), "Nonsense"), Undecodable},
		"bad-sealed":    {[]byte("k8s:enc:aescbc:v1:key1:\x00\x01"), Undecryptable},
	}
	for name, b := range bad {
		put(t, c, policyPrefix+name, b.value)
	}
	result := rewritten(t, NewEtcd(c), target, Options{}, nil)
	if result.Failures != int64(len(bad)) || result.Rewritten != 300 || len(result.Failed) != len(bad) {
		t.Fatalf("got %+v and %v", result.Progress, result.Failed)
	}
	for _, f := range result.Failed {
		if want := bad[strings.TrimPrefix(f.Key, policyPrefix)]; f.Reason != want.reason || f.Detail == "" {
			t.Errorf("%s: %s (%s), want %s", f.Key, f.Reason, f.Detail, want.reason)
		}
	}
	if !slices.IsSortedFunc(result.Failed, func(a, b Failure) int { return strings.Compare(a.Key, b.Key) }) {
		t.Errorf("failures are not sorted: %v", result.Failed)
	}
	for name, b := range bad {
		e := stored(t, c, policyPrefix)[policyPrefix+name]
		if !bytes.Equal(e.Value, b.value) {
			t.Errorf("%s was changed", name)
		}
		_, err := c.Delete(t.Context(), e.Key)
		must(t, err)
	}
	requireNew(t, c, contents)
}

func TestFailuresAreAllCountedAndSomeNamed(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	load(t, c, 250, numbered(policyPrefix), func(int) []byte { return []byte("no object") })
	var mu sync.Mutex
	told := map[string]Reason{}
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{MaxNamed: 7, Failed: func(f Failure) {
		mu.Lock()
		defer mu.Unlock()
		told[f.Key] = f.Reason
	}}, nil)
	must(t, err)
	if result.Failures != 250 || len(result.Failed) != 7 {
		t.Fatalf("%d counted, %d named", result.Failures, len(result.Failed))
	}
	for i := range 250 {
		if key := numbered(policyPrefix)(i); told[key] != Undecodable {
			t.Fatalf("%s is told to be %q, and %d keys are told", key, told[key], len(told))
		}
	}
}

func TestLeasesAreKept(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	codecs := newTyped(t)
	lease, err := c.Grant(t.Context(), 3600)
	must(t, err)
	gone, err := c.Grant(t.Context(), 3600)
	must(t, err)
	for i := range 150 {
		id := lease.ID
		if i%50 == 7 {
			id = gone.ID
		}
		put(t, c, numbered(policyPrefix)(i), codecs.value(t, codecs.old, i), clientv3.WithLease(id))
	}
	revoked := false
	kv := hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error {
		if !revoked {
			revoked = true
			_, err := c.Revoke(t.Context(), gone.ID)
			return err
		}
		return nil
	}}
	result := rewritten(t, kv, target, Options{UnderWay: 1, PageKeys: 100}, nil)
	all := stored(t, c, policyPrefix)
	if len(all) != 147 || result.Rewritten != 147 {
		t.Fatalf("%d objects, %+v", len(all), result.Progress)
	}
	for key, e := range all {
		if encoding, _, _ := Envelope(e.Value); encoding != newEncoding || e.Lease != int64(lease.ID) {
			t.Fatalf("%s is %q and has lease %d", key, encoding, e.Lease)
		}
	}
	_, err = c.Revoke(t.Context(), lease.ID)
	must(t, err)
	if all := stored(t, c, policyPrefix); len(all) != 0 {
		t.Fatalf("%d objects outlived their lease", len(all))
	}
}

// scripted is a KV that returns errors for the puts of some keys.
type scripted struct {
	KV
	errs map[string]error
	// before is called before a put that will fail.
	before func(Put)
}

func (s scripted) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	if err := s.errs[put.Key]; err != nil {
		s.before(put)
		return false, 0, fmt.Errorf("scripted: %w", err)
	}
	return s.KV.Put(ctx, fence, put)
}

// TestOneBadPutStopsNoOther: if etcd refuses some values, all others are rewritten.
func TestOneBadPutStopsNoOther(t *testing.T) {
	c, target, _ := oldPolicies(t, 200)
	key := numbered(policyPrefix)
	codecs := newTyped(t)
	kv := scripted{KV: NewEtcd(c), errs: map[string]error{key(20): ErrTooLarge, key(120): ErrLeaseLost, key(150): ErrLeaseLost, key(199): ErrLeaseLost}}
	kv.before = func(p Put) {
		switch p.Key {
		case key(150): // the object is deleted together with its etcd lease
			_, err := c.Delete(t.Context(), key(150))
			must(t, err)
		case key(199): // a client has written it with another lease
			put(t, c, key(199), codecs.value(t, codecs.new, 7))
		}
	}
	result := rewritten(t, kv, target, Options{}, nil)
	want := []Failure{{Key: key(20), Reason: TooLarge}, {Key: key(120), Reason: LeaseLost}}
	if len(result.Failed) != 2 || result.Gone != 1 || result.Changed != 1 || result.Rewritten != 196 || result.AlreadyCurrent != 1 {
		t.Fatalf("got %+v %v", result.Progress, result.Failed)
	}
	for i, f := range result.Failed {
		if f.Key != want[i].Key || f.Reason != want[i].Reason {
			t.Errorf("got %v, want %v", f, want[i])
		}
	}
}

func TestEtcdsRefusalsAreRecognised(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	kv, fence := NewEtcd(c), Fence{Key: target.FenceKey, Revision: target.FenceRevision}
	revision := put(t, c, "/k", nil)
	for name, test := range map[string]struct {
		put  Put
		want error
	}{
		"etcd's limit on requests": {Put{Value: make([]byte, 1700<<10)}, ErrTooLarge},
		"etcd's limit on messages": {Put{Value: make([]byte, 3<<20)}, ErrTooLarge},
		"lease":                    {Put{Lease: 4711}, ErrLeaseLost},
	} {
		test.put.Key, test.put.ModRevision = "/k", revision
		if _, _, err := kv.Put(t.Context(), fence, test.put); !errors.Is(err, test.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// widgetOf returns a widget in v1 whose spec has this size in bytes.
func widgetOf(i, size int) []byte {
	return fmt.Appendf(nil, `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"w%d"},"spec":%q}`, i, strings.Repeat("x", size))
}

// holding is a KV that counts the large values that were read and not written yet, and their maximal
// number.
type holding struct {
	hooked
	mu        sync.Mutex
	now, most int
	sizeFrom  int
}

func (h *holding) add(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now += n
	h.most = max(h.most, h.now)
}

func (h *holding) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	page, err := h.hooked.Range(ctx, start, end, limit, revision)
	for _, e := range page.Entries {
		if len(e.Value) >= h.sizeFrom {
			h.add(1)
		}
	}
	return page, err
}

func (h *holding) Put(ctx context.Context, fence Fence, put Put) (bool, int64, error) {
	written, revision, err := h.hooked.Put(ctx, fence, put)
	if len(put.Value) >= h.sizeFrom {
		h.add(-1)
	}
	return written, revision, err
}

// TestGrownMeanwhile: clients replace small objects by large ones before these are rewritten. Each
// piece then holds only one of the large objects in memory at a time, however many there are.
func TestGrownMeanwhile(t *testing.T) {
	c := startEtcd(t)
	prefix := widgetPrefix
	const objects, large = 60, 1 << 20
	for i := range objects {
		put(t, c, numbered(prefix)(i), widgetOf(i, 10))
	}
	target := widgetTarget(t, c)
	grow := sync.OnceFunc(func() {
		for i := range objects {
			put(t, c, numbered(prefix)(i), widgetOf(i, large))
		}
	})
	kv := &holding{hooked: hooked{KV: NewEtcd(c), beforePut: func(Fence, Put) error { grow(); return nil }}, sizeFrom: large}
	options := Options{PieceKeys: 20}.withDefaults()
	result := rewritten(t, kv, target, options, nil)
	if result.Rewritten != objects || result.Changed != objects || result.Failures > 0 {
		t.Errorf("%+v", result.Progress)
	}
	if most := min(options.pieces(), objects/options.PieceKeys); kv.most > most || kv.most == 0 {
		t.Errorf("%d large values were in memory, want %d at most", kv.most, most)
	}
	if result.PeakBytes < 2*large {
		t.Errorf("the run says that it held %d bytes", result.PeakBytes)
	}
}

func TestNextLimit(t *testing.T) {
	for _, test := range []struct{ limit, average, want int }{
		{16, 1000, 32},           // grows by doubling
		{400, 1000, 500},         // up to the most keys
		{500, 10_000, 200},       // that fit
		{16, 100_000_000, 1},     // and at least one
		{1, 1000, 2},             // and grows again
		{500, 0, 500},            // empty values
		{500, 1_000_000, 2},      // large values
		{2, 1_000_000_000_00, 1}, // absurd ones
	} {
		if got := nextLimit(test.limit, test.average, 500, 2_000_000); got != test.want {
			t.Errorf("after %d of %d bytes: got %d, want %d", test.limit, test.average, got, test.want)
		}
	}
}

// sealing returns a transformer that encrypts with the first key and decrypts with all.
func sealing(t *testing.T, keys ...string) value.Transformer {
	t.Helper()
	var all []value.PrefixTransformer
	for _, key := range keys {
		block, err := aes.NewCipher([]byte(strings.Repeat(key, 16)[:16]))
		must(t, err)
		all = append(all, value.PrefixTransformer{Prefix: []byte("k8s:enc:aescbc:v1:" + key + ":"), Transformer: aestransformer.NewCBCTransformer(block)})
	}
	all = append(all, value.PrefixTransformer{Transformer: identity.NewEncryptCheckTransformer()})
	return value.NewPrefixTransformers(nil, all...)
}

func TestStaleEncryptionIsRenewed(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	target.Transformer = sealing(t, "new", "old")
	codecs := newTyped(t)
	future := append(codecs.value(t, codecs.new, 1), 0xfa, 0x3e, 0x01, 'x') // a field that this release does not know
	plain := map[string][]byte{
		"current":      codecs.value(t, codecs.new, 1),
		"stale":        future,
		"stale-old":    codecs.value(t, codecs.old, 2),
		"current-old":  codecs.value(t, codecs.old, 3),
		"unencrypted":  codecs.value(t, codecs.new, 4),
		"lost-its-key": codecs.value(t, codecs.new, 6),
	}
	for name, p := range plain {
		key, sealer := policyPrefix+name, sealing(t, "old")
		switch name {
		case "current", "current-old":
			sealer = sealing(t, "new")
		case "unencrypted":
			sealer = identity.NewEncryptCheckTransformer()
		case "lost-its-key":
			sealer = sealing(t, "other")
		}
		sealed, err := sealer.TransformToStorage(t.Context(), p, value.DefaultContext(key))
		must(t, err)
		put(t, c, key, sealed)
	}
	before := stored(t, c, policyPrefix)
	result := rewritten(t, NewEtcd(c), target, Options{}, nil)
	if result.Rewritten != 4 || result.AlreadyCurrent != 1 || result.Failures != 1 || result.Failed[0].Reason != Undecryptable {
		t.Fatalf("got %+v %v", result.Progress, result.Failed)
	}
	for key, e := range stored(t, c, policyPrefix) {
		name := strings.TrimPrefix(key, policyPrefix)
		if name == "current" || name == "lost-its-key" {
			if e.ModRevision != before[key].ModRevision {
				t.Errorf("%s was written", key)
			}
			continue
		}
		if by, _ := Encryption(e.Value); by != "aescbc:v1:new" {
			t.Errorf("%s is sealed by %q", key, by)
		}
		opened, stale, err := target.Transformer.TransformFromStorage(t.Context(), e.Value, value.DefaultContext(key))
		must(t, err)
		if encoding, _, _ := Envelope(opened); stale || encoding != newEncoding {
			t.Errorf("%s is stale (%v) or %q", key, stale, encoding)
		}
		if name == "stale" && !bytes.Equal(opened, future) {
			t.Error("a plaintext in the current encoding was changed")
		}
	}
}

// away is a Transformer that returns ErrKeysUnavailable for its first calls.
type away struct {
	value.Transformer
	left *atomic.Int64
}

func (a away) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if a.left.Add(-1) >= 0 {
		return nil, false, fmt.Errorf("%w: no connection", ErrKeysUnavailable)
	}
	return a.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

func (a away) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	if a.left.Add(-1) >= 0 {
		return nil, fmt.Errorf("%w: no connection", ErrKeysUnavailable)
	}
	return a.Transformer.TransformToStorage(ctx, data, dataCtx)
}

// TestKeysAway: no value fails while the encryption provider does not answer. The run waits for it,
// or ends after its patience; the count afterwards does the same.
func TestKeysAway(t *testing.T) {
	c := startEtcd(t)
	target := policyTarget(t, c)
	var left atomic.Int64
	target.Transformer = away{sealing(t, "new", "old"), &left}
	codecs := newTyped(t)
	for i := range 50 {
		key := numbered(policyPrefix)(i)
		sealed, err := sealing(t, "old").TransformToStorage(t.Context(), codecs.value(t, codecs.old, i), value.DefaultContext(key))
		must(t, err)
		put(t, c, key, sealed)
	}
	const forEver = 1 << 40
	left.Store(forEver)
	result, err := New(NewEtcd(c)).Run(t.Context(), target, Options{Patience: 100 * time.Millisecond}, nil)
	if !errors.Is(err, ErrKeysUnavailable) || result.Failures > 0 || result.Rewritten > 0 {
		t.Errorf("%v, %+v", err, result.Progress)
	}
	if counted, err := CountLeft(t.Context(), NewEtcd(c), &target, Options{Patience: 100 * time.Millisecond}); !errors.Is(err, ErrKeysUnavailable) || counted.Values > 0 {
		t.Errorf("%v, %+v", err, counted)
	}
	left.Store(20)
	// All values still have the old key; the error of the provider is not counted for any of them.
	if counted, err := CountLeft(t.Context(), NewEtcd(c), &target, Options{Patience: time.Minute}); err != nil || counted.Values != 50 || left.Load() >= 0 {
		t.Errorf("%v, %+v", err, counted)
	}
	left.Store(20)
	result = rewritten(t, NewEtcd(c), target, Options{UnderWay: 2, PageKeys: 20, PieceKeys: 5}, nil)
	if result.Rewritten != 50 || left.Load() >= 0 {
		t.Errorf("%+v", result.Progress)
	}
}

// TestTheStorageVersionItself rewrites the StorageVersions, one of which is the fence.
func TestTheStorageVersionItself(t *testing.T) {
	c := startEtcd(t)
	prefix := "/registry/storageversions/"
	sealer := sealing(t, "old")
	seal := func(key string, n int) []byte {
		out, err := sealer.TransformToStorage(t.Context(), widget(t, "v2", n), value.DefaultContext(key))
		must(t, err)
		return out
	}
	for i := range 40 {
		put(t, c, numbered(prefix)(i), seal(numbered(prefix)(i), i))
	}
	fence := numbered(prefix)(3)
	target := Target{
		GroupResource: policies, Encoding: "example.com/v2", Prefix: prefix, Codec: widgets("v2"), New: newWidget, Transformer: sealing(t, "new", "old"),
		FenceKey: fence, FenceRevision: put(t, c, fence, seal(fence, 3)),
	}
	result := rewritten(t, NewEtcd(c), target, Options{PageKeys: 10, PieceKeys: 5}, nil)
	if result.Rewritten != 40 {
		t.Fatalf("got %+v", result.Progress)
	}
	all := stored(t, c, prefix)
	for key, e := range all {
		if by, _ := Encryption(e.Value); by != "aescbc:v1:new" {
			t.Errorf("%s is sealed by %q", key, by)
		}
		if key != fence && e.ModRevision > all[fence].ModRevision {
			t.Errorf("%s was written after the fence", key)
		}
	}
}

func TestDetailsAreShort(t *testing.T) {
	f := newFailure("k", Undecodable, machinery.NewMissingKindErr(strings.Repeat("é", 1000)))
	if len(f.Detail) > maxDetail+len("…") || !strings.HasSuffix(f.Detail, "…") || strings.ContainsRune(f.Detail, '\uFFFD') {
		t.Fatalf("got %d bytes: %s", len(f.Detail), f.Detail)
	}
}
