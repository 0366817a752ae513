package workload

import (
	"fmt"
	"slices"
	"sync"
)

// Mark is the trace that a write leaves in an object, so that a reader knows which write
// it shows. Counter grows by one with each logical write of an object, Attempt is unique
// to one request, Via names the server that the request was sent to.
type Mark struct {
	Counter int64
	Attempt string
	Via     string
}

// journal remembers which writes of each object were acknowledged and which may have
// been written although nobody said so.
type journal struct {
	mu           sync.Mutex
	accounts     map[ObjectKey]*account
	acknowledged int64
	refused      map[string]bool // attempts that a server said it did not write
	foreign      []string        // writes that were seen although nobody can have made them
}

type account struct {
	// counter is the highest that was acknowledged, 0 for none.
	counter int64
	// possible has the attempts that the stored object may show, with their counters:
	// acknowledged ones and doubtful ones, none below counter.
	possible map[string]int64
	// filler is content that no write changes.
	filler string
}

func newJournal() *journal {
	return &journal{accounts: map[ObjectKey]*account{}, refused: map[string]bool{}}
}

// record notes what became of an attempt.
func (l *journal) record(key ObjectKey, filler string, m Mark, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.unwritten() {
		l.refused[m.Attempt] = true
		return
	}
	a := l.accounts[key]
	if a == nil {
		a = &account{possible: map[string]int64{}, filler: filler}
		l.accounts[key] = a
	}
	if m.Counter >= a.counter {
		a.possible[m.Attempt] = m.Counter
	}
	if o != Acknowledged {
		return
	}
	l.acknowledged++
	if m.Counter > a.counter {
		a.counter = m.Counter
		for attempt, counter := range a.possible {
			if counter < a.counter {
				delete(a.possible, attempt)
			}
		}
	}
}

// confirm notes that a client, in doubt whether its write happened, has read this mark.
func (l *journal) confirm(key ObjectKey, filler string, m Mark) {
	l.mu.Lock()
	a := l.accounts[key]
	possible := false
	if a != nil {
		_, possible = a.possible[m.Attempt]
	}
	if !possible {
		l.foreign = append(l.foreign, l.describe(key, m))
	}
	l.mu.Unlock()
	l.record(key, filler, m, Acknowledged)
}

// total returns how many writes were acknowledged.
func (l *journal) total() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acknowledged
}

// Stored is an object as it is read back at the end.
type Stored struct {
	mark   Mark
	filler string
}

// check is that of Record.
func (l *journal) check(found map[ObjectKey]Stored) (lost, foreign []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	foreign = slices.Clone(l.foreign)
	for key, a := range l.accounts {
		s, ok := found[key]
		_, possible := a.possible[s.mark.Attempt]
		switch {
		case !ok && a.counter == 0:
		case !ok:
			lost = append(lost, fmt.Sprintf("%s: gone, write %d was acknowledged", key, a.counter))
		case s.mark.Counter < a.counter:
			lost = append(lost, fmt.Sprintf("%s: shows write %d, write %d was acknowledged", key, s.mark.Counter, a.counter))
		case s.filler != a.filler:
			lost = append(lost, fmt.Sprintf("%s: its content has changed", key))
		case !possible:
			foreign = append(foreign, l.describe(key, s.mark))
		}
	}
	for key, s := range found {
		if l.accounts[key] == nil {
			foreign = append(foreign, l.describe(key, s.mark))
		}
	}
	slices.Sort(lost)
	slices.Sort(foreign)
	return lost, foreign
}

func (l *journal) describe(key ObjectKey, m Mark) string {
	if l.refused[m.Attempt] {
		return fmt.Sprintf("%s: shows write %d, attempt %s, which %s refused", key, m.Counter, m.Attempt, m.Via)
	}
	return fmt.Sprintf("%s: shows write %d, attempt %q, which no client made", key, m.Counter, m.Attempt)
}
