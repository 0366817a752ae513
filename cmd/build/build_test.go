package build

import (
	"runtime/debug"
	"testing"
)

func TestRead(t *testing.T) {
	noted := &debug.BuildInfo{GoVersion: "go1.26", Main: debug.Module{Version: "v0.3.0"}, Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-11-24T08:00:00Z"}, {Key: "vcs.modified", Value: "true"},
	}}
	if got, want := read(noted).String(), "v0.3.0 (commit abc with changes, 2026-11-24T08:00:00Z, go1.26)"; got != want {
		t.Errorf("as the toolchain noted it: %q, want %q", got, want)
	}
	if got, want := read(&debug.BuildInfo{GoVersion: "go1.26"}).String(), "(devel) (go1.26)"; got != want {
		t.Errorf("nothing noted: %q, want %q", got, want)
	}
	t.Cleanup(func() { version, commit, date = "", "", "" })
	version, commit, date = "v1.0.0", "def", "2027-01-01T00:00:00Z"
	if got, want := read(noted).String(), "v1.0.0 (commit def, 2027-01-01T00:00:00Z, go1.26)"; got != want {
		t.Errorf("by ldflags: %q, want %q", got, want)
	}
}
