package load

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Mark is the trace that a write leaves in an object, so that a reader knows which write
// it shows. Counter grows by one with each logical write of an object, Attempt is unique
// to one request, Via names the server that the request was sent to.
type Mark struct {
	Counter int64
	Attempt string
	Via     string
}

// Key names one object.
type Key struct {
	Resource schema.GroupResource
	Name     string
}

func (k Key) String() string { return k.Resource.Resource + "/" + k.Name }

// Journal is a record that clients share: which writes of each object were acknowledged, which may have been written
// without an answer, which failed, and how long writes took.
type Journal struct {
	mu           sync.Mutex
	accounts     map[Key]*account
	acknowledged int64
	refused      map[string]bool // attempts that a server said it did not write
	foreign      []string        // writes that were read although no client's request can have made them
	failures     []Failure
	stalls       map[string]time.Duration // the longest write begun in each step
	step         string
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

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{accounts: map[Key]*account{}, refused: map[string]bool{}, stalls: map[string]time.Duration{}}
}

// Enter begins a step.
func (l *Journal) Enter(step string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.step = step
}

// Step returns the current step.
func (l *Journal) Step() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.step
}

// Fail notes a failed attempt.
func (l *Journal) Fail(f Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures = append(l.failures, f)
}

// Took notes how long a write took that was begun in a step.
func (l *Journal) Took(step string, d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalls[step] = max(l.stalls[step], d)
}

// Failures returns the failed attempts, and the longest write begun in each step.
func (l *Journal) Failures() ([]Failure, map[string]time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failures), maps.Clone(l.stalls)
}

// Counts returns the numbers of acknowledged writes and of failed attempts, and the longest write.
func (l *Journal) Counts() (acknowledged int64, failures int, longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range l.stalls {
		longest = max(longest, d)
	}
	return l.acknowledged, len(l.failures), longest
}

// Note records the outcome of an attempt to write.
func (l *Journal) Note(key Key, filler string, m Mark, o Outcome) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.Unwritten() {
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

// Confirm notes that a client, in doubt whether its write happened, has read this mark.
func (l *Journal) Confirm(key Key, filler string, m Mark) {
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
	l.Note(key, filler, m, Acknowledged)
}

// Stored is an object as it is read back at the end.
type Stored struct {
	Mark Mark
	// Filler is content that no write changes.
	Filler string
}

// Check compares the stored objects with the answers that clients got. lost names objects that lack an acknowledged
// write or whose content changed, foreign those that show a write which a server refused or no client sent.
func (l *Journal) Check(found map[Key]Stored) (lost, foreign []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	foreign = slices.Clone(l.foreign)
	for key, a := range l.accounts {
		s, ok := found[key]
		_, possible := a.possible[s.Mark.Attempt]
		switch {
		case !ok && a.counter == 0:
		case !ok:
			lost = append(lost, fmt.Sprintf("%s: gone, write %d was acknowledged", key, a.counter))
		case s.Mark.Counter < a.counter:
			lost = append(lost, fmt.Sprintf("%s: shows write %d, write %d was acknowledged", key, s.Mark.Counter, a.counter))
		case s.Filler != a.filler:
			lost = append(lost, fmt.Sprintf("%s: its content has changed", key))
		case !possible:
			foreign = append(foreign, l.describe(key, s.Mark))
		}
	}
	for key, s := range found {
		if l.accounts[key] == nil {
			foreign = append(foreign, l.describe(key, s.Mark))
		}
	}
	slices.Sort(lost)
	slices.Sort(foreign)
	return lost, foreign
}

func (l *Journal) describe(key Key, m Mark) string {
	if l.refused[m.Attempt] {
		return fmt.Sprintf("%s: shows write %d, attempt %s, which %s refused", key, m.Counter, m.Attempt, m.Via)
	}
	return fmt.Sprintf("%s: shows write %d, attempt %q, which no client made", key, m.Counter, m.Attempt)
}
