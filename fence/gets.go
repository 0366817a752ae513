package fence

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// maxGets is how many objects are read at once; etcd takes 128 operations.
const maxGets = 64

// gets reads single objects for many callers: those that ask while a read is under way are
// served by the next one, together. Every read is as consistent as one of its own.
type gets struct {
	kv clientv3.KV

	mu      sync.Mutex
	waiting []*get
	reading bool
}

type get struct {
	ctx  context.Context // the caller's
	key  string
	done chan struct{}
	// response and err are set before done is closed.
	response kubernetes.GetResponse
	err      error
}

func (g *gets) get(ctx context.Context, key string) (kubernetes.GetResponse, error) {
	one := &get{ctx: ctx, key: key, done: make(chan struct{})}
	g.mu.Lock()
	g.waiting = append(g.waiting, one)
	if !g.reading {
		g.reading = true
		go g.run()
	}
	g.mu.Unlock()
	select {
	case <-one.done:
		return one.response, one.err
	case <-ctx.Done():
		return kubernetes.GetResponse{}, ctx.Err()
	}
}

// run reads as long as somebody waits.
func (g *gets) run() {
	for {
		g.mu.Lock()
		batch := g.waiting[:min(len(g.waiting), maxGets)]
		g.waiting = g.waiting[len(batch):]
		g.reading = len(batch) > 0
		g.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		read(g.kv, batch)
	}
}

// read serves a batch. It is given up when all its callers have given up.
func read(kv clientv3.KV, batch []*get) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var left atomic.Int64
	left.Store(int64(len(batch)))
	ops := make([]clientv3.Op, len(batch))
	for i, one := range batch {
		ops[i] = clientv3.OpGet(one.key)
		defer context.AfterFunc(one.ctx, func() {
			if left.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	resp, err := kv.Txn(ctx).Then(ops...).Commit()
	if err == nil && len(resp.Responses) != len(batch) {
		err = fmt.Errorf("etcd answered %d of %d reads", len(resp.Responses), len(batch))
	}
	for i, one := range batch {
		if one.err = err; err == nil {
			one.response.Revision = resp.Header.Revision
			if kvs := resp.Responses[i].GetResponseRange().GetKvs(); len(kvs) == 1 {
				one.response.KV = kvs[0]
			}
		}
		close(one.done)
	}
}
