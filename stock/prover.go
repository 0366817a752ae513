package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"

	"github.com/concord-dev/concord/api/storageversion"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/workers"
)

const (
	// sampleSize is how many objects are examined, unless all are.
	sampleSize = 1000
	// pageSize is how many objects are listed at a time, at most: while a kube-apiserver makes a longer page
	// clients wait.
	pageSize = 100
	// proveParallel is how many objects are examined at a time, at most.
	proveParallel = 16
	// busyTries is how often an object is read again that others write all the time.
	busyTries = 10
	// proveManager is the name under which the proof patches. Its patches change nothing.
	proveManager = "concord-proof"
)

// proveBackoff is between tries at a replica that is too busy.
var proveBackoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 0.5, Steps: 8}

// prover proves by behaviour: an empty patch leaves an object's resourceVersion unchanged only if the stored bytes are
// those that the replica that serves it would write.
type prover struct {
	api migrateapi.API
	// objects returns a client of the replica at an address.
	objects  func(address string) (metadata.Interface, error)
	observer *observer
	all      bool
}

func newProver(api migrateapi.API, o *observer, c Config) *prover {
	return &prover{api: api, objects: o.asking.Objects, observer: o, all: c.VerifyAll}
}

// exam describes what a prover does.
type exam struct {
	replicas []observed.Replica
	// turn is when a patch may be sent.
	turn turn
	// later chooses, by resourceVersion, objects that one replica patches in any case: what wrote them
	// came late, and may have stored any version. Nil: none.
	later func(resourceVersion string) bool
	// last says that only these objects are patched, the first of them through every replica: the others are as they
	// were in the proof.
	last bool
}

// turn waits until a patch may be sent. The caller passes the result of the patch to done.
type turn func(context.Context) (done func(error), err error)

// prove has every replica patch the objects of a resource, or a sample of them, each when it is its
// turn. It returns the resourceVersion of its list, too.
func (p *prover) prove(ctx context.Context, job claim.Job, how exam) (observed.Proof, string, error) {
	if len(how.replicas) == 0 {
		return observed.Proof{}, "", errors.New("no kube-apiserver answers")
	}
	if how.later == nil {
		how.later = func(string) bool { return false }
	}
	pass := &provingPass{prover: p, exam: how}
	var err error
	if pass.resource, _, err = p.listable(ctx, job); err != nil {
		return observed.Proof{}, "", err
	}
	pass.status = p.observer.definitions.statusOf(pass.resource)
	group, ctx := errgroup.WithContext(ctx)
	objects := make(chan examinee)
	group.Go(func() error {
		defer close(objects)
		return workers.Do(ctx, "prove-list", func() error { return pass.list(ctx, objects) })
	})
	for range proveParallel {
		group.Go(func() error { return workers.Do(ctx, "prove", func() error { return pass.examineAll(ctx, objects) }) })
	}
	if err := group.Wait(); err != nil && !errors.Is(err, errUnsteady) {
		return observed.Proof{}, "", err
	}
	return pass.proof, pass.listed, nil
}

// enoughUnsteady is how many objects that admission changes at every write end a proof: each write may make such an
// object grow, for example by another finalizer or annotation, and more of them would show nothing new.
const enoughUnsteady = 5

// errUnsteady ends a proof that has found enoughUnsteady.
var errUnsteady = errors.New("admission changes objects at every write")

// provingPass is one proof.
type provingPass struct {
	*prover
	exam
	resource schema.GroupVersionResource
	status   string
	// listed is the resourceVersion of the list.
	listed string

	mu    sync.Mutex
	proof observed.Proof
}

// examinee is an object with the replicas that are to patch it.
type examinee struct {
	metav1.PartialObjectMetadata
	by []observed.Replica
}

// listable returns the resource in the version that is stored, in which objects are listed and patched, and the
// resourceVersion that they have now.
func (p *prover) listable(ctx context.Context, job claim.Job) (schema.GroupVersionResource, string, error) {
	if len(job.Versions) == 0 {
		return schema.GroupVersionResource{}, "", errors.New("no version is served")
	}
	resource := job.GroupResource.WithVersion(job.Versions[0])
	list, err := lists(ctx, p.api, resource)(1, "")
	if err != nil {
		return resource, "", err
	}
	return resource, list.ResourceVersion, nil
}

