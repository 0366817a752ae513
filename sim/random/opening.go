package random

import (
	"fmt"
	"math/rand/v2"

	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/script"
)

// opening is how a world begins: with nothing, or with servers of one release at rest
// and some objects.
func opening(config script.Config, kind int) []script.Event {
	if kind == 0 {
		return nil
	}
	r := object.Releases[kind-1].Name
	var events []script.Event
	for slot := range config.Slots {
		events = append(events, script.Event{Do: script.Start, Slot: slot, What: r})
	}
	events = append(events, script.Event{Do: script.Lead}, script.Event{Do: script.Define, What: "v1"}, script.Event{Do: script.Settle})
	for _, what := range []string{"create things/a", "create widgets/a", "create things/b"} {
		events = append(events, script.Event{Do: script.Run, Role: script.Writing1, What: what}, script.Event{Do: script.Finish, Role: script.Writing1})
	}
	return events
}

// openingHosted is how a world begins that has a host: with nothing, or with replicas of one release at rest and an object.
func openingHosted(config script.Config, release object.Release, kind int) []script.Event {
	if kind == 0 {
		return nil
	}
	var events []script.Event
	for slot := range config.Host {
		events = append(events, script.Event{Host: true, Do: script.Start, Slot: slot, What: object.Releases[len(object.Releases)-1].Name})
	}
	for slot := range config.Slots {
		events = append(events, script.Event{Do: script.Start, Slot: slot, What: release.Name})
	}
	return append(events, script.Event{Host: true, Do: script.Lead}, script.Event{Do: script.Lead}, script.Event{Do: script.Settle},
		script.Event{Do: script.Run, Role: script.Writing1, What: "create things/a"}, script.Event{Do: script.Finish, Role: script.Writing1})
}

// rewriting is how a world begins whose rewrites have several transactions under way: there are
// objects, the version that is stored has changed, and a migration has been made.
func rewriting(config script.Config, objects int, r *rand.Rand) []script.Event {
	release := r.IntN(len(object.Releases) - 1)
	moved := object.Things
	if r.IntN(2) == 0 {
		moved = object.Widgets
	}
	if moved == object.Things {
		release = 1 + r.IntN(len(object.Releases)-2) // the next one stores another version
	}
	events := opening(config, release+1)
	for i := range objects {
		for _, of := range object.All {
			create := fmt.Sprintf("create %s/%c", of.Name, 'a'+i)
			events = append(events, script.Event{Do: script.Run, Role: script.Writing1, What: create}, script.Event{Do: script.Finish, Role: script.Writing1})
		}
	}
	if moved == object.Widgets {
		events = append(events, script.Event{Do: script.Define, What: "v2"})
	}
	for slot := range config.Slots {
		if moved == object.Things {
			events = append(events, script.Event{Do: script.Admin, What: deleteLease[slot]}, script.Event{Do: script.Kill, Slot: slot},
				script.Event{Do: script.Start, Slot: slot, What: object.Releases[release+1].Name}, script.Event{Do: script.Run, Slot: slot, Role: script.Leasing}, script.Event{Do: script.Finish, Slot: slot, Role: script.Leasing})
		}
	}
	for range 2 {
		for slot := range config.Slots {
			events = append(events, script.Event{Do: script.Relist, Slot: slot, See: script.SeeLeases}, script.Event{Do: script.Relist, Slot: slot, See: script.SeeVersions},
				script.Event{Do: script.Relist, Slot: slot, See: script.SeeDefinitions}, script.Event{Do: script.Relist, Slot: slot, See: script.SeeHandler},
				script.Event{Do: script.Run, Slot: slot, Role: script.Reporting}, script.Event{Do: script.Finish, Slot: slot, Role: script.Reporting})
		}
	}
	events = append(events, script.Event{Do: script.Lead})
	for range 3 {
		events = append(events, script.Event{Do: script.Run, Role: script.Triggering, What: moved.Name}, script.Event{Do: script.Finish, Role: script.Triggering})
	}
	return events
}
