package fence

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// recheck is how long a call on a superseded store waits between two looks for a newer one, and how long it then waits
// at most for the answer whether it may write after all.
const recheck = 10 * time.Millisecond

var errWaitedTooLong = errors.New("waited too long")

// forwarder runs writes that find their store superseded again on a newer store of
// the same resource and served version. Nothing was written by then, and
// storage.Interface already asks callers of GuaranteedUpdate for functions that can be run
// again.
//
// Reads and watches stay where they are: any store decodes all versions. So do deletes:
// they write no value.
type forwarder struct {
	storage.Interface
	fence *Fence
	self  *entry
}

// Create implements storage.Interface.
func (s *forwarder) Create(ctx context.Context, key string, obj, out runtime.Object, ttl uint64) error {
	err := s.Interface.Create(ctx, key, obj, out, ttl)
	return s.forward(ctx, err, func(newer storage.Interface) error {
		return newer.Create(ctx, key, obj, out, ttl)
	})
}

// GuaranteedUpdate implements storage.Interface. On the newer store it starts from what etcd
// holds: neither the object that the caller suggests nor any cache is asked.
func (s *forwarder) GuaranteedUpdate(ctx context.Context, key string, destination runtime.Object, ignoreNotFound bool, preconditions *storage.Preconditions, tryUpdate storage.UpdateFunc, cachedExistingObject runtime.Object) error {
	err := s.Interface.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, cachedExistingObject)
	return s.forward(ctx, err, func(newer storage.Interface) error {
		return newer.GuaranteedUpdate(ctx, key, destination, ignoreNotFound, preconditions, tryUpdate, nil)
	})
}

// forward calls newer and newer stores as long as the last one was superseded.
func (s *forwarder) forward(ctx context.Context, err error, call func(newer storage.Interface) error) error {
	if !errors.Is(err, agree.ErrSuperseded) {
		return err
	}
	timer := s.fence.clock.NewTimer(s.fence.forwardTimeout)
	defer timer.Stop()
	current := s.self
	for errors.Is(err, agree.ErrSuperseded) {
		next, waitErr := s.after(ctx, current, timer.C())
		if waitErr != nil {
			return s.gone(waitErr)
		}
		err = call(next.raw)
		current = next
	}
	result := "error"
	if err == nil {
		result = "success"
	}
	s.count(result)
	return err
}

// after returns the newest store that was built later than e for the same version,
// waiting for one. It also ends the wait with e itself once e may write: it encrypts with the
// new key by then; or the report lags behind the stores, and where an encoding comes back,
// as in v1 to v2 to v1, e is the newest store whose encoding was reported before and is not now.
func (s *forwarder) after(ctx context.Context, e *entry, timeout <-chan time.Time) (*entry, error) {
	for {
		if newer := s.fence.registry.newer(e); newer != nil {
			return newer, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout:
			return nil, errWaitedTooLong
		case <-s.fence.clock.After(recheck):
		}
		if s.permitted(ctx, e) {
			return e, nil
		}
	}
}

// permitted says whether e may write now, or within recheck.
func (s *forwarder) permitted(ctx context.Context, e *entry) bool {
	ctx, cancel := context.WithTimeout(ctx, recheck)
	defer cancel()
	_, err := s.fence.permits.Revision(ctx, e.GroupResource, e.writes())
	return err == nil
}

// gone is the answer when no newer store came: it is still to be built, or does not
// serve the version of this one any more.
func (s *forwarder) gone(cause error) error {
	s.count("unavailable")
	version := s.self.ServedVersion
	if version == "" {
		version = "any version"
	}
	return storageversion.Unavailable(s.self.GroupResource, "the storage of %s moved on from %s, and the new one for %s is not ready: %v",
		s.self.GroupResource, s.self.Encoding, version, cause)
}

func (s *forwarder) count(result string) {
	forwards.WithLabelValues(s.self.GroupResource.Group, s.self.GroupResource.Resource, result).Inc()
}
