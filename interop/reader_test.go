package interop

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/concord-dev/concord/e2e/beside"
)

// kept is a resource, and the prefix of its objects' keys below that of the registry.
type kept struct {
	schema.GroupVersionResource
	under string
}

// reader lists and watches a resource through one server, as an informer does.
type reader struct {
	kept
	t      testing.TB
	server *beside.APIServer
	// until is the revision at which the reader may end.
	until atomic.Int64
	done  chan struct{}
	// told is valid when done is closed.
	told []beside.Told
}

// read starts a reader. It ends by stop, or with the test.
func read(t testing.TB, s *beside.APIServer, of kept) *reader {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reader{kept: of, t: t, server: s, done: make(chan struct{})}
	r.until.Store(math.MaxInt64)
	objects := s.Dynamic().Resource(of.GroupVersionResource)
	go func() {
		defer close(r.done)
		for at := int64(0); at < r.until.Load() && ctx.Err() == nil; {
			seen, err := r.once(ctx, objects)
			if err != nil && ctx.Err() == nil && !begunAnew(err) {
				t.Errorf("%s through %s: %v", of.Resource, s.Name, err)
				return
			}
			if seen.At > 0 {
				at = seen.Last()
				r.told = append(r.told, seen)
			}
		}
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// begunAnew says whether informers list again after this error. Servers return such errors when the
// CRD of a custom resource has changed, or etcd elects a leader.
func begunAnew(err error) bool {
	return strings.Contains(err.Error(), "etcdserver: ") || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err)
}

// once lists, and watches until the reader has to list again.
func (r *reader) once(ctx context.Context, objects dynamic.ResourceInterface) (beside.Told, error) {
	seen, w, err := beside.List(ctx, objects, "")
	seen.Mode = fmt.Sprintf("%s through %s", r.Resource, r.server.Name)
	enough := func() bool { return seen.Last() >= r.until.Load() }
	for err == nil && !enough() && ctx.Err() == nil {
		if err = seen.Follow(ctx, w, enough); err == nil {
			w, err = objects.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(seen.Last(), 10)})
		}
	}
	return seen, err
}

// stop ends the reader when it has seen all that was written until now and one write after that, so
// clients have to go on writing.
func (r *reader) stop() {
	r.t.Helper()
	now, err := r.server.Cluster.Raw.Get(r.t.Context(), beside.Registry)
	must(r.t, err)
	r.until.Store(now.Header.Revision)
	beside.Eventually(r.t, beside.Patience, "the watch of "+r.Resource+" tells of later writes", func(context.Context) error {
		select {
		case <-r.done:
			return nil
		default:
			return errors.New("it does not")
		}
	})
}

// check compares what the reader was told with what was written.
func (r *reader) check(h beside.History) {
	r.t.Helper()
	h = h.Under(beside.Registry + r.under)
	events := 0
	for _, told := range r.told {
		h.Check(r.t, told)
		events += len(told.Events)
	}
	if events == 0 {
		r.t.Errorf("%s through %s: nothing was told", r.Resource, r.server.Name)
	}
	r.t.Logf("%s through %s: %d lists and %d events are as in etcd", r.Resource, r.server.Name, len(r.told), events)
}
