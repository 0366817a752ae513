package store

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// visitingReader adds up the keys that etcd visits. It has no streams.
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

// Whatever the keys look like, all are read once and in order, and the work for etcd grows
// with the keys and not with their square.
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
