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

func TestID(t *testing.T) {
	const commit = "d60bc721213d4f6f0f0c8f0a5a1f9f2d3c4b5a69"
	for want, info := range map[string]Info{
		"0.3.0":              {Version: "v0.3.0", Commit: commit},
		"0.3.1-rc.1":         {Version: "0.3.1-rc.1", Commit: commit},
		"0.3.0.dirty":        {Version: "v0.3.0+dirty", Commit: commit, Modified: true},
		"d60bc721213d":       {Version: "(devel)", Commit: commit},
		"d60bc721213e":       {Version: "v0.0.0-20261129080000-d60bc721213e", Commit: "d60bc721213e"},
		"d60bc721213f":       {Version: "v0.3.1-0.20261129080000-d60bc721213f"},
		"d60bc721213d.dirty": {Version: "v0.3.1-rc.1.0.20261129080000-d60bc721213d+dirty", Commit: commit, Modified: true},
		"0.3.0-mine":         {Version: "v0.3.0+mine"},
		"":                   {Version: "(devel)"},
	} {
		if got := info.ID(); got != want {
			t.Errorf("%+v: %q, want %q", info, got, want)
		}
	}
	if got := This().ID(); got != "" {
		t.Errorf("a test has no build, and is %q", got)
	}
}

// TestLibrary: in a program of others, Concord's version is the one that the program links, not its own.
func TestLibrary(t *testing.T) {
	theirs := &debug.BuildInfo{
		Main: debug.Module{Path: "example.com/wardle", Version: "v7.0.0"}, Deps: []*debug.Module{{Path: "example.com/b", Version: "v8.0.0"}, {Path: module, Version: "v0.3.0"}},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc"}},
	}
	if got := read(theirs); got.Version != "v0.3.0" || got.Commit != "" {
		t.Errorf("%+v", got)
	}
	theirs.Deps[1].Replace = &debug.Module{Path: "example.com/fork", Version: "v0.3.1"}
	if got := read(theirs).ID(); got != "0.3.1" {
		t.Errorf("replaced by a fork: %q", got)
	}
	theirs.Deps[1].Replace = &debug.Module{Path: "../concord"}
	if got := read(theirs).ID(); got != "" {
		t.Errorf("replaced by a folder: %q", got)
	}
}
