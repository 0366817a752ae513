// Package build says what a program was built from: by flags of the linker that a release sets, and
// else by the notes of the Go toolchain.
package build

import (
	"cmp"
	"regexp"
	"runtime/debug"
	"strings"
)

const module = "github.com/concord-dev/concord"

// Set by -ldflags "-X github.com/concord-dev/concord/build.version=...".
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
	own := info.Main
	for _, dep := range info.Deps {
		if dep.Path == module { // noted is the commit of the program, which is not Concord's
			own, noted = *dep, nil
			if dep.Replace != nil {
				own = *dep.Replace
			}
		}
	}
	return Info{
		Version:  cmp.Or(version, own.Version, "(devel)"),
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

var (
	// untagged matches the version that Go gives a commit without a tag.
	untagged = regexp.MustCompile(`^v.*[-.]\d{14}-([0-9a-f]{12})$`)
	// foreign matches what the build metadata of a semantic version may not contain.
	foreign = regexp.MustCompile(`[^0-9A-Za-z.-]+`)
)

// ID names the build in a few characters: the version that was tagged, as "0.3.0", or else the commit, as "d60bc721213d";
// with ".dirty" if the source had uncommitted changes. It can be the build metadata of a semantic version, and is empty if
// neither is known.
func (b Info) ID() string {
	tagged, _, _ := strings.Cut(b.Version, "+dirty")
	id := strings.TrimPrefix(tagged, "v")
	if found := untagged.FindStringSubmatch(tagged); found != nil {
		id = found[1]
	} else if tagged == "(devel)" {
		id = b.Commit[:min(12, len(b.Commit))]
	}
	if id != "" && b.Modified {
		id += ".dirty"
	}
	return foreign.ReplaceAllString(id, "-")
}
