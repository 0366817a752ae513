package turns

import "slices"

// rota is a queue of turns by the name of its parts, or those of a single part in their order. Parts that have turns
// give one each before any gives its next.
type rota struct {
	names []string // of the parts, the next one first
	parts map[string]*rota
	turns []*turn
}

// part returns the part of a path, nil if there is none.
func (r *rota) part(path ...string) *rota {
	for _, name := range path {
		if r = r.parts[name]; r == nil {
			return nil
		}
	}
	return r
}

// push adds a turn to the part of a path, unless this many are there.
func (r *rota) push(t *turn, most int, path ...string) bool {
	if part := r.part(path...); part != nil && len(part.turns) >= most || most <= 0 {
		return false
	}
	for _, name := range path {
		part := r.parts[name]
		if part == nil {
			if r.parts == nil {
				r.parts = map[string]*rota{}
			}
			part = &rota{}
			r.parts[name] = part
			r.names = append(r.names, name)
		}
		r = part
	}
	r.turns = append(r.turns, t)
	return true
}

// remove takes a turn out of the part of a path.
func (r *rota) remove(t *turn, path ...string) {
	if part := r.part(path...); part != nil {
		part.turns = slices.DeleteFunc(part.turns, func(other *turn) bool { return other == t })
	}
}

// pop takes the next turn out that may begin, nil if there is none. Behind the first turn of a part it looks at none.
func (r *rota) pop(may func(*turn) bool) *turn {
	for i := 0; i < len(r.names); {
		name := r.names[i]
		part := r.parts[name]
		next := part.pop(may)
		empty := len(part.names)+len(part.turns) == 0
		switch {
		case next == nil && !empty:
			i++
			continue
		case empty:
			delete(r.parts, name)
		default:
			r.names = append(r.names, name)
		}
		if i == 0 {
			r.names = r.names[1:]
		} else {
			r.names = slices.Delete(r.names, i, i+1)
		}
		if next != nil {
			return next
		}
	}
	if len(r.turns) == 0 || !may(r.turns[0]) {
		return nil
	}
	next := r.turns[0]
	r.turns = r.turns[1:]
	return next
}
