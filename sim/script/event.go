// Package script has what happens in a simulated cluster, as values and as text: servers start
// and crash, their calls arrive or are lost, watches lag, administrators intervene. A script is a
// list of such events, one a line, and a story is a script with the cluster's configuration.
package script

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Verb is the action of an Event.
type Verb uint8

// The verbs, with the form of their events in a script.
const (
	Start    Verb = iota // start s1 r0: a server of a release starts where none runs; start s1 r0 off: with its gate off; start s1 r0 stock: without Concord
	Stop                 // stop s1: it is asked to stop
	Kill                 // kill s1
	Pause                // pause s1: nothing of it runs; requests that it has sent may arrive
	Resume               // resume s1
	Cut                  // cut s1: nothing that it sends reaches etcd; cut s1 host: nothing the host
	Heal                 // heal s1
	Jump                 // jump s1 10s: its clock is set forward, or back
	Drift                // drift s1 1.02: its clock runs faster, or slower
	Lead                 // lead s1: it believes that it leads
	Unlead               // unlead s1
	Etcd                 // etcd ok|down|full|slow: full takes no puts, slow takes its time for each
	Run                  // run s1/report: a task begins and runs to its first call
	Do                   // do s1/report: the call arrives, is answered, and the task goes on to its next
	Apply                // apply s1/report: the call arrives and is not answered yet
	Lose                 // lose s1/report: the task hears that there is no answer; the call may arrive later; lose s1/write1 unavailable: as etcd's client says it
	Fail                 // fail s1/report: the call is lost, and the task hears so
	Absent               // absent s1/report: the answer is a 404 that does not come from an API server
	Finish               // finish s1/report: the task runs to its end, undisturbed
	Late                 // late s1/report: a call whose sender does not wait any more arrives
	See                  // see s1 leases: a watch delivers its next event
	Relist               // relist s1 leases: a watch has lost its events and lists
	Tick                 // tick 1s: time passes
	Pass                 // pass 16s: time passes in which servers renew and observe Leases, and do nothing else
	Define               // define v1: the custom resource is defined, or stored in another version
	Undefine             // undefine: its definition is asked to go
	Purge                // purge: the finalizer deletes its objects, and then the definition
	Admin                // admin delete state things: an administrator's deed
	Settle               // settle: faults end, and everything comes to rest
	Key                  // key s1 b: it loads a configuration by which it encrypts with key b; - is none
	Round                // round: every server that can does all that is due, one after the other and undisturbed, and a second passes
	Verbs                // how many there are
)

var verbName = [Verbs]string{
	"start", "stop", "kill", "pause", "resume", "cut", "heal", "jump", "drift", "lead", "unlead", "etcd",
	"run", "do", "apply", "lose", "fail", "absent", "finish", "late", "see", "relist", "tick", "pass",
	"define", "undefine", "purge", "admin", "settle", "key", "round",
}

// Event is one step of a world. An event that begins with "host" is one of the world's host.
type Event struct {
	Host bool
	Do   Verb
	Role Role
	See  Stream
	Slot int
	What string
	For  time.Duration
}

// OnTask says whether an event of the verb is of a task.
func (v Verb) OnTask() bool { return v >= Run && v <= Late }

func (v Verb) onStream() bool { return v == See || v == Relist }

// OnSlot says whether an event of the verb is of a server, and of none of its tasks.
func (v Verb) OnSlot() bool { return v <= Unlead || v.onStream() || v == Key }

func (v Verb) timed() bool { return v == Jump || v == Tick || v == Pass }

// hostWord begins an event of the host.
const hostWord = "host"

