package load

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestTook counts the requests that were due in a time.
func TestTook(t *testing.T) {
	var all Requests
	base := time.Unix(1000, 0)
	for i := range 10 {
		due := base.Add(time.Duration(i) * time.Second)
		all = append(all, Request{Due: due, End: due.Add(time.Duration(i+1) * time.Second)})
	}
	got := all.Took(base.Add(3*time.Second), base.Add(6*time.Second))
	if len(got) != 3 || got[0] != 4000 || got[2] != 6000 {
		t.Errorf("got %v", got)
	}
}

// TestOpen: a request is made though the one before is not answered.
func TestOpen(t *testing.T) {
	made := make(chan int, 3)
	all := Open(t.Context(), 1000, 3, func(n int) error {
		made <- n
		if n == 0 {
			for len(made) < 3 {
				<-time.After(time.Millisecond)
			}
		}
		return nil
	})
	if len(all) != 3 || all.Err() != nil {
		t.Errorf("%d requests, error %v", len(all), all.Err())
	}
}

// TestOpenBehind: a rate that cannot be served is an error, and the loop ends.
func TestOpenBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make(chan struct{})
		time.AfterFunc(time.Hour, func() { close(answer) })
		all := Open(t.Context(), 100, 0, func(int) error { <-answer; return nil })
		if err := all.Err(); len(all) != maxWaiting+1 || err == nil || !strings.Contains(err.Error(), "more than are served") {
			t.Errorf("%d requests, error %v", len(all), err)
		}
	})
}

// TestClosed: each client makes one request at a time, and none after one that fails.
func TestClosed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	failed := errors.New("failed")
	all := Closed(ctx, 2, time.Microsecond, func(client, n int) error {
		switch {
		case client == 1:
			return failed
		case n == 4:
			cancel()
		}
		return nil
	})
	if len(all) != 6 || !errors.Is(all.Err(), failed) {
		t.Errorf("%d requests, error %v", len(all), all.Err())
	}
}
