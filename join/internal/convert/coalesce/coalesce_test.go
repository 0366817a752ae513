package coalesce

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"
)

// calls are Calls whose Make tells what it was asked and answers when the test says so.
type calls struct {
	Calls[string, string]
	t     *testing.T
	made  chan []string
	gone  chan error // why a Make was given up
	reply chan error
}

func newCalls(t *testing.T) *calls {
	c := &calls{t: t, made: make(chan []string), gone: make(chan error, 1), reply: make(chan error)}
	c.Fits = func(batch []string, next string) bool { return len(batch) < 3 && next != "alone" }
	c.Make = func(ctx context.Context, batch []string) ([]string, error) {
		c.made <- batch
		select {
		case err := <-c.reply:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			c.gone <- ctx.Err()
			return nil, ctx.Err()
		}
		var answers []string
		for _, in := range batch {
			answers = append(answers, strings.ToUpper(in))
		}
		return answers[:len(answers)-strings.Count(strings.Join(batch, ""), "short")], nil
	}
	return c
}

// ask returns where the answer will be, once the call waits or is under way.
func (c *calls) ask(ctx context.Context, in string, waiting int) <-chan string {
	answer := make(chan string, 1)
	go func() {
		out, err := c.Do(ctx, in)
		answer <- fmt.Sprint(out, " ", err)
	}()
	for deadline := time.Now().Add(30 * time.Second); c.Waiting() < waiting; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("%s does not wait", in)
		}
	}
	return answer
}

func (c *calls) wantMade(want ...string) {
	c.t.Helper()
	select {
	case got := <-c.made:
		if !slices.Equal(got, want) {
			c.t.Errorf("made %q together, want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		c.t.Fatalf("%q is not made", want)
	}
}

func want(t *testing.T, answer <-chan string, want string) {
	t.Helper()
	select {
	case got := <-answer:
		if got != want {
			t.Errorf("answered %q, want %q", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Fatalf("no answer, want %q", want)
	}
}

// Requests that come while a call is under way are made by the next ones, in order, as many as fit.
func TestTogether(t *testing.T) {
	c, ctx := newCalls(t), t.Context()
	a := c.ask(ctx, "a", 0)
	c.wantMade("a")
	var later []<-chan string
	for i, in := range []string{"b", "c", "d", "e", "alone", "f"} {
		later = append(later, c.ask(ctx, in, i+1))
	}
	c.reply <- nil
	want(t, a, "A <nil>")
	c.wantMade("b", "c", "d")
	c.reply <- nil
	c.wantMade("e")
	want(t, later[2], "D <nil>")
	c.reply <- errors.New("no")
	want(t, later[3], " no")
	c.wantMade("alone", "f")
	c.reply <- nil
	want(t, later[4], "ALONE <nil>")
	want(t, later[5], "F <nil>")
	g := c.ask(ctx, "short", 0)
	c.wantMade("short")
	c.reply <- nil
	want(t, g, " 0 of 1 calls that were made together were answered")
}

// A caller that gives up does not disturb the others: if it still waits it is left out, and a call
// under way is given up when all callers that it is made for have given up.
func TestGivingUp(t *testing.T) {
	c := newCalls(t)
	ctx, cancel := context.WithCancel(t.Context())
	a := c.ask(t.Context(), "a", 0)
	c.wantMade("a")
	b, d := c.ask(ctx, "b", 1), c.ask(t.Context(), "d", 2)
	cancel()
	want(t, b, " context canceled")
	c.reply <- nil
	want(t, a, "A <nil>")
	c.wantMade("d")

	one, cancelOne := context.WithCancel(t.Context())
	two, cancelTwo := context.WithCancel(t.Context())
	e, f := c.ask(one, "e", 1), c.ask(two, "f", 2)
	c.reply <- nil
	want(t, d, "D <nil>")
	c.wantMade("e", "f")
	cancelOne()
	want(t, e, " context canceled")
	select {
	case err := <-c.gone:
		t.Fatalf("given up while one still waits: %v", err)
	default:
	}
	cancelTwo()
	want(t, f, " context canceled")
	if err := <-c.gone; !errors.Is(err, context.Canceled) {
		t.Errorf("given up for %v", err)
	}
}

// A request and its answer are let go when the caller has the answer.
func TestNothingIsKept(t *testing.T) {
	type large struct{ _ [1 << 10]byte }
	kept := Calls[*large, *large]{
		Fits: func([]*large, *large) bool { return true },
		Make: func(_ context.Context, batch []*large) ([]*large, error) { return batch, nil },
	}
	var all []weak.Pointer[large]
	for range 10 {
		in := &large{}
		all = append(all, weak.Make(in))
		if _, err := kept.Do(t.Context(), in); err != nil {
			t.Fatal(err)
		}
	}
	alive := func() (n int) {
		runtime.GC()
		for _, p := range all {
			if p.Value() != nil {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(30 * time.Second); alive() > 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d of 10 are kept", alive())
		}
	}
	runtime.KeepAlive(&kept)
}
