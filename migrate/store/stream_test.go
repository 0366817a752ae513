package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// asked counts how often a range is read as pages and as streams, and calls a hook before each stream.
type asked struct {
	*Etcd
	ranges, streams int
	beforeStream    func()
}

func (a *asked) Range(ctx context.Context, start, end string, limit, revision int64) (Page, error) {
	a.ranges++
	return a.Etcd.Range(ctx, start, end, limit, revision)
}

func (a *asked) stream(ctx context.Context, start, end string, revision int64) (*stream, error) {
	if a.streams++; a.beforeStream != nil {
		a.beforeStream()
	}
	return a.Etcd.stream(ctx, start, end, revision)
}

const streamed = 10_000

func loadStreamed(t *testing.T, c *clientv3.Client, value func(int) []byte) (prefix string, key func(int) string) {
	prefix = "/registry/things/"
	load(t, c, streamed, numbered(prefix), value)
	put(t, c, "/registry/thingsets/a", []byte("another resource"))
	return prefix, numbered(prefix)
}

func kibibyte(i int) []byte { return fmt.Appendf(nil, "%01024d", i) }

// requireWalked walks a prefix, and asserts that every key is visited once and in order. If visit is not nil, it
// is called with the number of keys visited before.
func requireWalked(t *testing.T, reader Reader, prefix string, key func(int) string, visit func(n int, e Entry)) {
	t.Helper()
	n := 0
	must(t, Walk(t.Context(), reader, prefix, func(e Entry) error {
		if e.Key != key(n) {
			t.Fatalf("key %d is %s", n, e.Key)
		}
		if visit != nil {
			visit(n, e)
		}
		n++
		return nil
	}))
	if n != streamed {
		t.Errorf("%d of %d keys were visited", n, streamed)
	}
}

// TestStream: a long range is read as a stream, at the revision of its first page.
func TestStream(t *testing.T) {
	c := startEtcd(t)
	prefix, key := loadStreamed(t, c, kibibyte)
	reader := &asked{Etcd: NewEtcd(c), beforeStream: func() { put(t, c, numbered(prefix)(streamed-1), []byte("changed")) }}
	requireWalked(t, reader, prefix, key, func(n int, e Entry) {
		if string(e.Value) != string(kibibyte(n)) {
			t.Errorf("%s is %q", e.Key, e.Value)
		}
	})
	if reader.streams != 1 || reader.ranges > 5 {
		t.Errorf("%d streams and %d pages", reader.streams, reader.ranges)
	}
}

// TestStreamAcrossCompaction: if the revision of a stream is compacted, a new stream goes on at the newest
// revision.
func TestStreamAcrossCompaction(t *testing.T) {
	c := startEtcd(t)
	prefix, key := loadStreamed(t, c, kibibyte)
	reader := &asked{Etcd: NewEtcd(c)}
	last := ""
	requireWalked(t, reader, prefix, key, func(n int, e Entry) {
		if n == streamed/4 {
			revision := put(t, c, key(streamed-1), []byte("changed"))
			_, err := c.Compact(t.Context(), revision)
			must(t, err)
		}
		last = string(e.Value)
	})
	if last != "changed" || reader.streams != 2 {
		t.Errorf("the last value is %q, after %d streams", last, reader.streams)
	}
}

// TestStreamOfMixedSizes: a stream goes on if its values have different sizes, for which pages would have to be
// short.
func TestStreamOfMixedSizes(t *testing.T) {
	c := startEtcd(t)
	random := rand.New(rand.NewPCG(1, 2))
	prefix, key := loadStreamed(t, c, func(int) []byte { return make([]byte, 100+random.IntN(6000)) })
	reader := &asked{Etcd: NewEtcd(c)}
	requireWalked(t, reader, prefix, key, nil)
	if reader.streams > 2 || reader.ranges > 12 {
		t.Errorf("%d streams and %d pages", reader.streams, reader.ranges)
	}
}

// TestStreamMeetsLargeValues: values that are too large together for a reply are read in pages, and those behind
// them as a stream.
func TestStreamMeetsLargeValues(t *testing.T) {
	c := startEtcd(t)
	const large, from = 1 << 20, streamed / 2
	prefix, key := loadStreamed(t, c, kibibyte)
	for i := from; i < from+12; i++ {
		put(t, c, key(i), make([]byte, large))
	}
	reader := &asked{Etcd: NewEtcd(c)}
	requireWalked(t, reader, prefix, key, func(n int, e Entry) {
		if want := n >= from && n < from+12; want != (len(e.Value) == large) {
			t.Errorf("%s has %d bytes", e.Key, len(e.Value))
		}
	})
	if reader.streams != 2 {
		t.Errorf("%d streams", reader.streams)
	}
}

