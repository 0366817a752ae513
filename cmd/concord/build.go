package main

import (
	"cmp"
	"runtime/debug"
	"strings"
)

// What a build says of itself by -ldflags "-X main.buildVersion=...": it goes before what the Go
// toolchain has noted.
var buildVersion, buildCommit, buildDate string

// build says what a binary was built from. What is not known is empty.
type build struct {
	// Version is Concord's own; "(devel)" if it was built from a working tree.
	Version string `json:"version"`
	Commit  string `json:"commit,omitempty"`
	// Date is that of the commit, in RFC 3339.
	Date string `json:"date,omitempty"`
	// Modified says that what was built is not what was committed.
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
}

// thisBuild reads what this binary was built from.
func thisBuild() build {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return readBuild(info)
}

func readBuild(info *debug.BuildInfo) build {
	noted := map[string]string{}
	for _, s := range info.Settings {
		noted[s.Key] = s.Value
	}
	return build{
		Version:  cmp.Or(buildVersion, info.Main.Version, "(devel)"),
		Commit:   cmp.Or(buildCommit, noted["vcs.revision"]),
		Date:     cmp.Or(buildDate, noted["vcs.time"]),
		Modified: buildCommit == "" && noted["vcs.modified"] == "true",
		Go:       info.GoVersion,
	}
}

// String is one line for people.
func (b build) String() string {
	var of []string
	if b.Commit != "" {
		commit := "commit " + b.Commit
		if b.Modified {
			commit += " with changes"
		}
		of = append(of, commit)
	}
	if b.Date != "" {
		of = append(of, b.Date)
	}
	of = append(of, b.Go)
	return b.Version + " (" + strings.Join(of, ", ") + ")"
}
