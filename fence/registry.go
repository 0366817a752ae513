package fence

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
)

// entry is a store that is in use.
type entry struct {
	Store
	// generation orders the stores of a server by when they were built.
	generation int64
	// raw is the store without its cache. It outlives its removal from the registry: the
	// connection is shared, so a call that has been forwarded to it still ends well.
	raw storage.Interface
}

// registry knows the stores in use: usually one for each resource, for a custom resource
// one for each version, and older ones as long as their requests drain.
type registry struct {
	mu         sync.Mutex
	generation int64
	entries    map[schema.GroupResource][]*entry // by generation
	waiters    map[schema.GroupResource][]*waiter
}

type waiter struct {
	match func(*entry) bool
	found chan *entry // has room for the one entry that is sent
}

func newRegistry() *registry {
	return &registry{
		entries: map[schema.GroupResource][]*entry{},
		waiters: map[schema.GroupResource][]*waiter{},
	}
}

func (r *registry) add(s Store, raw storage.Interface) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	e := &entry{Store: s, generation: r.generation, raw: raw}
	gr := s.GroupResource
	r.entries[gr] = append(r.entries[gr], e)
	for _, w := range slices.Clone(r.waiters[gr]) {
		if w.match(e) {
			w.found <- e
			r.forget(gr, w)
		}
	}
	return e
}

func (r *registry) remove(e *entry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	gr := e.GroupResource
	r.entries[gr] = slices.DeleteFunc(r.entries[gr], func(o *entry) bool { return o == e })
	if len(r.entries[gr]) == 0 {
		delete(r.entries, gr)
	}
}

// forget is called with the lock held.
func (r *registry) forget(gr schema.GroupResource, w *waiter) {
	r.waiters[gr] = slices.DeleteFunc(r.waiters[gr], func(o *waiter) bool { return o == w })
	if len(r.waiters[gr]) == 0 {
		delete(r.waiters, gr)
	}
}

func (r *registry) newest(gr schema.GroupResource) (*entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return newest(r.entries[gr])
}

// builtins are the newest stores of the built-in resources.
func (r *registry) builtins() []*entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*entry
	for _, entries := range r.entries {
		if e, ok := newest(entries); ok && e.ServedVersion == "" {
			all = append(all, e)
		}
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.GroupResource.Group, b.GroupResource.Group), cmp.Compare(a.GroupResource.Resource, b.GroupResource.Resource))
	})
	return all
}

// newest picks among the stores of one resource, given by generation: of those in the
// encoding of the last one, the last that serves this encoding, else the last one.
func newest(entries []*entry) (*entry, bool) {
	if len(entries) == 0 {
		return nil, false
	}
	last := entries[len(entries)-1]
	for _, e := range slices.Backward(entries) {
		if e.Encoding == last.Encoding && e.ServedVersion == string(e.Encoding) {
			return e, true
		}
	}
	return last, true
}

// find delivers one entry that matches: the newest there is, else the next that is
// added. The caller calls stop when it does not wait any more.
func (r *registry) find(gr schema.GroupResource, match func(*entry) bool) (found <-chan *entry, stop func()) {
	w := &waiter{match: match, found: make(chan *entry, 1)}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range slices.Backward(r.entries[gr]) {
		if match(e) {
			w.found <- e
			return w.found, func() {}
		}
	}
	r.waiters[gr] = append(r.waiters[gr], w)
	return w.found, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.forget(gr, w)
	}
}
