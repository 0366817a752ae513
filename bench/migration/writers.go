package main

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/concord-dev/concord/bench/corpus"
	"github.com/concord-dev/concord/testbed/load"
)

const (
	// writerCount clients write, each with writerPause between two writes.
	writerCount = 4
	writerPause = 20 * time.Millisecond
	objectsPath = "/api/v1/namespaces/default/configmaps"
)

// writers are clients that update objects of their own.
type writers struct {
	servers  *corpus.Servers
	sequence atomic.Int64
}

// newWriters creates the writers' objects.
func newWriters(ctx context.Context, servers *corpus.Servers) (*writers, error) {
	for i := range writerCount {
		_, err := servers.Clients[0].Do(ctx, http.MethodPost, objectsPath, corpus.JSONType, corpus.Marshal(corpus.ConfigMap(writerName(i), 0)))
		if err != nil {
			return nil, fmt.Errorf("create a writer's object: %w", err)
		}
	}
	return &writers{servers: servers}, nil
}

func writerName(i int) string { return fmt.Sprint("writer-", i) }

// start lets the writers write until the function that it returns is called, which
// returns their writes.
func (w *writers) start(ctx context.Context) (stop func() (load.Requests, error)) {
	running, cancel := context.WithCancel(ctx)
	ended := make(chan load.Requests, 1)
	go func() {
		ended <- load.Closed(running, writerCount, writerPause, func(i, _ int) error { return w.write(ctx, i) })
	}()
	return func() (load.Requests, error) {
		cancel()
		all := <-ended
		return all, all.Err()
	}
}

func (w *writers) write(ctx context.Context, i int) error {
	sequence := w.sequence.Add(1)
	client := w.servers.Clients[sequence%int64(len(w.servers.Clients))]
	body := corpus.Marshal(corpus.Fields{"data": corpus.Fields{"sequence": fmt.Sprint(sequence)}})
	if _, err := client.Do(ctx, http.MethodPatch, objectsPath+"/"+writerName(i), "application/merge-patch+json", body); err != nil {
		return fmt.Errorf("a client's write: %w", err)
	}
	return nil
}
