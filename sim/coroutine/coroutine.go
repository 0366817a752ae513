// Package coroutine runs functions that give the turn back to their caller before they end: so the
// tasks of a simulated cluster run one at a time, each to its next call. A coroutine runs one function
// after the other, since its stack has grown already.
package coroutine

import (
	"iter"
	"sync"
)

// Coroutine runs functions, one after the other.
type Coroutine struct {
	next  func() (struct{}, bool)
	yield func(struct{}) bool
	body  func() // nil: it is idle
	// unwinds says that the function has to end at its Pause.
	unwinds bool
}

// unwinding is the panic that ends a function at its Pause.
type unwinding struct{}

// Unwinding implements workers.Unwinding.
func (unwinding) Unwinding() {}

// run runs one function.
func (k *Coroutine) run() {
	defer func() {
		if e := recover(); e != nil {
			if _, ok := e.(unwinding); !ok {
				panic(e)
			}
		}
		k.body = nil
	}()
	k.body()
}

// Pause, called by the function that runs, gives the turn back. While the function unwinds it does not.
func (k *Coroutine) Pause() {
	if k.unwinds || !k.yield(struct{}{}) || k.unwinds {
		panic(unwinding{})
	}
}

// Pool has the coroutines of one goroutine.
type Pool struct{ idle []*Coroutine }

// bench is where the coroutines of a pool wait for another one when it is closed.
var bench struct {
	sync.Mutex
	idle []*Coroutine
}

// taken is how many coroutines a pool takes from the bench at once.
const taken = 8

// Start returns a coroutine for a function, which does not run yet.
func (p *Pool) Start(body func()) *Coroutine {
	if len(p.idle) == 0 {
		bench.Lock()
		n := max(len(bench.idle)-taken, 0)
		p.idle = append(p.idle, bench.idle[n:]...)
		bench.idle = bench.idle[:n]
		bench.Unlock()
	}
	if n := len(p.idle); n > 0 {
		k := p.idle[n-1]
		p.idle = p.idle[:n-1]
		k.body, k.unwinds = body, false
		return k
	}
	k := &Coroutine{body: body}
	k.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		k.yield = yield
		for {
			if k.run(); !yield(struct{}{}) {
				return
			}
		}
	})
	return k
}

// Resume runs a coroutine's function to its next Pause or to its end, and reports whether it has ended. A panic of the
// function passes through Resume.
func (p *Pool) Resume(k *Coroutine) (ended bool) {
	k.next()
	if k.body != nil {
		return false
	}
	p.idle = append(p.idle, k)
	return true
}

// Unwind ends a function at its Pause.
func (p *Pool) Unwind(k *Coroutine) {
	k.unwinds = true
	if _, alive := k.next(); alive { // it is not if the function has panicked
		p.idle = append(p.idle, k)
	}
}

// Close leaves the coroutines to other pools.
func (p *Pool) Close() {
	bench.Lock()
	defer bench.Unlock()
	bench.idle = append(bench.idle, p.idle...)
	p.idle = nil
}
