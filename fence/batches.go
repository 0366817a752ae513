package fence

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// maxBatches is how many are remembered of a store. A watch cache keeps 102,400 events, so
// it knows no revision that is older.
const maxBatches = 100_000

// batches knows the revisions at which one transaction wrote several of a store's objects, as
// a rewrite does. The watch cache takes it that a revision is one object's: who has seen
// one event of it has seen it. Here is told where that is wrong.
type batches struct {
	// newest is the last revision of all, or 0.
	newest atomic.Uint64

	mu  sync.RWMutex
	all []batch // by revision
}

// batch is a revision with more than one event.
type batch struct {
	revision uint64
	events   int
}

// observe reads what etcd sent of a watch. All events of a revision come together, unless
// the watch asked for fragments.
func (b *batches) observe(events []*mvccpb.Event) {
	for len(events) > 1 {
		revision, n := events[0].Kv.ModRevision, 1
		for n < len(events) && events[n].Kv.ModRevision == revision {
			n++
		}
		b.note(uint64(revision), n)
		events = events[n:]
	}
}

// note remembers that a revision has at least so many events: a watch of some of the store's
// keys may see fewer than others.
func (b *batches) note(revision uint64, events int) {
	if events < 2 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at, found := b.find(revision)
	if found {
		b.all[at].events = max(b.all[at].events, events)
		return
	}
	if len(b.all) == maxBatches {
		oldest := maxBatches / 4
		b.all = slices.Delete(b.all, 0, oldest)
		at = max(0, at-oldest)
	}
	b.all = slices.Insert(b.all, at, batch{revision, events})
	b.newest.Store(b.all[len(b.all)-1].revision)
}

// size returns how many events a batch has, and 0 for any other revision.
func (b *batches) size(revision uint64) int {
	if revision > b.newest.Load() {
		return 0
	}
	b.mu.RLock()
	defer b.mu.RUnlock()
	if at, found := b.find(revision); found {
		return b.all[at].events
	}
	return 0
}

func (b *batches) has(revision uint64) bool { return b.size(revision) > 1 }

// find is called with mu.
func (b *batches) find(revision uint64) (int, bool) {
	if n := len(b.all); n == 0 || b.all[n-1].revision < revision {
		return n, false
	}
	return slices.BinarySearchFunc(b.all, revision, func(b batch, revision uint64) int {
		return cmp.Compare(b.revision, revision)
	})
}

// observed returns a watcher that tells b what it receives before anybody else gets it.
func (b *batches) observed(client *clientv3.Client) clientv3.Watcher {
	streams := etcdserverpb.NewWatchClient(client.ActiveConnection())
	return clientv3.NewWatchFromWatchClient(observedWatches{streams, b}, client)
}

type observedWatches struct {
	etcdserverpb.WatchClient
	batches *batches
}

// Watch implements etcdserverpb.WatchClient.
func (w observedWatches) Watch(ctx context.Context, opts ...grpc.CallOption) (etcdserverpb.Watch_WatchClient, error) {
	stream, err := w.WatchClient.Watch(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return observedStream{stream, w.batches}, nil
}

type observedStream struct {
	etcdserverpb.Watch_WatchClient
	batches *batches
}

// Recv implements etcdserverpb.Watch_WatchClient.
func (s observedStream) Recv() (*etcdserverpb.WatchResponse, error) {
	response, err := s.Watch_WatchClient.Recv()
	if err == nil {
		s.batches.observe(response.Events)
	}
	return response, err
}
