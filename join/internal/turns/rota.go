package turns

// rota is a queue of turns by the name of its parts, or those of a single part in their order. Parts that have turns
// give one each before any gives its next.
type rota struct {
	names []string // of the parts, the next one first
	parts map[string]*rota
	turns []*turn
}

// push adds a turn to the part of a name, and there to the part of the next name. It refuses one where this many are.
func (r *rota) push(t *turn, most int, path ...string) bool {
	if len(path) == 0 {
		if len(r.turns) >= most {
			return false
		}
		r.turns = append(r.turns, t)
		return true
	}
	part := r.parts[path[0]]
	if part == nil {
		if r.parts == nil {
			r.parts = map[string]*rota{}
		}
		part = &rota{}
		r.parts[path[0]] = part
		r.names = append(r.names, path[0])
	}
	return part.push(t, most, path[1:]...)
}

// pop takes the next turn out of a rota that is not empty.
func (r *rota) pop() *turn {
	if len(r.names) == 0 {
		next := r.turns[0]
		r.turns = r.turns[1:]
		return next
	}
	name := r.names[0]
	r.names = r.names[1:]
	part := r.parts[name]
	next := part.pop()
	if len(part.names)+len(part.turns) == 0 {
		delete(r.parts, name)
	} else {
		r.names = append(r.names, name)
	}
	return next
}
