package elect

import (
	"context"
	"testing"
	"time"
)

// TestElectionTerms asserts that the controllers of a term start only when those of the term before
// have ended, and that the end of the old term does not end the new one. client-go ensures neither.
func TestElectionTerms(t *testing.T) {
	first, endFirst := context.WithCancel(context.Background())
	second, endSecond := context.WithCancel(context.Background())
	defer endFirst()
	defer endSecond()
	began, linger := make(chan context.Context, 2), make(chan struct{})
	e := &Election{}
	e.Lead = func(ctx context.Context) {
		began <- ctx
		<-ctx.Done()
		if ctx == first {
			<-linger // a controller that stops slowly
		}
	}
	var ended [2]chan struct{}
	for i, term := range []context.Context{first, second} {
		ended[i] = make(chan struct{})
		go func() {
			defer close(ended[i])
			e.serve(term)
		}()
		if i == 0 {
			receive(t, began)
			if !e.Leads() {
				t.Error("the first term does not lead")
			}
			endFirst()
			if e.Leads() {
				t.Error("a term that has ended leads")
			}
		}
	}
	select {
	case <-began:
		t.Fatal("the second term began while the first was ending")
	default:
	}
	close(linger)
	receive(t, ended[0])
	receive(t, began)
	if !e.Leads() {
		t.Error("the second term does not lead after the end of the first")
	}
	endSecond()
	receive(t, ended[1])
	if e.Leads() {
		t.Error("leads after its last term")
	}
}

func receive[T any](t *testing.T, from <-chan T) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(time.Minute):
		t.Fatal("waited too long")
	}
}
