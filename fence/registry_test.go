package fence

import "k8s.io/apimachinery/pkg/runtime/schema"

// waiting returns how many calls wait for a store of the resource.
func (r *registry) waiting(gr schema.GroupResource) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiters[gr])
}
