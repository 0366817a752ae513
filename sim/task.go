package sim

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/sim/coroutine"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// request is a call of a task to the API or to etcd. Between its being sent, its being
// applied and its answer anything else can happen, and one or the other may be lost.
type request struct {
	verb string
	kind registry.Kind // of API calls, registry.Kinds of others
	name string
	key  string // of etcd's
	// apply does it, at one moment. It writes to what the sender looks at only for reads.
	apply func(w *World, r *request) error
	// obj is the object or list that is read into or written; options are those of a list.
	obj     runtime.Object
	options *client.ListOptions

	sender *Process
	to     *World // whose API or etcd it is a call to
	asks   bool   // whether the host serves StorageVersions: nothing is promised to one that believes it does not
	invariant.Write
	applied bool
	refused bool  // a compare of the transaction did not hold
	err     error // what apply returned
}

// reads reports whether the request only reads, so that it does no harm if it arrives late.
func (r *request) reads() bool { return r.verb == "get" || r.verb == "list" || r.verb == "range" }

// cut reports whether the request cannot reach its destination.
func (r *request) cut() bool { return r.sender.cutFrom(r.to) }

// reaches reports whether the request reaches its destination, and is answered.
func (r *request) reaches() bool { return !r.cut() && r.to.etcd != etcdDown }

// rewritesObject says whether the request is a migration's transaction of an object.
func (r *request) rewritesObject() bool {
	return r.verb == "txn" && (r.Role.Rewrites() || r.Role == script.Patching)
}

// String prints the request without its arguments.
func (r *request) String() string {
	if r.key != "" {
		return "etcd " + r.verb + " " + r.key
	}
	if r.name == "" {
		return r.verb + " " + r.what().Resource
	}
	return r.verb + " " + r.what().Resource + " " + r.name
}

// what returns the resource that an API call is about.
func (r *request) what() schema.GroupResource {
	if r.kind == registry.Kinds {
		return schema.GroupResource{}
	}
	return r.kind.Resource()
}

// errNoAnswer is the error of the simulated network. It says nothing about whether a write happened.
var errNoAnswer = errors.New("no answer")

// lost maps script.LostAnswers to the errors with which etcd's client says that it got no answer.
var lost = map[string]error{
	"unavailable": status.Error(codes.Unavailable, "transport is closing"),
	"timeout":     rpctypes.ErrTimeout,
	"leader":      rpctypes.ErrLeaderChanged,
	"deadline":    context.DeadlineExceeded,
}

// lostAnswer is the error that a task gets for a request without an answer.
func lostAnswer(r *request, what string) error {
	if err, ok := lost[what]; ok && r.key != "" {
		return err
	}
	return errNoAnswer
}

// Task is a coroutine of a process: production code that runs until its next call.
type Task struct {
	p    *Process
	role script.Role
	what string
	// id is the process's registration for which a migrator works, and began and beganHost are the revisions
	// of the store and the host's when the task began.
	id               agree.ServerID
	began, beganHost int64

	on *coroutine.Coroutine

	req *request // the request whose answer it waits for
	// err is the answer's error where there is none from the request itself.
	err error
	// until is when a sleeping task wakes, by the world's time; 0 if it does not sleep.
	until time.Duration
	// ready, if not nil, says whether what the task waits for has come.
	ready func() bool
	calls int
	ended bool
	// failed is the error that the body returned.
	failed error
}

// spawn makes a task. It does not run yet.
func (p *Process) spawn(r script.Role, what string, body func() error) *Task {
	t := &Task{p: p, role: r, what: what, began: p.w.store.Revision()}
	if p.w.host != nil {
		t.beganHost = p.w.host.store.Revision()
	}
	t.on = p.w.coroutines.Start(func() { t.failed = body() })
	p.tasks[r] = t
	return t
}

// resume runs a task to its next call or to its end.
func (w *World) resume(t *Task) {
	before := w.current
	w.current = t
	if w.coroutines.Resume(t.on) {
		t.ended = true
		t.p.tasks[t.role] = nil
	}
	w.current = before
	if t.ended {
		t.p.finished(t)
	}
}

// call makes a request of the current task and returns when it is answered.
func (p *Process) call(ctx context.Context, r *request) error {
	t := p.w.current
	if t == nil || t.p != p {
		panic(fmt.Sprintf("%s was called outside of a task of %s", r, p))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if r.to == nil {
		r.to = p.w
	}
	r.sender, r.Write = p, invariant.Write{By: &p.Server, Role: t.role, ID: p.id(), Ended: p.ended, Began: t.began}
	if r.to == p.w.host {
		r.Began = t.beganHost
	}
	if t.role.Rewrites() {
		// A migrator asks for its server's identity once, when it has read the migration.
		if t.role == script.Migrating && t.calls <= 1 {
			t.id = r.ID
		}
		r.ID = t.id
	}
	t.req, t.err = r, nil
	if r.rewritesObject() {
		p.w.rewrites.Sent++
	}
	t.calls++
	t.on.Pause()
	t.req = nil
	if t.err != nil {
		return t.err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return r.err
}

// sleep pauses the current task for a time.
func (p *Process) sleep(d time.Duration) {
	t := p.w.current
	t.until = p.w.now + max(d, time.Millisecond)
	t.on.Pause()
	t.until = 0
}

// await pauses the current task until a condition holds.
func (p *Process) await(ready func() bool) {
	if ready() {
		return
	}
	t := p.w.current
	t.ready = ready
	t.on.Pause()
	t.ready = nil
}

// due says whether a task that waits for no answer can go on.
func (t *Task) due() bool {
	switch {
	case t.req != nil:
		return false
	case t.ready != nil:
		return t.ready()
	case t.until > 0:
		return t.p.w.now >= t.until
	}
	return true
}

// unserved is a 404 that no API server sent, as of a proxy.
func unserved(r *request) error {
	return apierrors.NewGenericServerResponse(404, r.verb, r.what(), r.name, "404 page not found", 0, true)
}
