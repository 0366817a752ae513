// Package linear checks whether clients' answers are linearizable: whether each object looked to all clients as if one
// call had happened after the other, each between its beginning and its end.
package linear

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// The verbs of calls.
const (
	Create = "create"
	Update = "update"
	Delete = "delete"
	Get    = "get"
)

// Call is a call about one object. Value is the value with which an object is created, or to which it is updated.
type Call struct{ Verb, Name, Value string }

// Answer is the answer to a call.
type Answer struct {
	// Unknown says that the client does not know whether the call took effect, because the client or the server was
	// killed.
	Unknown bool
	// Refused says that the object existed already, or did not exist.
	Refused bool
	// Value is the value read, or the value from which an update was computed; "" if there is no object.
	Value string
}

// Listed returns the gets to which a list amounts: one for each name, with the value of the listed object.
func Listed(names []string, values map[string]string) map[Call]Answer {
	answers := map[Call]Answer{}
	for _, name := range names {
		answers[Call{Verb: Get, Name: name}] = Answer{Value: values[name]}
	}
	return answers
}

// register is the model of one object as its clients see it. The state is the object's value, "" while it does not
// exist.
var register = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byName := map[string][]porcupine.Operation{}
		for _, o := range history {
			name := o.Input.(Call).Name
			byName[name] = append(byName[name], o)
		}
		return slices.Collect(maps.Values(byName))
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		now, in, out := state.(string), input.(Call), output.(Answer)
		after := step(now, in, out)
		if out.Unknown && !slices.Contains(after, any(now)) {
			after = append(after, now)
		}
		return after
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v %+v", input, output) },
}

// step returns the values that an object may have after a call; none if the answer is impossible.
func step(now string, in Call, out Answer) []any {
	exists := now != ""
	var next string
	switch in.Verb {
	case Get:
		if out.Unknown || out.Value == now {
			return []any{now}
		}
		return nil
	case Create:
		exists, next = !exists, in.Value
	case Update:
		next = in.Value
	}
	switch {
	case out.Refused && exists, !out.Refused && !exists && !out.Unknown:
		return nil
	case out.Refused, !exists:
		return []any{now}
	case !out.Unknown && in.Verb == Update && out.Value != now:
		return nil // the update was computed from another value
	}
	return []any{next}
}

// History records calls; NewHistory makes one.
type History struct {
	began time.Time

	mu    sync.Mutex
	calls []porcupine.Operation
}

// NewHistory returns an empty history.
func NewHistory() *History { return &History{began: time.Now()} }

// Now is the time since the history began, to be given to Record as the beginning of a request.
func (h *History) Now() time.Duration { return time.Since(h.began) }

// Record adds the answers to one request, one for each object that it was about. began is Now before the request.
func (h *History) Record(began time.Duration, answers map[Call]Answer) {
	h.record(began, h.Now(), answers)
}

func (h *History) record(began, ended time.Duration, answers map[Call]Answer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for in, out := range answers {
		o := porcupine.Operation{ClientId: len(h.calls), Input: in, Call: int64(began), Output: out, Return: int64(ended)}
		if out.Unknown {
			o.Return = math.MaxInt64
		}
		h.calls = append(h.calls, o)
	}
}

// Len returns how many calls there are.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.calls)
}

// Unknown returns how many calls have an unknown outcome.
func (h *History) Unknown() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, o := range h.calls {
		if o.Output.(Answer).Unknown {
			n++
		}
	}
	return n
}

// Check returns an error if the history is not linearizable, or if the check takes longer than within.
func (h *History) Check(within time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if result, _ := porcupine.CheckOperationsVerbose(register.ToModel(), h.calls, within); result != porcupine.Ok {
		return fmt.Errorf("%d calls are not linearizable: %v", len(h.calls), result)
	}
	return nil
}
