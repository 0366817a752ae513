package etcdhealth

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/member"
)

const (
	// spaceAskInterval is how often etcd is asked for its alarms: each question is an entry of
	// its log.
	spaceAskInterval = 2 * time.Second
	// usedAskInterval is how often it is asked how much of its quota is used.
	usedAskInterval = 15 * time.Second
)

// errNoSpace is the error while etcd's alarm NOSPACE is raised.
var errNoSpace = fmt.Errorf("%s: %w", fence.NoSpaceMessage, member.ErrDeletesOnly)

// space knows whether etcd accepts puts. It does not while its alarm NOSPACE is raised, which reads and deletes do not
// show. space asks for the alarm regularly, and learns of it at once from a refused put.
type space struct {
	alarmed func(context.Context) (bool, error)
	// used returns how much of the quota is used, 0 to 1; 0 if that is not known.
	used  func(context.Context) (float64, error)
	limit time.Duration
	full  atomic.Bool
	// refused says that a put was refused since the last question began.
	refused atomic.Bool
}

func newSpace(etcd *clientv3.Client, limit time.Duration) *space {
	maintenance := etcdserverpb.NewMaintenanceClient(etcd.ActiveConnection())
	used := func(ctx context.Context) (float64, error) {
		resp, err := maintenance.Status(ctx, &etcdserverpb.StatusRequest{})
		if err != nil || resp.DbSizeQuota <= 0 {
			return 0, err
		}
		return float64(resp.DbSize) / float64(resp.DbSizeQuota), nil
	}
	return &space{limit: limit, used: used, alarmed: func(ctx context.Context) (bool, error) {
		resp, err := maintenance.Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_GET})
		if err != nil {
			return false, err
		}
		for _, a := range resp.Alarms {
			if a.Alarm == etcdserverpb.AlarmType_NOSPACE {
				return true, nil
			}
		}
		return false, nil
	}}
}

// run asks until ctx ends.
func (s *space) run(ctx context.Context) {
	ticker, seldom := time.NewTicker(spaceAskInterval), time.NewTicker(usedAskInterval)
	defer ticker.Stop()
	defer seldom.Stop()
	s.measure(ctx)
	for {
		s.once(ctx)
		select {
		case <-ticker.C:
		case <-seldom.C:
			s.measure(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// measure has a metric show how much of the quota is used. Without an answer it stays as it is.
func (s *space) measure(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	if used, err := s.used(asking); err == nil {
		spaceUsed.Set(used)
	}
}

// once asks. Without an answer nothing new is known, and the state known before stands.
func (s *space) once(ctx context.Context) {
	s.refused.Store(false)
	asking, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	alarmed, err := s.alarmed(asking)
	if err != nil || !alarmed && s.refused.Load() {
		return // the refusal may be newer than the answer
	}
	s.set(alarmed)
}

// refuse records that a put was refused for lack of space.
func (s *space) refuse() {
	s.refused.Store(true)
	s.set(true)
}

func (s *space) set(full bool) {
	switch was := s.full.Swap(full); {
	case full && !was:
		noSpace.Set(1)
		klog.Background().Error(errNoSpace, "Writes are refused")
	case !full && was:
		noSpace.Set(0)
		klog.Background().Info("Etcd has space again: writes are let through")
	}
}

// err says in one line that etcd takes no puts; nil while it does.
func (s *space) err() error {
	if s.full.Load() {
		return errNoSpace
	}
	return nil
}
