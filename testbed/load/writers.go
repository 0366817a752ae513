package load

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// Endpoint is one server through which objects are written.
type Endpoint struct {
	// Name is the server's name in WriteAnnotation.
	Name   string
	Client dynamic.Interface
}

// Config says what to write.
type Config struct {
	Endpoints []Endpoint
	Resources []Resource
	// Prefix begins the names of the objects; "load" by default.
	Prefix string
	// Workers is how many workers there are per endpoint and resource; 2 by default.
	Workers int
	// Objects is how many objects each worker has for itself; 5 by default. Besides, all workers of a resource
	// write to one shared object.
	Objects int
	// Pause is between two writes of a worker; 20 ms by default.
	Pause time.Duration
	// Timeout ends one write; 30 s by default.
	Timeout time.Duration
}

func (c Config) withDefaults() Config {
	c.Prefix = cmp.Or(c.Prefix, "load")
	c.Workers = cmp.Or(c.Workers, 2)
	c.Objects = cmp.Or(c.Objects, 5)
	c.Pause = cmp.Or(c.Pause, 20*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 30*time.Second)
	return c
}

// Load is a running load.
type Load struct {
	config Config
	cancel context.CancelFunc
	done   sync.WaitGroup
	serial atomic.Int64

	mu     sync.Mutex
	report Report
	acked  map[string]int // by server
}

// Start begins to write. It returns at once.
func Start(c Config) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{config: c.withDefaults(), cancel: cancel, acked: map[string]int{}}
	for _, endpoint := range c.Endpoints {
		for r, resource := range c.Resources {
			for n := range l.config.Workers {
				w := &worker{
					load: l, endpoint: endpoint, resource: resource,
					name: fmt.Sprintf("%s-%s-%d-%d", l.config.Prefix, endpoint.Name, r, n),
				}
				own := make([]*unstructured.Unstructured, l.config.Objects)
				l.done.Go(func() {
					Closed(ctx, 1, l.config.Pause, func(_, n int) error { w.turn(own, n+1); return nil })
				})
			}
		}
	}
	return l
}

// Acked counts the writes that the server has acknowledged.
func (l *Load) Acked(server string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked[server]
}

// Stop ends the load and returns its report. Writes under way end first.
func (l *Load) Stop() Report {
	l.cancel()
	l.done.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report
}

func (l *Load) ack(a Ack) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Acks = append(l.report.Acks, a)
	l.acked[a.Server]++
	l.report.LongestWrite = max(l.report.LongestWrite, a.At.Sub(a.Started))
}

func (l *Load) fail(f Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Failures = append(l.report.Failures, f)
}

func (l *Load) conflict() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.report.Conflicts++
}

// worker writes one object after the other, one write at a time.
type worker struct {
	load     *Load
	endpoint Endpoint
	resource Resource
	name     string
}

func (w *worker) client() dynamic.ResourceInterface { return w.resource.through(w.endpoint) }

// turn makes one write: to one of the worker's own objects, in turns, or to the object that all workers share.
func (w *worker) turn(own []*unstructured.Unstructured, turn int) {
	i := turn % len(own)
	name := fmt.Sprintf("%s-%d", w.name, i)
	switch {
	case turn%7 == 0:
		w.patch(w.load.config.Prefix+"-shared", true)
	case own[i] == nil:
		own[i] = w.create(name)
	case turn%2 == 0:
		own[i] = w.patch(name, false)
	default:
		own[i] = w.update(own[i])
	}
}

// next returns the ID of a new write and the text it stores.
func (w *worker) next() (id, text string) {
	n := w.load.serial.Add(1)
	return fmt.Sprintf("%s/%d", w.endpoint.Name, n), fmt.Sprintf("text %d", n)
}

func (w *worker) create(name string) *unstructured.Unstructured {
	id, text := w.next()
	object := w.resource.object(name, id, text)
	return w.do(id, name, "", func(ctx context.Context) (*unstructured.Unstructured, error) {
		return w.client().Create(ctx, object, metav1.CreateOptions{})
	})
}

func (w *worker) update(old *unstructured.Unstructured) *unstructured.Unstructured {
	id, text := w.next()
	object := w.resource.object(old.GetName(), id, text)
	object.SetResourceVersion(old.GetResourceVersion())
	object.SetUID(old.GetUID())
	return w.do(id, old.GetName(), old.GetResourceVersion(), func(ctx context.Context) (*unstructured.Unstructured, error) {
		return w.client().Update(ctx, object, metav1.UpdateOptions{})
	})
}

// patch changes an object whatever its resourceVersion is; a shared object is created if it is missing.
func (w *worker) patch(name string, shared bool) *unstructured.Unstructured {
	id, text := w.next()
	patch, err := json.Marshal(w.resource.patch(id, text))
	if err != nil {
		panic(err) // a map of strings always marshals
	}
	return w.do(id, name, "", func(ctx context.Context) (*unstructured.Unstructured, error) {
		u, err := w.client().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if !shared || !apierrors.IsNotFound(err) {
			return u, err
		}
		u, err = w.client().Create(ctx, w.resource.object(name, id, text), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return w.client().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return u, err
	})
}

// do makes one write and records it. It returns the current object; nil if the object has to be created (again).
func (w *worker) do(id, name, resourceVersion string, write func(context.Context) (*unstructured.Unstructured, error)) *unstructured.Unstructured {
	ctx, cancel := context.WithTimeout(context.Background(), w.load.config.Timeout)
	defer cancel()
	started := time.Now()
	object, err := write(ctx)
	if err == nil {
		w.load.ack(Ack{Write: id, ResourceVersion: object.GetResourceVersion(), Server: w.endpoint.Name, Started: started, At: time.Now()})
		return object
	}
	f := Failure{Write: id, Server: w.endpoint.Name, Err: err, Started: started, At: time.Now()}
	now, readErr := w.read(name)
	if readErr != nil && !apierrors.IsNotFound(readErr) && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) {
		// The object cannot be read, so nobody knows whether the error is true.
		f.Err = fmt.Errorf("read after %s: %w", apierrors.ReasonForError(err), readErr)
	}
	f.Untrue = untrue(err, now, readErr, id, resourceVersion)
	if readErr == nil && f.Untrue == "" && (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) {
		w.load.conflict()
		return now
	}
	w.load.fail(f)
	if readErr != nil {
		return nil
	}
	return now
}

// readAgain is the time between two attempts to read an object.
const readAgain = 100 * time.Millisecond

// read reads an object, and tries again while the server fails.
func (w *worker) read(name string) (now *unstructured.Unstructured, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.load.config.Timeout)
	defer cancel()
	for {
		now, err = w.client().Get(ctx, name, metav1.GetOptions{})
		if err == nil || apierrors.IsNotFound(err) || Pause(ctx, readAgain) != nil {
			return now, err
		}
	}
}

// untrue says how the object contradicts an error about it; "" if it does not.
func untrue(err error, now *unstructured.Unstructured, readErr error, id, resourceVersion string) string {
	exists, absent := readErr == nil, apierrors.IsNotFound(readErr)
	switch {
	case apierrors.IsConflict(err) && exists && now.GetResourceVersion() == resourceVersion:
		return "the object is still at " + resourceVersion
	case apierrors.IsConflict(err) && absent, apierrors.IsAlreadyExists(err) && absent:
		return "there is no such object"
	case apierrors.IsAlreadyExists(err) && exists && now.GetAnnotations()[WriteAnnotation] == id:
		return "this very write made the object, at " + now.GetResourceVersion()
	case apierrors.IsNotFound(err) && exists:
		return "the object exists, at " + now.GetResourceVersion()
	default:
		return ""
	}
}
