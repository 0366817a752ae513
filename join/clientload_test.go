package join

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/rewrite"
)

func TestClientLoad(t *testing.T) {
	for _, test := range []struct {
		name string
		// each request takes so long, and begins so long after the end of the one before.
		takes, after time.Duration
		n            int
		want         bool
	}{
		{"nothing", 0, 0, 0, false},
		{"one request now and then", 50 * time.Millisecond, 900 * time.Millisecond, 5, false},
		{"one after the other", 5 * time.Millisecond, 0, 300, true},
		{"with pauses", 5 * time.Millisecond, 45 * time.Millisecond, 40, true},
		{"many that take nothing", 100 * time.Microsecond, 10 * time.Millisecond, 200, false},
	} {
		clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
		l := &clientLoad{clock: clock}
		for range test.n {
			clock.Step(test.after)
			l.add(1)
			clock.Step(test.takes)
			l.add(-1)
		}
		if got := l.busy(); got != test.want {
			t.Errorf("%s: busy %v", test.name, got)
		}
		clock.Step(2 * loadWindow)
		if l.busy() {
			t.Errorf("%s: busy two seconds after the end", test.name)
		}
	}
}

// TestSlowClientsCount: a client that waits for a second is being served, until it is.
func TestSlowClientsCount(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := &clientLoad{clock: clock}
	l.add(1)
	clock.Step(900 * time.Millisecond)
	if !l.busy() {
		t.Error("a client that waits is not seen")
	}
	l.add(-1)
	if l.busy() {
		t.Error("one long request counts when it has ended")
	}
}

func TestPositions(t *testing.T) {
	const prefix = "/registry/example.com/widgets/"
	report := rewrite.Report{
		Progress: rewrite.Progress{Expected: 9, Total: 5, Rewritten: 3, AlreadyCurrent: 1, Failures: 1},
		Cursor: rewrite.Cursor{
			After:    prefix + "ns/b",
			Progress: rewrite.Progress{Total: 2, Rewritten: 1, Failures: 1},
			Failed:   []rewrite.Failure{{Key: prefix + "ns/a", Reason: rewrite.Undecodable, Detail: "why"}},
		},
	}
	p := reportOf(report, prefix)
	if p.Total != 9 || p.Done != 4 || p.Failed != 1 {
		t.Errorf("progress %+v", p)
	}
	if f := p.Checkpoint.Failures; len(f) != 1 || f[0] != (migrate.Failure{Namespace: "ns", Name: "a", Reason: migrationv1alpha1.FailureDoesNotDecode, Message: "Undecodable: why"}) {
		t.Errorf("failures %+v", f)
	}
	if c := cursorOf(p.Checkpoint.Position, prefix); c.After != report.Cursor.After || c.Progress != report.Cursor.Progress {
		t.Errorf("cursor %+v", c)
	}
	for _, bad := range []string{"", "rubbish", "{}", p.Checkpoint.Position[:20]} {
		if c := cursorOf(bad, prefix); c.After != "" || c.Progress != (rewrite.Progress{}) {
			t.Errorf("%q: cursor %+v", bad, c)
		}
	}
	if c := cursorOf(p.Checkpoint.Position, "/registry/others/"); c.After != "" {
		t.Errorf("of another resource: %+v", c)
	}
	if p := reportOf(rewrite.Report{}, prefix); p.Checkpoint.Position != "" {
		t.Errorf("the beginning has a position: %+v", p)
	}
}
