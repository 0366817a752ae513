package script

import (
	"testing"
	"time"
)

func TestScripts(t *testing.T) {
	for _, line := range []string{
		"start s1 r0", "start s1 r2 off", "start s1 r1 stock", "stop s2", "kill s1", "pause s1", "resume s1", "cut s1", "heal s1", "jump s1 -10s", "drift s1 1.02",
		"lead s1", "unlead s1", "etcd full", "etcd slow", "run s1/write1 create things/a", "do s1/report", "apply s3/migrate", "lose s1/lease",
		"fail s1/collect", "absent s1/trigger", "finish s1/write2", "late s1/lease", "see s1 handler", "relist s1 versions",
		"tick 1.5s", "define v2", "undefine", "host start s1 r1", "host do s1/collect", "cut s1 host", "run s1/hostlease", "see s1 hostversions", "purge", "admin delete state things", "admin pause things", "settle", "round",
	} {
		e, err := ParseEvent(line)
		if err != nil {
			t.Errorf("ParseEvent(%q): %v", line, err)
		}
		if e.String() != line {
			t.Errorf("ParseEvent(%q) is %q", line, e)
		}
	}
	for _, bad := range []string{"", "dance", "start", "kill s9", "do s1", "do s1/sing", "see s1", "see s1 stars", "tick", "kill s1/report"} {
		if e, err := ParseEvent(bad); err == nil {
			t.Errorf("ParseEvent(%q) = %q, want an error", bad, e)
		}
	}
	if e := (Event{Do: Tick, For: time.Second}); e.String() != "tick 1s" {
		t.Errorf("a tick prints as %q", e)
	}
	config, events, err := ParseStory("world slots=2 page=1 txn=1 more=0\nstart s1 r0 # a comment\n\nsettle\n")
	if err != nil || config != (Config{Slots: 2, Page: 1, Txn: 1, Under: 1}) || len(events) != 2 {
		t.Errorf("ParseStory: %v, %v, %v", config, events, err)
	}
	if again, _, err := ParseStory(FormatStory(config, events)); err != nil || again != config {
		t.Errorf("FormatStory does not bring the configuration back: %v, %v", again, err)
	}
}
