package etcdhealth

import (
	"context"
	"fmt"
	"path"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

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
	// ask returns the revision of etcd.
	ask func(context.Context) (int64, error)
	// limit is how long a question may go without an answer.
	limit time.Duration

	mu       sync.Mutex
	answered time.Time // when the last question that was answered was asked
	away     error     // why etcd is away; nil while it answers
	since    time.Time // since when
	newest   int64     // the highest revision seen
	back     error     // that a later one was lower; it stays
}

// newAnswers asks by linearizable reads, which need a quorum, of the key that kube-apiserver
// reads: the user of etcd may be permitted the prefix only. They are not tried
// again: the client would do so for long.
func newAnswers(etcd *clientv3.Client, prefix string, limit time.Duration) *answers {
	key := []byte(path.Join("/", prefix, "health"))
	kv := etcdserverpb.NewKVClient(etcd.ActiveConnection())
	return &answers{limit: limit, ask: func(ctx context.Context) (int64, error) {
		answer, err := kv.Range(ctx, &etcdserverpb.RangeRequest{Key: key})
		return answer.GetHeader().GetRevision(), err
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
	at, newest := time.Now(), h.revision()
	asking, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	revision, err := h.ask(asking)
	if ctx.Err() != nil {
		return
	}
	h.note(at, err)
	if err == nil {
		h.compare(newest, revision)
	}
}

// revision is the highest that was seen.
func (h *answers) revision() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest
}

// compare takes in the revision of an answer to a question that was asked when the highest one seen was newest. The
// reads are linearizable: whichever member answers, it has seen all that any had answered before it was asked.
func (h *answers) compare(newest, revision int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.newest = max(h.newest, revision)
	if revision < newest && h.back == nil {
		h.back = fmt.Errorf("etcd went back from revision %d to %d: it was restored from a backup under running servers, whose caches and migrations are of the time before: restart all of them; or its members differ (etcdctl endpoint status --cluster): mend etcd first", newest, revision)
		klog.Background().Error(h.back, "Writes are refused until then")
	}
}

// wentBack says in one line that etcd was at an older revision than before since the process began; else nil.
func (h *answers) wentBack() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.back
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
