package script

import "slices"

// Reduce is delta debugging: ever smaller pieces are left out as long as the script fails
// without them.
func Reduce(script []Event, budget int, fails func([]Event) bool) []Event {
	for size := max(len(script)/2, 1); budget > 0; {
		removed := false
		for from := 0; from+size <= len(script) && budget > 0; budget-- {
			if candidate := slices.Delete(slices.Clone(script), from, from+size); fails(candidate) {
				script, removed = candidate, true
			} else {
				from += size
			}
		}
		switch {
		case size > 1:
			size /= 2
		case !removed:
			return script
		}
	}
	return script
}
