package etcdhealth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/concord-dev/concord/workers"
)

const (
	etcdAskInterval = 500 * time.Millisecond
	// etcdMaxAsked is how many questions may wait for their answer.
	etcdMaxAsked = 16
)

// answers knows whether etcd answers. It asks all the time, for all that need to know: the
// readiness checks, the gate of writes, and a stop.
//
// Invariant: etcd is away exactly if a question failed, or got no answer in time, and no
// question that was asked later has been answered.
type answers struct {
	ask func(context.Context) error
	// limit is how long a question may go without an answer.
	limit time.Duration

	mu       sync.Mutex
	answered time.Time // when the last question that was answered was asked
	away     error     // why etcd is away; nil while it answers
	since    time.Time // since when
}

// newAnswers asks by linearizable reads, which need a quorum. They are not tried
// again: the client would do so for long.
func newAnswers(etcd *clientv3.Client, limit time.Duration) *answers {
	kv := etcdserverpb.NewKVClient(etcd.ActiveConnection())
	return &answers{limit: limit, ask: func(ctx context.Context) error {
		_, err := kv.Range(ctx, &etcdserverpb.RangeRequest{Key: []byte("health")})
		return err
	}}
}

// run asks until ctx ends.
func (h *answers) run(ctx context.Context) {
	var asked sync.WaitGroup
	defer asked.Wait()
	slots := make(chan struct{}, etcdMaxAsked)
	ticker := time.NewTicker(etcdAskInterval)
	defer ticker.Stop()
	for {
		select {
		case slots <- struct{}{}:
			asked.Go(func() {
				defer func() { <-slots }()
				_ = workers.Do(ctx, "etcd-health", func() error { h.once(ctx); return nil })
			})
		default:
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (h *answers) once(ctx context.Context) {
	at := time.Now()
	asking, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	if err := h.ask(asking); ctx.Err() == nil {
		h.note(at, err)
	}
}

// note takes in the outcome of a question asked at a time.
func (h *answers) note(at time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.away = nil
		if at.After(h.answered) {
			h.answered = at
		}
	case at.After(h.answered):
		if h.away == nil {
			if h.since = h.answered; h.since.IsZero() {
				h.since = at
			}
		}
		h.away = err
	}
}

// silence is how long etcd has been away, 0 while it answers.
func (h *answers) silence() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away == nil {
		return 0
	}
	return max(time.Since(h.since), 1)
}

// err says in one line that etcd is away; nil while it answers.
func (h *answers) err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away == nil {
		return nil
	}
	s := status.Convert(h.away)
	reason := s.Message()
	if s.Code() == codes.DeadlineExceeded {
		reason = fmt.Sprintf("no answer within %v", h.limit)
	}
	return fmt.Errorf("etcd has not answered for %v: %s", time.Since(h.since).Round(100*time.Millisecond), reason)
}
