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
}

func newRegistry() *registry {
	return &registry{entries: map[schema.GroupResource][]*entry{}}
}

func (r *registry) add(s Store, raw storage.Interface) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.generation++
	e := &entry{Store: s, generation: r.generation, raw: raw}
	r.entries[s.GroupResource] = append(r.entries[s.GroupResource], e)
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

// newer returns the newest store that was built later than e for the same version; nil if there is none.
func (r *registry) newer(e *entry) *entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range slices.Backward(r.entries[e.GroupResource]) {
		if o.generation > e.generation && o.ServedVersion == e.ServedVersion {
			return o
		}
	}
	return nil
}
