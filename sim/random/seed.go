// Package random chooses the scripts of worlds by random numbers: a seed decides how a world begins, which faults
// there are in it and how often, and each event that happens.
package random

import (
	"io"
	"math/rand/v2"

	"github.com/concord-dev/concord/sim"
	"github.com/concord-dev/concord/sim/script"
)

// MinEvents and MaxEvents bound how many events the script of a seed has that chooses
// itself.
const (
	MinEvents = 200
	MaxEvents = 450
)

// Seed runs the world of a seed. The script has this many events; 0 means that the seed chooses. trace may be nil.
func Seed(seed uint64, events int, trace io.Writer) sim.Outcome {
	r := numbers(seed, 0)
	config := script.DefaultConfig()
	config.Slots = 2 + r.IntN(2)
	config.Page, config.Txn = 1+r.IntN(2), 1+r.IntN(2)
	if r.IntN(20) == 0 {
		config.More = 8
	}
	lag := numbers(seed, 1)
	config.Lag, config.Census = lag.IntN(2), lag.IntN(2)
	busy := numbers(seed, 3)
	if busy.IntN(2) == 0 {
		config.Under = 2 + busy.IntN(script.MaxUnder-1)
		config.Txn = config.Under + busy.IntN(2)
		config.Page = config.Txn + busy.IntN(3)
	}
	return sim.Run(config, trace, func(w *sim.World, do func(script.Event)) {
		begin := opening(config, r.IntN(4))
		c := newChooser(w, r, numbers(seed, 2))
		if config.Under > 1 {
			c.temper.rewrite(busy)
			begin = rewriting(config, c.temper.objects, busy)
		}
		for _, e := range begin {
			do(e)
		}
		live(w, events, r, c.next, do)
	})
}

// live does this many events, or a random number of them if it is 0, and then lets the world settle.
func live(w *sim.World, events int, r *rand.Rand, next func() script.Event, do func(script.Event)) {
	if events == 0 {
		events = MinEvents + r.IntN(MaxEvents-MinEvents)
	}
	for w.Steps() < events && w.Violation() == nil {
		do(next())
	}
	do(script.Event{Do: script.Settle})
}

// Aggregated is Seed for a world whose servers are the replicas of an aggregated API server.
func Aggregated(seed uint64, events int, trace io.Writer) sim.Outcome {
	r := numbers(seed, 4)
	config := script.DefaultConfig()
	config.Slots, config.Host = 2+r.IntN(2), 1+r.IntN(2)
	config.Lag = r.IntN(2)
	return sim.Run(config, trace, func(w *sim.World, do func(script.Event)) {
		c := newHostedChooser(w, r)
		for _, e := range openingHosted(config, c.temper.releases[0], r.IntN(4)) {
			do(e)
		}
		live(w, events, r, c.next, do)
	})
}

// numbers returns a generator of random numbers for a seed and a purpose.
func numbers(seed uint64, purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, purpose)) }
