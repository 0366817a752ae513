// Package build says what a program was built from: by flags of the linker that a release sets, and
// else by the notes of the Go toolchain.
package build

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// Set by -ldflags "-X github.com/concord-dev/concord/cmd/build.version=...".
var version, commit, date string

// Info says what a program was built from. A field that is not known is empty.
type Info struct {
	// Version is Concord's own; "(devel)" if it was built from a working tree.
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// Date is that of the commit, in RFC 3339.
	Date string `json:"date,omitempty"`
	// Modified says that the source that was built is not the one that was committed.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

// This is the Info of this program.
func This() Info {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return read(info)
}

func read(info *debug.BuildInfo) Info {
	noted := map[string]string{}
	for _, s := range info.Settings {
		noted[s.Key] = s.Value
	}
	return Info{
		Version:  cmp.Or(version, info.Main.Version, "(devel)"),
		Commit:   cmp.Or(commit, noted["vcs.revision"]),
		Date:     cmp.Or(date, noted["vcs.time"]),
		Modified: commit == "" && noted["vcs.modified"] == "true",
		Go:       info.GoVersion,
	}
}

// String is one line for people.
func (b Info) String() string {
	var of []string
	if b.Commit != "" {
		changes := ""
		if b.Modified {
			changes = " with changes"
		}
		of = append(of, "commit "+b.Commit+changes)
	}
	if b.Date != "" {
		of = append(of, b.Date)
	}
	of = append(of, b.Go)
	return b.Version + " (" + strings.Join(of, ", ") + ")"
}
