package join

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/member"
)

// spaceAskInterval is how often etcd is asked for its alarms: each question is an entry of
// its log.
const spaceAskInterval = 2 * time.Second

// errNoSpace is what there is to say while etcd's alarm NOSPACE is raised.
var errNoSpace = fmt.Errorf("%s: %w", fence.NoSpaceMessage, member.ErrDeletesOnly)

// etcdSpace knows whether etcd takes puts: it does not while its alarm NOSPACE is raised,
// and reads and deletes tell nothing of that. It is asked all the time, and a put that was
// refused tells at once.
type etcdSpace struct {
	alarmed func(context.Context) (bool, error)
	limit   time.Duration
	full    atomic.Bool
	// refused says that a put was refused since the last question was begun.
	refused atomic.Bool
}

func newEtcdSpace(etcd *clientv3.Client, limit time.Duration) *etcdSpace {
	maintenance := etcdserverpb.NewMaintenanceClient(etcd.ActiveConnection())
	return &etcdSpace{limit: limit, alarmed: func(ctx context.Context) (bool, error) {
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
func (s *etcdSpace) run(ctx context.Context) {
	ticker := time.NewTicker(spaceAskInterval)
	defer ticker.Stop()
	for {
		s.once(ctx)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// once asks. Without an answer nothing is known, and what was known stands.
func (s *etcdSpace) once(ctx context.Context) {
	s.refused.Store(false)
	asking, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	alarmed, err := s.alarmed(asking)
	if err != nil || !alarmed && s.refused.Load() {
		return // the refusal may be newer than the answer
	}
	s.set(alarmed)
}

// refuse tells that a put was refused for want of space.
func (s *etcdSpace) refuse() {
	s.refused.Store(true)
	s.set(true)
}

func (s *etcdSpace) set(full bool) {
	switch was := s.full.Swap(full); {
	case full && !was:
		klog.Background().Error(errNoSpace, "Writes are refused")
	case !full && was:
		klog.Background().Info("Etcd has space again: writes are let through")
	}
}

// err says in one line that etcd takes no puts; nil while it does.
func (s *etcdSpace) err() error {
	if s.full.Load() {
		return errNoSpace
	}
	return nil
}

// unwritable says in one line why etcd takes no puts at present; nil if it does.
func (e *Etcd) unwritable() error {
	if err := e.health.err(); err != nil {
		return err
	}
	return e.space.err()
}

// addSpaceCheck adds the readiness check etcd-space, which fails while etcd takes no puts.
func (e *Etcd) addSpaceCheck(c *genericapiserver.Config) {
	c.AddReadyzChecks(healthz.NamedGroupedCheck("etcd-space", "etcd-space", func(*http.Request) error {
		if e.space.err() != nil {
			return errors.New(fence.NoSpaceMessage)
		}
		return nil
	}))
}
