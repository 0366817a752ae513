// Package workload is the demo's clients: the objects that they write, the marks that their writes leave, what servers
// answered, and whether everything acknowledged is there in the end.
package workload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/concord-dev/concord/testbed/load"
)

const (
	// writePause is the time between a writer's writes.
	writePause = 200 * time.Millisecond
	// retryPause is the time that a client waits after every server has failed it.
	retryPause = 50 * time.Millisecond
	// writesPerCreate is how many writes of a writer there are to one creation.
	writesPerCreate = 4
	// loaders is how many clients load objects at once.
	loaders = 48
	// holders is how many clients have a request in flight in the server that is paused.
	holders = 16
	// holdTimeout is how long these clients wait for their answers.
	holdTimeout = 2 * time.Minute
	// writeTimeout is how long a client waits for an answer on a connection that is not broken. It is longer than a
	// server makes a custom resource's write wait before it answers 503.
	writeTimeout = 15 * time.Second
)

// errGivenUp ends a logical write whose client does not try again.
var errGivenUp = errors.New("not acknowledged")

// client is one user of the cluster. It goes from server to server with each attempt.
type client struct {
	name      string
	endpoints []*Endpoint
	turn      int
	timeout   time.Duration
	// stubborn says whether a write is tried again after a failure; nil means always.
	stubborn func(load.Outcome) bool
	work     *load.Journal
	attempts int64
	watcher  *Held // counts the requests in flight; may be nil
}

// object is an object that one client owns: only that client writes it, so its last mark is known unless a write is in
// doubt.
type object struct {
	key  load.Key
	last load.Mark
}

// write makes the object's next logical write and returns when it is acknowledged. It
// fails when ctx ends, or after a failure that the client does not retry.
func (c *client) write(ctx context.Context, o *object) error {
	doubtful := false
	for failures := 1; ; failures++ {
		at := c.endpoints[c.turn%len(c.endpoints)]
		version := CustomVersions[c.turn/len(c.endpoints)%len(CustomVersions)]
		c.turn++
		creation := o.last.Counter == 0
		done, doubt, err := c.try(ctx, at, version, o, doubtful)
		switch {
		case done:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case c.stubborn != nil && !c.stubborn(load.Classify(err, creation)):
			return fmt.Errorf("%s: %w by %s: %w", o.key, errGivenUp, at.Server, err)
		}
		doubtful = doubt
		if failures%len(c.endpoints) == 0 {
			_ = load.Pause(ctx, retryPause)
		}
	}
}

// try makes one attempt at one server. If the attempt before may have been carried out, it reads the object first.
func (c *client) try(ctx context.Context, at *Endpoint, version string, o *object, doubtful bool) (done, doubt bool, err error) {
	timed, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	if doubtful {
		landed, err := c.resolve(timed, at, version, o)
		if landed || err != nil {
			return landed, true, err
		}
	}
	c.attempts++
	next := load.Mark{Counter: o.last.Counter + 1, Attempt: fmt.Sprintf("%s-%d", c.name, c.attempts), Via: at.Server}
	from := time.Now()
	c.watcher.sent()
	if o.last.Counter == 0 {
		err = at.create(timed, o.key, version, next)
	} else {
		err = at.update(timed, o.key, version, o.last, next)
	}
	result := load.Classify(err, o.last.Counter == 0)
	c.watcher.answered(from, result)
	c.work.Note(o.key, filler(o.key.Name), next, result)
	switch {
	case result == load.Acknowledged:
		o.last = next
		return true, false, nil
	case ctx.Err() != nil, result == load.Conflict && doubtful:
		// The demo ends, or the earlier attempt was carried out after all.
		return false, true, err
	}
	c.work.Fail(load.Failure{Write: next.Attempt, Server: at.Server, Outcome: result, Started: from, At: time.Now(), Err: fmt.Errorf("%s, %s, %s: %w", c.work.Step(), at.Server, o.key, err)})
	return false, doubtful || !result.Unwritten() || result == load.Conflict, err
}

// resolve finds out whether a write in doubt has landed.
func (c *client) resolve(ctx context.Context, at *Endpoint, version string, o *object) (landed bool, err error) {
	m, err := at.read(ctx, o.key, version)
	switch {
	case apierrors.IsNotFound(err) && o.last.Counter == 0 && isObjectMissing(err):
		return false, nil
	case err != nil:
		return false, err
	case m.Counter == o.last.Counter:
		return false, nil
	}
	c.work.Confirm(o.key, filler(o.key.Name), m)
	o.last = m
	return true, nil
}

// isObjectMissing distinguishes a missing object from a path that is not served yet.
func isObjectMissing(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Name != ""
}