// String prints the event as scripts have it. ParseEvent reads it.
func (e Event) String() string {
	words := []string{verbName[e.Do]}
	if e.Host {
		words = []string{hostWord, verbName[e.Do]}
	}
	switch {
	case e.Do.OnTask():
		words = append(words, SlotName(e.Slot)+"/"+e.Role.String())
	case e.Do.OnSlot():
		words = append(words, SlotName(e.Slot))
	}
	if e.Do.onStream() {
		words = append(words, streamName[e.See])
	}
	if e.Do.timed() {
		words = append(words, e.For.String())
	}
	if e.What != "" {
		words = append(words, e.What)
	}
	return strings.Join(words, " ")
}

// ParseEvent reads an event as String prints it.
func ParseEvent(line string) (Event, error) {
	words := strings.Fields(line)
	bad := func(format string, args ...any) (Event, error) {
		return Event{}, fmt.Errorf("event %q: %s", line, fmt.Sprintf(format, args...))
	}
	if len(words) == 0 {
		return bad("it is empty")
	}
	host := words[0] == hostWord && len(words) > 1
	if host {
		words = words[1:]
	}
	i := slices.Index(verbName[:], words[0])
	if i < 0 {
		return bad("the verb is none of %s", strings.Join(verbName[:], ", "))
	}
	e := Event{Host: host, Do: Verb(i)}
	rest := words[1:]
	word := func() string {
		if len(rest) == 0 {
			return ""
		}
		w := rest[0]
		rest = rest[1:]
		return w
	}
	if e.Do.OnTask() || e.Do.OnSlot() {
		slot, task, isTask := strings.Cut(word(), "/")
		if e.Slot = SlotNamed(slot); e.Slot < 0 || isTask != e.Do.OnTask() {
			return bad("it does not name a server, or a task as s1/report")
		}
		if isTask {
			r := slices.Index(roleName[:], task)
			if r < 0 {
				return bad("the task is none of %s", strings.Join(roleName[:], ", "))
			}
			e.Role = Role(r)
		}
	}
	if e.Do.onStream() {
		s := slices.Index(streamName[:], word())
		if s < 0 {
			return bad("the watch is none of %s", strings.Join(streamName[:], ", "))
		}
		e.See = Stream(s)
	}
	if e.Do.timed() {
		var err error
		if e.For, err = time.ParseDuration(word()); err != nil {
			return bad("%v", err)
		}
	}
	e.What = strings.Join(rest, " ")
	return e, nil
}

// Parse reads events, one a line. Empty lines and text after a # are ignored.
func Parse(text string) ([]Event, error) {
	var events []Event
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		e, err := ParseEvent(line)
		if err != nil {
			return nil, err
		}
		events = append(events, e)
	}
	return events, nil
}

// Format is ParseScript's opposite.
func Format(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// configLine begins a story's first line.
const configLine = "world "

// FormatStory returns a configuration and a script as one text.
func FormatStory(c Config, events []Event) string {
	return configLine + c.String() + "\n" + Format(events)
}

// ParseStory reads what FormatStory prints, with comments before it or in it. Without a
// first line that says otherwise the world is the default one.
func ParseStory(text string) (Config, []Event, error) {
	config := DefaultConfig()
	for strings.HasPrefix(strings.TrimSpace(text), "#") {
		_, text, _ = strings.Cut(strings.TrimSpace(text), "\n")
	}
	if rest, ok := strings.CutPrefix(strings.TrimSpace(text), configLine); ok {
		line, script, _ := strings.Cut(rest, "\n")
		var err error
		if config, err = ParseConfig(line); err != nil {
			return config, nil, err
		}
		text = script
	}
	events, err := Parse(text)
	return config, events, err
}

// Words of events.
const (
	// GateOff, after a release, starts a server whose gate StorageVersionAPI is off, and
	// WithoutConcord a stock server.
	GateOff        = " off"
	WithoutConcord = " stock"
	// CutFromHost, after cut and heal, is about the host alone.
	CutFromHost = "host"
)

// LostAnswers are the ways in which an answer of etcd is lost. Every one of them can come after a commit.
var LostAnswers = [...]string{"", "unavailable", "timeout", "leader", "deadline"}