// TestStreamIsForFastRuns: while a run is slow, it reads pages; when nothing holds it back any more, it reads a
// stream.
func TestStreamIsForFastRuns(t *testing.T) {
	c := startEtcd(t)
	prefix, key := loadStreamed(t, c, kibibyte)
	reader := &asked{Etcd: NewEtcd(c)}
	p := newPager(reader, prefix, 4000, MaxReply)
	defer p.close()
	n, longest := 0, 0
	for !p.done {
		slow := n >= streamed/4 && n <= streamed/2
		if p.atMost(4000); slow {
			p.atMost(500)
		}
		page, err := p.page(t.Context())
		must(t, err)
		for _, e := range page.Entries {
			if e.Key != key(n) {
				t.Fatalf("key %d is %s", n, e.Key)
			}
			n++
		}
		if slow {
			longest = max(longest, len(page.Entries))
		}
	}
	if n != streamed || longest != 500 || reader.streams != 2 {
		t.Errorf("%d keys, %d in a page, %d streams", n, longest, reader.streams)
	}
}

// TestStreamsOfARun: the memory of a run is bounded, however long the stream is; here, the stream also ends
// because of a compaction.
func TestStreamsOfARun(t *testing.T) {
	c, target, contents := oldPolicies(t, streamed)
	const bound = 2 * MaxReply
	reader := &asked{Etcd: NewEtcd(c)}
	var compacting sync.Once
	kv := hooked{KV: reader, beforePut: func(_ Fence, p Put) (err error) {
		if p.Key > numbered(policyPrefix)(streamed/4) {
			compacting.Do(func() {
				var now *clientv3.GetResponse
				if now, err = c.Get(t.Context(), policyFence); err == nil {
					_, err = c.Compact(t.Context(), now.Header.Revision)
				}
			})
		}
		return err
	}}
	result := rewritten(t, streamingKV{kv, reader}, target, Options{UnderWay: 4, MemoryBytes: bound}, nil)
	if result.Total != streamed || reader.streams != 2 {
		t.Errorf("%+v, %d streams", result.Progress, reader.streams)
	}
	if result.PeakBytes > bound || result.Bytes < bound {
		t.Errorf("%d of %d bytes were held", result.PeakBytes, 2*result.Bytes)
	}
	requireNew(t, c, contents)
}

// TestStreamBreaksOff: etcd restarts in the middle of a stream.
func TestStreamBreaksOff(t *testing.T) {
	c, restart := startEtcdThatStops(t)
	target := policyTarget(t, c)
	contents := loadOld(t, c, streamed)
	reader := &asked{Etcd: NewEtcd(c)}
	var restarting sync.Once
	kv := hooked{KV: reader, beforePut: func(_ Fence, p Put) error {
		if p.Key > numbered(policyPrefix)(3000) {
			restarting.Do(restart)
		}
		return nil
	}}
	result := rewritten(t, streamingKV{kv, reader}, target, Options{}, nil)
	if result.Total != streamed || reader.streams < 2 {
		t.Errorf("%+v, %d streams", result.Progress, reader.streams)
	}
	requireNew(t, c, contents)
}

// streamingKV is a KV with hooks and with streams.
type streamingKV struct {
	hooked
	streams *asked
}

func (s streamingKV) stream(ctx context.Context, start, end string, revision int64) (*stream, error) {
	return s.streams.stream(ctx, start, end, revision)
}

// oldEtcd is a client that returns Unimplemented for streams, like that of an etcd before 3.7.
type oldEtcd struct {
	etcdserverpb.KVClient
	asked int
}

func (o *oldEtcd) RangeStream(context.Context, *etcdserverpb.RangeRequest, ...grpc.CallOption) (etcdserverpb.KV_RangeStreamClient, error) {
	o.asked++
	return nil, status.Error(codes.Unimplemented, "unknown method RangeStream")
}

// proxy is an etcd before 3.7, whose server has no streams.
type proxy struct {
	etcdserverpb.UnimplementedKVServer
	etcd etcdserverpb.KVClient
}