// list sends the objects to be patched: all, or those that were written later and a uniform sample of all. It sends
// some twice: objects that are both, or if it has to begin again.
func (x *provingPass) list(ctx context.Context, to chan<- examinee) error {
	var sample []metav1.PartialObjectMetadata
	seen, sent := 0, 0
	anew := func() { sample, seen = nil, 0 }
	send := func(m metav1.PartialObjectMetadata, by []observed.Replica) error {
		select {
		case to <- examinee{m, by}:
			sent++
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := x.pages(ctx, anew, func(m metav1.PartialObjectMetadata) error {
		later := x.later(m.ResourceVersion)
		switch {
		case x.all && !x.last, x.last && later && sent < sampleSize:
			return send(m, x.replicas)
		case later:
			one := sent % len(x.replicas)
			if err := send(m, x.replicas[one:one+1]); err != nil {
				return err
			}
		}
		if seen++; len(sample) < sampleSize {
			sample = append(sample, m)
		} else if i := rand.IntN(seen); i < sampleSize { //nolint:gosec // no secret
			sample[i] = m
		}
		return nil
	})
	if err != nil || x.last {
		return err
	}
	for _, m := range sample {
		if err := send(m, x.replicas); err != nil {
			return err
		}
	}
	return nil
}

// pages lists all objects, as little of each as the proof needs.
func (x *provingPass) pages(ctx context.Context, anew func(), each func(metav1.PartialObjectMetadata) error) error {
	all := lists(ctx, x.api, x.resource)
	list := func(limit int, from string) (*metav1.PartialObjectMetadataList, error) {
		page, err := all(limit, from)
		if err == nil && from == "" {
			x.listed = page.ResourceVersion
		}
		return page, err
	}
	return migrateapi.Pages(ctx, pageSize, list, anew, func(page []metav1.PartialObjectMetadata) error {
		for _, m := range page {
			if err := each(metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion}}); err != nil {
				return err
			}
		}
		return nil
	})
}

func (x *provingPass) examineAll(ctx context.Context, objects <-chan examinee) error {
	for o := range objects {
		e, err := x.examine(ctx, o)
		if err != nil {
			return fmt.Errorf("examine %s: %w", e, err)
		}
		x.mu.Lock()
		x.proof.Add(e)
		enough := x.proof.Unsteady >= enoughUnsteady
		x.mu.Unlock()
		if enough {
			return errUnsteady
		}
	}
	return nil
}

// examine has an object patched; after a patch that moved it every replica does so twice more, to
// find out why.
func (x *provingPass) examine(ctx context.Context, o examinee) (observed.Examined, error) {
	m := o.PartialObjectMetadata
	e := observed.Examined{NamespacedName: types.NamespacedName{Namespace: m.Namespace, Name: m.Name}}
	for _, r := range o.by {
		p, err := x.probe(ctx, r, &m)
		if err != nil {
			return e, err
		}
		e.Probes = append(e.Probes, observed.Probe{Replica: r.Lease, Outcome: p.outcome, Detail: p.detail})
		switch p.outcome {
		case observed.Refused:
			return e, nil
		case observed.Moved:
			return e, x.examineAgain(ctx, &e, &m)
		}
	}
	return e, nil
}

func (x *provingPass) examineAgain(ctx context.Context, e *observed.Examined, m *metav1.PartialObjectMetadata) error {
	for _, r := range x.replicas {
		first, err := x.probe(ctx, r, m)
		if err != nil {
			return err
		}
		second, err := x.probe(ctx, r, m)
		if err != nil {
			return err
		}
		e.Again = append(e.Again, observed.Twice{
			Replica: r.Lease, First: first.outcome, Unsteady: second.outcome == observed.Moved && second.on != "" && second.on == first.left,
		})
	}
	return nil
}

// probed is the result of a probe. If the patch was answered, on is the resourceVersion that was patched, and left the
// one that the object had afterwards; both are empty otherwise, also if the answer may be lost.
type probed struct {
	outcome  observed.Outcome
	detail   string
	on, left string
}

func refused(why string) probed { return probed{outcome: observed.Refused, detail: why} }

