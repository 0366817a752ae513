package main

import (
	"testing"
	"time"

	"github.com/concord-dev/concord/status"
)

// TestStuck: a way back ends for what keeps its objects from going on, and not for how the rest of the cluster is.
func TestStuck(t *testing.T) {
	for _, test := range []struct {
		kinds        []status.Kind
		soon, atLast bool
	}{
		{nil, false, false},
		{[]status.Kind{status.NotReady}, false, false},
		{[]status.Kind{status.Idle}, false, true},
		{[]status.Kind{status.StockAnswered}, false, false},
		{[]status.Kind{status.NotReady, status.StockAnswered, status.Disagreement}, false, true},
		{[]status.Kind{status.Disagreement}, false, true},
		{[]status.Kind{status.DeadServer}, false, true},
		{[]status.Kind{status.NoneRenews}, false, true},
		{[]status.Kind{status.Held}, false, true},
		{[]status.Kind{status.Stalled}, false, true},
		{[]status.Kind{status.Waiting}, false, true},
		{[]status.Kind{status.NotReady, status.BadObjects}, true, true},
		{[]status.Kind{status.WebhookDown}, true, true},
		{[]status.Kind{status.MigrationFailed}, true, true},
		{[]status.Kind{status.Paused}, true, true},
		{[]status.Kind{status.StockServer}, true, true},
		{[]status.Kind{status.SilentServer}, true, true},
	} {
		var a status.Answer
		for _, kind := range test.kinds {
			a.Problems = append(a.Problems, status.Problem{Kind: kind})
		}
		if soon, atLast := stuck(a, time.Second), stuck(a, settleTime+time.Second); soon != test.soon || atLast != test.atLast {
			t.Errorf("%v: stuck %t at first and %t later, want %t and %t", test.kinds, soon, atLast, test.soon, test.atLast)
		}
	}
}
