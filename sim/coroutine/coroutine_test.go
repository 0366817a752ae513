package coroutine

import (
	"slices"
	"testing"
)

func TestTurns(t *testing.T) {
	var p Pool
	var heard []string
	var k *Coroutine
	k = p.Start(func() {
		defer func() { heard = append(heard, "end") }()
		heard = append(heard, "begin")
		k.Pause()
		heard = append(heard, "again")
		k.Pause()
		heard = append(heard, "never")
	})
	for range 2 {
		heard = append(heard, "resume")
		if p.Resume(k) {
			t.Fatal("it has ended")
		}
	}
	p.Unwind(k)
	if want := []string{"resume", "begin", "resume", "again", "end"}; !slices.Equal(heard, want) {
		t.Errorf("heard %v, want %v", heard, want)
	}
	if next := p.Start(func() {}); next != k || !p.Resume(next) {
		t.Error("a coroutine whose function was unwound runs no other one")
	}
}

// TestPanic: a function that panicked does not leave its coroutine in the pool.
func TestPanic(t *testing.T) {
	var p Pool
	k := p.Start(func() { panic("broken") })
	func() {
		defer func() {
			if recover() != "broken" {
				t.Error("the panic was not noticed")
			}
		}()
		p.Resume(k)
	}()
	p.Unwind(k)
	p.Resume(p.Start(func() {})) // leaves its coroutine in the pool
	p.Close()
	for range taken {
		ran := false
		if k := p.Start(func() { ran = true }); !p.Resume(k) || !ran {
			t.Error("a coroutine is dead")
		}
	}
}
