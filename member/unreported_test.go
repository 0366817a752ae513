package member

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
)

// TestUnreported: resources that are not reported are logged after a while, and then once a minute.
func TestUnreported(t *testing.T) {
	var u unreported
	now := time.Unix(0, 0)
	for _, step := range []struct {
		after   time.Duration
		lacking bool
		want    bool
	}{
		{0, false, false},
		{time.Hour, true, false},
		{unreportedAfter - 1, true, false},
		{1, true, true},
		{unreportedAgain - 1, true, false},
		{1, true, true},
		{1, false, false},
		{unreportedAgain, true, false},
		{unreportedAfter, true, true},
	} {
		now = now.Add(step.after)
		if got := u.due(now, step.lacking); got != step.want {
			t.Errorf("after %s, lacking %t: %t", step.after, step.lacking, got)
		}
	}
}

// TestUnreportedIsLogged: the log names a resource whose report is under way for too long, and the
// attempt, until it is reported.
func TestUnreportedIsLogged(t *testing.T) {
	var lines []string
	w := newWorld(t, []Resource{builtin(secrets)}, func(c *Config) {
		c.Logger = funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	})
	w.register()
	lines = nil // of the registration
	w.m.mu.Lock()
	c, err := w.m.claim(secrets)
	w.m.mu.Unlock()
	must(t, err)
	w.m.sayUnreported()
	w.clock.Step(unreportedAfter)
	w.m.sayUnreported()
	if len(lines) != 1 || !strings.Contains(lines[0], "secrets closed wants=v1 reports=@0 attempt=1") {
		t.Errorf("logged are %q", lines)
	}
	must(t, w.m.process(t.Context(), []claim{c}))
	w.clock.Step(unreportedAgain)
	if w.m.sayUnreported(); len(lines) != 1 {
		t.Errorf("logged are %q after the report", lines)
	}
}