// probe sends an empty patch to a replica, under the resourceVersion that m has, and brings
// that up to date.
func (x *provingPass) probe(ctx context.Context, r observed.Replica, m *metav1.PartialObjectMetadata) (probed, error) {
	all, err := x.objects(r.Address)
	if err != nil {
		return probed{}, err
	}
	objects := all.Resource(x.resource).Namespace(m.Namespace)
	var subresources []string
	if x.status != "" {
		subresources = append(subresources, x.status)
	}
	for try := range busyTries {
		lost := false // a patch may be done, and its answer lost
		now, err := again(ctx, func() (*metav1.PartialObjectMetadata, error) {
			now, err := x.patch(ctx, objects, m, try > 0 && !lost, subresources...)
			lost = lost || err != nil && passes(err) && !apierrors.IsTooManyRequests(err)
			return now, err
		})
		missing, answer := apierrors.IsNotFound(err), err
		switch {
		case err == nil && now.ResourceVersion == m.ResourceVersion:
			return probed{outcome: observed.Same, on: m.ResourceVersion, left: m.ResourceVersion}, nil
		case err == nil:
			moved := probed{outcome: observed.Moved, on: m.ResourceVersion, left: now.ResourceVersion}
			m.ResourceVersion = now.ResourceVersion
			return moved, nil
		case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
			return refused(err.Error()), nil
		case !missing && !apierrors.IsConflict(err):
			return probed{}, fmt.Errorf("through %s: %w", r.Lease, err)
		}
		fresh, err := again(ctx, func() (*metav1.PartialObjectMetadata, error) { return objects.Get(ctx, m.Name, metav1.GetOptions{}) })
		switch {
		case storageversion.IsGone(err):
			return probed{outcome: observed.Gone}, nil
		case err != nil && !apierrors.IsNotFound(err):
			return probed{}, fmt.Errorf("through %s: %w", r.Lease, err)
		case err == nil && fresh.UID != m.UID:
			return probed{outcome: observed.Gone}, nil
		case err == nil && namesAnother(answer, m.Name): // its namespace is gone, and a webhook asks for the labels of that
			return refused(answer.Error()), nil
		case missing, apierrors.IsNotFound(err): // its handler may lag behind the definition, or have no such subresource yet
			return refused("it does not serve " + path.Join(x.resource.Version, x.resource.Resource, x.status)), nil
		case fresh.ResourceVersion == m.ResourceVersion:
			return refused("it conflicts, though nobody has written it"), nil
		}
		m.ResourceVersion = fresh.ResourceVersion
		if lost { // by that patch, for all that is known
			return probed{outcome: observed.Moved}, nil
		}
	}
	return refused(fmt.Sprintf("others wrote it %d times between its reading and the patch", busyTries)), nil
}

// namesAnother says whether a 404 is for lack of something else than the object of this name.
func namesAnother(err error, name string) bool {
	var status apierrors.APIStatus
	return storageversion.IsGone(err) && errors.As(err, &status) && status.Status().Details.Name != name
}

// patch sends one empty patch when it is its turn. An object that other clients write is read again directly before.
func (x *provingPass) patch(ctx context.Context, objects metadata.ResourceInterface, m *metav1.PartialObjectMetadata, read bool, subresources ...string) (*metav1.PartialObjectMetadata, error) {
	done, err := x.turn(ctx)
	if err != nil {
		return nil, err
	}
	if read {
		if fresh, err := objects.Get(ctx, m.Name, metav1.GetOptions{}); err == nil && fresh.UID == m.UID { // else the patch tells
			m.ResourceVersion = fresh.ResourceVersion
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": m.UID, "resourceVersion": m.ResourceVersion}})
	if err != nil {
		return nil, err // strings always have a form in JSON
	}
	now, err := objects.Patch(ctx, m.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: proveManager}, subresources...)
	done(err)
	return now, err
}

// again calls f until it answers, or answers with an error that does not pass by itself.
func again[T any](ctx context.Context, f func() (T, error)) (answer T, err error) {
	waiting := wait.ExponentialBackoffWithContext(ctx, proveBackoff, func(context.Context) (bool, error) {
		answer, err = f()
		return err == nil || !passes(err), nil
	})
	if ctx.Err() != nil {
		return answer, ctx.Err()
	}
	_ = waiting // it took too long: err says why
	return answer, err
}

// lists lists a resource's objects, again as long as again does.
func lists(ctx context.Context, api migrateapi.API, resource schema.GroupVersionResource) migrateapi.Lister {
	return func(limit int, from string) (*metav1.PartialObjectMetadataList, error) {
		return again(ctx, func() (*metav1.PartialObjectMetadataList, error) { return api.List(ctx, resource, int64(limit), from) })
	}
}

// passes says whether an error may pass by itself.
func passes(err error) bool {
	return apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsInternalError(err) || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown
}
