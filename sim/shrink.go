package sim

// Shrink returns a script that violates the same invariant and has no event that can be
// left out, by delta debugging: ever smaller pieces are left out as long as the violation
// stays. budget bounds the number of replays.
func Shrink(config Config, script []Event, invariant string, budget int) []Event {
	fails := func(candidate []Event) bool {
		budget--
		run := Replay(config, candidate, nil)
		return run.Violation != nil && run.Violation.Invariant == invariant
	}
	for size := len(script) / 2; size > 0; {
		removed := false
		for from := 0; from+size <= len(script) && budget > 0; {
			candidate := append(append([]Event{}, script[:from]...), script[from+size:]...)
			if fails(candidate) {
				script, removed = candidate, true
				continue
			}
			from += size
		}
		if budget <= 0 {
			return script
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return script
}