func (p proxy) Range(ctx context.Context, in *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return p.etcd.Range(ctx, in)
}

// TestOldEtcdHasNoStreams: an etcd without streams is asked once for a stream, and then for pages only. Some
// clients return that error without a request.
func TestOldEtcdHasNoStreams(t *testing.T) {
	c := startEtcd(t)
	prefix, key := loadStreamed(t, c, kibibyte)
	atOnce := &oldEtcd{KVClient: clientv3.RetryKVClient(c)}
	reader := NewEtcd(clientv3.NewKVFromKVClient(atOnce, c))
	for range 2 {
		requireWalked(t, reader, prefix, key, nil)
	}
	if atOnce.asked != 1 {
		t.Errorf("asked %d times for a stream", atOnce.asked)
	}

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, proxy{etcd: etcdserverpb.NewKVClient(c.ActiveConnection())})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	old, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + listener.Addr().String()}})
	must(t, err)
	t.Cleanup(func() { _ = old.Close() })
	connected := &asked{Etcd: NewEtcd(old)}
	requireWalked(t, connected, prefix, key, nil)
	if connected.streams != 1 || !connected.streamless.Load() {
		t.Errorf("by a connection: asked %d times for a stream", connected.streams)
	}
}

// mute is a client whose streams send nothing.
type mute struct {
	clientv3.KV
	opened chan struct{}
}

func (m mute) GetStream(ctx context.Context, _ string, _ ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	pieces := make(chan clientv3.RangeStreamResponse)
	context.AfterFunc(ctx, func() { close(pieces) })
	close(m.opened)
	return pieces, nil
}

// TestStreamIsGivenUp: a reader that waits for the next piece of a stream returns when its context ends.
func TestStreamIsGivenUp(t *testing.T) {
	c := startEtcd(t)
	prefix, _ := loadStreamed(t, c, kibibyte)
	ctx, cancel := context.WithCancel(t.Context())
	kv := mute{c, make(chan struct{})}
	go func() {
		<-kv.opened
		cancel()
	}()
	err := Walk(ctx, NewEtcd(kv), prefix, func(Entry) error { return nil })
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
}

// TestManyUnderWayBesideAStream: a connection does not come to a standstill if a stream fills it in one direction
// and many puts in the other (see package grpclimit).
func TestManyUnderWayBesideAStream(t *testing.T) {
	c, target, contents := oldPolicies(t, streamed)
	codecs := newTyped(t)
	for i := range 2 {
		target.Encoding, target.Codec = newEncoding, codecs.new
		if i%2 == 1 {
			target.Encoding, target.Codec = oldEncoding, codecs.old
		}
		result := rewritten(t, NewEtcd(c), target, Options{UnderWay: 1000, PieceKeys: 500, MemoryBytes: 64 << 20, Patience: 20 * time.Millisecond}, nil)
		// A put that etcd was too slow for may have been written; its key has changed then.
		if result.Rewritten < streamed/2 || result.Rewritten+result.Changed < streamed {
			t.Fatalf("round %d: %+v", i, result.Progress)
		}
	}
	target.Encoding, target.Codec = newEncoding, codecs.new
	rewritten(t, NewEtcd(c), target, Options{}, nil)
	requireNew(t, c, contents)
}

// TestPieceWithoutKeys: a piece of a stream that is not the last one and has no keys is an error, not the end of
// the stream.
func TestPieceWithoutKeys(t *testing.T) {
	s := stream{etcd: &Etcd{}, receive: func() (Page, error) { return Page{More: true}, nil }, cancel: func() {}}
	if page, err := s.next(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %+v, %v", page, err)
	}
}

// nothing is a client whose streams have one empty piece.
type nothing struct{ clientv3.KV }

func (nothing) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	pieces := make(chan clientv3.RangeStreamResponse, 1)
	pieces <- clientv3.RangeStreamResponse{}
	return pieces, nil
}

// TestPieceWithNothing: the same for an empty piece of an etcd in this process.
func TestPieceWithNothing(t *testing.T) {
	receive, err := NewEtcd(nothing{}).open(t.Context(), "a", "b", 1)
	must(t, err)
	if page, err := receive(); !errors.Is(err, errNoRange) {
		t.Errorf("got %+v, %v", page, err)
	}
}