// keepWriting creates and updates objects of all of the demo's resources until ctx ends.
func (c *client) keepWriting(ctx context.Context) {
	var own []*object
	for n := 0; ctx.Err() == nil; n++ {
		_ = load.Pause(ctx, wait.Jitter(writePause/2, 1))
		o := next(&own, n, c.name)
		step, from := c.work.Step(), time.Now()
		if err := c.write(ctx, o); err == nil {
			c.work.Took(step, time.Since(from))
		}
	}
}

// next returns the object of a writer's n-th write: a new one, or in turn one it has.
func next(own *[]*object, n int, writer string) *object {
	if n%writesPerCreate == 0 {
		o := &object{key: load.Key{Resource: Shown[n/writesPerCreate%len(Shown)], Name: fmt.Sprintf("%s%s-%d", WriterPrefix, writer, n/writesPerCreate)}}
		*own = append(*own, o)
		return o
	}
	return (*own)[n%len(*own)]
}

// StartWriters runs clients that write all the time, until stop is called.
func StartWriters(ctx context.Context, count int, endpoints []*Endpoint, work *load.Journal) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	for i := range count {
		c := &client{name: fmt.Sprintf("w%d", i), endpoints: endpoints, turn: i, timeout: writeTimeout, work: work}
		group.Go(func() { c.keepWriting(ctx) })
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// policyEvery: one in this many loaded objects is a policy. Real clusters do not have thousands of policies, and a
// server compiles each when it is created, which takes longer than everything else.
const policyEvery = 100

// LoadedResource says which resource the i-th loaded object is of: every other one is a
// custom resource, the others are bindings and some policies.
func LoadedResource(i int) schema.GroupResource {
	switch {
	case i%2 == 0:
		return Gadgets
	case i%policyEvery == 1:
		return Policies
	}
	return Bindings
}

// Load creates the objects, spread over the servers. It fails with the first answer that
// is neither a success nor a reason to try again.
func Load(ctx context.Context, count int, endpoints []*Endpoint, work *load.Journal, loaded *atomic.Int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var index atomic.Int64
	var group sync.WaitGroup
	for i := range loaders {
		c := &client{name: fmt.Sprintf("l%d", i), endpoints: endpoints, turn: i, timeout: writeTimeout, work: work,
			stubborn: func(o load.Outcome) bool { return o != load.Unexpected }}
		group.Go(func() {
			for n := int(index.Add(1) - 1); n < count && ctx.Err() == nil; n = int(index.Add(1) - 1) {
				o := &object{key: load.Key{Resource: LoadedResource(n), Name: fmt.Sprintf("%s%06d", LoadPrefix, n)}}
				if err := c.write(ctx, o); err != nil {
					cancel(fmt.Errorf("load: %w", err))
					return
				}
				loaded.Add(1)
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// Held are clients of one server that wait for their answers for a long time. So requests of theirs are in flight in
// the server when it is paused, and still when it is resumed.
type Held struct {
	stopping atomic.Bool
	cancel   context.CancelFunc
	group    sync.WaitGroup

	mu       sync.Mutex
	inflight int64
	resumed  time.Time
	answers  map[load.Outcome]int64 // of the requests that were in flight then
}

func (h *Held) sent() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inflight++
}

func (h *Held) answered(from time.Time, o load.Outcome) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.inflight--
	if !h.resumed.IsZero() && from.Before(h.resumed) {
		h.answers[o]++
	}
}

// Resume notes that the server goes on now, and returns how many requests are in flight.
func (h *Held) Resume() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resumed = time.Now()
	return h.inflight
}

func never(load.Outcome) bool { return false }

// StartHeld starts clients of one server, until Stop is called.
func StartHeld(ctx context.Context, at *Endpoint, work *load.Journal) *Held {
	h := &Held{answers: map[load.Outcome]int64{}}
	ctx, h.cancel = context.WithCancel(ctx)
	for i := range holders {
		c := &client{name: fmt.Sprintf("h%d", i), endpoints: []*Endpoint{at}, timeout: holdTimeout, stubborn: never, work: work, watcher: h}
		h.group.Go(func() { h.keepWriting(ctx, c) })
	}
	return h
}

func (h *Held) keepWriting(ctx context.Context, c *client) {
	var own []*object
	for n := 0; ctx.Err() == nil && !h.stopping.Load(); n++ {
		if err := c.write(ctx, next(&own, n, c.name)); err != nil {
			// The outcome of this write is not known. Go on with a new object.
			own = nil
			n += writesPerCreate - 1 - n%writesPerCreate
			_ = load.Pause(ctx, retryPause)
		}
	}
}

// Stop waits until the requests in flight are answered, at most for the time given, and
// returns the answers to the held ones.
func (h *Held) Stop(limit time.Duration) map[load.Outcome]int64 {
	h.stopping.Store(true)
	timer := time.AfterFunc(limit, h.cancel)
	defer timer.Stop()
	h.group.Wait()
	h.cancel()
	return h.answers
}
