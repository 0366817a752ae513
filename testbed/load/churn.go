package load

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/concord-dev/concord/api/storageversion"
)

// ChurnConfig says what to change.
type ChurnConfig struct {
	// Endpoints are the servers through which objects are written, in turns.
	Endpoints []Endpoint
	Resource  Resource
	// Every n means that only every n-th object is changed; 1 by default. The other objects must stay as they are.
	Every int
	// Workers is how many workers write at a time; 4 by default.
	Workers int
	// Pause is between two writes of a worker; 20 ms by default.
	Pause time.Duration
	// Timeout ends one request; 5 s by default. A write without an outcome is made again
	// until it has one, for at most Patience, 90 s by default.
	Timeout, Patience time.Duration
	Seed              uint64
}

func (c ChurnConfig) withDefaults() ChurnConfig {
	c.Every = cmp.Or(c.Every, 1)
	c.Workers = cmp.Or(c.Workers, 4)
	c.Pause = cmp.Or(c.Pause, 20*time.Millisecond)
	c.Timeout = cmp.Or(c.Timeout, 5*time.Second)
	c.Patience = cmp.Or(c.Patience, 90*time.Second)
	return c
}

// Churn updates, deletes and creates the objects of a resource without end, each object
// by one worker only, and knows at any time what each has to look like. Every write is
// conditional on what the worker knows, and made again until its outcome is certain.
type Churn struct {
	config ChurnConfig
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	serial int
	result ChurnResult
}

// ChurnResult is the result of a churn.
type ChurnResult struct {
	// Want has the hash (Hash) of every object that has to exist, by "namespace/name", including objects that were
	// never changed.
	Want map[string]string
	// Updates, Deletes and Creates count the writes that have taken place.
	Updates, Deletes, Creates int
	// Again counts attempts that had to be repeated, for example because a migration had rewritten the object.
	Again int
	// Wrong says which objects were found to be neither as they were before a write nor as
	// after it, or for which a write had no outcome in time.
	Wrong []string
}

// StartChurn reads all objects of the resource through the first endpoint and begins to
// change them.
func StartChurn(ctx context.Context, c ChurnConfig) (*Churn, error) {
	churn := &Churn{config: c.withDefaults(), result: ChurnResult{Want: map[string]string{}}}
	list, err := c.Resource.through(c.Endpoints[0]).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", c.Resource.Resource, err)
	}
	workers := make([]*churner, churn.config.Workers)
	for i := range workers {
		workers[i] = &churner{churn: churn, random: rand.New(rand.NewPCG(c.Seed, uint64(i)))}
	}
	for i := range list.Items {
		object := &list.Items[i]
		churn.result.Want[nameOf(object)] = Hash(object.Object)
		if i%churn.config.Every > 0 {
			continue
		}
		w := workers[i/churn.config.Every%len(workers)]
		w.objects = append(w.objects, &churned{name: object.GetName(), now: object})
	}
	running, cancel := context.WithCancel(context.Background())
	churn.cancel = cancel
	for _, w := range workers {
		if len(w.objects) > 0 {
			churn.done.Go(func() {
				Closed(running, 1, churn.config.Pause, func(int, int) error { w.change(w.next()); return nil })
			})
		}
	}
	return churn, nil
}

// Stop ends the churn when the writes under way have an outcome.
func (c *Churn) Stop() ChurnResult {
	c.cancel()
	c.done.Wait()
	return c.Result()
}

// Result is the result of the churn so far.
func (c *Churn) Result() ChurnResult {
	c.mu.Lock()
	defer c.mu.Unlock()
	result := c.result
	result.Want, result.Wrong = maps.Clone(result.Want), slices.Clone(result.Wrong)
	return result
}

// Writes counts the writes that have taken place.
func (r ChurnResult) Writes() int { return r.Updates + r.Deletes + r.Creates }

// Differ says which of the objects found, by "namespace/name" and with their hashes, are
// not as they have to be.
func (r ChurnResult) Differ(found map[string]string) []string {
	differences := slices.Clone(r.Wrong)
	for _, name := range slices.Sorted(maps.Keys(r.Want)) {
		if hash, ok := found[name]; !ok {
			differences = append(differences, name+" is lost")
		} else if hash != r.Want[name] {
			differences = append(differences, name+" has another content")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if _, ok := r.Want[name]; !ok {
			differences = append(differences, name+" is back, or nobody made it")
		}
	}
	return differences
}

func nameOf(u *unstructured.Unstructured) string { return u.GetNamespace() + "/" + u.GetName() }

func (c *Churn) note(change func(*ChurnResult)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(&c.result)
}

// churned is one object and what its worker knows of it.
type churned struct {
	name string
	now  *unstructured.Unstructured // nil: it does not exist
	// kept says that the object is not deleted any more: a request to create it may still be under way and would
	// rightly bring it back.
	kept bool
}

// churner is a worker. It makes one write at a time.
type churner struct {
	churn   *Churn
	random  *rand.Rand
	objects []*churned
	turn    int
}

// next chooses the object to change. One in deleteEvery writes recreates a deleted object, as long as there is any:
// with many objects and few writes nothing would be created otherwise.
func (w *churner) next() *churned {
	if w.random.IntN(deleteEvery) == 0 {
		gone := slices.DeleteFunc(slices.Clone(w.objects), func(o *churned) bool { return o.now != nil })
		if len(gone) > 0 {
			return gone[w.random.IntN(len(gone))]
		}
	}
	return w.objects[w.random.IntN(len(w.objects))]
}

// endpoint returns the endpoints in turns.
func (w *churner) endpoint() Endpoint {
	w.turn++
	endpoints := w.churn.config.Endpoints
	return endpoints[w.turn%len(endpoints)]
}

// deleteEvery is how many writes to existing objects there are to one deletion.
const deleteEvery = 4

// verb is the kind of a write.
type verb string

const (
	create verb = "create"
	update verb = "update"
	remove verb = "delete"
)

// change makes one write to an object, and repeats it until its outcome is known.
func (w *churner) change(o *churned) {
	v := update
	switch {
	case o.now == nil:
		v = create
	case !o.kept && w.random.IntN(deleteEvery) == 0:
		v = remove
	}
	var tried []string
	for began := time.Now(); ; {
		endpoint := w.endpoint()
		tried = append(tried, w.churn.id(endpoint))
		err := w.write(endpoint, o, v, tried)
		if err != nil {
			err = w.outcome(o, v, tried, err)
		}
		if err == nil || errors.Is(err, errWrong) || time.Since(began) > w.churn.config.Patience {
			w.churn.ended(o, v, err)
			return
		}
		w.churn.note(func(r *ChurnResult) { r.Again++ })
		_ = Pause(context.Background(), w.churn.config.Pause)
	}
}

// id returns the ID of a new write.
func (c *Churn) id(e Endpoint) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serial++
	return fmt.Sprintf("%s/churn-%s-%d", e.Name, c.config.Resource.Resource, c.serial)
}

// ended records the result of a write.
func (c *Churn) ended(o *churned, v verb, err error) {
	c.note(func(r *ChurnResult) {
		switch {
		case err != nil:
			r.Wrong = append(r.Wrong, fmt.Sprintf("%s %s: %v", v, o.name, err))
		case v == create:
			r.Creates++
		case v == update:
			r.Updates++
		case v == remove:
			r.Deletes++
		}
		key := c.config.Resource.Namespace + "/" + o.name
		if o.now == nil {
			delete(r.Want, key)
		} else {
			r.Want[key] = Hash(o.now.Object)
		}
	})
}

// write makes one attempt of a write; its ID is the last one in tried. It returns nil if the write has taken place.
func (w *churner) write(e Endpoint, o *churned, v verb, tried []string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), w.churn.config.Timeout)
	defer cancel()
	client := w.churn.config.Resource.through(e)
	now := o.now
	if v == remove {
		uid, resourceVersion := now.GetUID(), now.GetResourceVersion()
		err = client.Delete(ctx, o.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &resourceVersion}})
		now = nil
	} else {
		id := tried[len(tried)-1]
		object := w.churn.config.Resource.object(o.name, id, fmt.Sprint(v, " by ", id))
		if v == create {
			now, err = client.Create(ctx, object, metav1.CreateOptions{})
			o.kept = o.kept || err != nil && !apierrors.IsServiceUnavailable(err)
		} else {
			object.SetUID(now.GetUID())
			object.SetResourceVersion(now.GetResourceVersion())
			now, err = client.Update(ctx, object, metav1.UpdateOptions{})
		}
	}
	if err == nil {
		o.now = now
	}
	return err
}

// errWrong says that an object is neither as before nor as after a write.
var errWrong = errors.New("it is neither as before the write nor as after it")

// outcome finds out, after an error, whether the write took effect nevertheless; then it returns nil. An error other
// than errWrong means that the write has to be repeated on the current object.
func (w *churner) outcome(o *churned, v verb, tried []string, failed error) error {
	ctx, cancel := context.WithTimeout(context.Background(), w.churn.config.Timeout)
	defer cancel()
	now, err := w.churn.config.Resource.through(w.endpoint()).Get(ctx, o.name, metav1.GetOptions{})
	if storageversion.IsGone(err) {
		now, err = nil, nil
	}
	switch {
	case err != nil:
		return errors.Join(failed, err)
	case v == remove && now == nil,
		v != remove && now != nil && slices.Contains(tried, now.GetAnnotations()[WriteAnnotation]):
		o.now = now
		return nil
	case now == nil && o.now == nil:
		return failed
	case now != nil && o.now != nil && Hash(now.Object) == Hash(o.now.Object):
		o.now = now // it may have been rewritten
		return failed
	}
	return fmt.Errorf("%w (after: %w): it was %v and is %v", errWrong, failed, o.now, now)
}
