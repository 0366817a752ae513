package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// release is a minor release of Kubernetes whose suite can be run.
type release struct {
	name string
	// modfile is the module file of the folder suite that builds it.
	modfile string
	// emulated makes the servers emulate the release.
	emulated bool
}

var releases = map[string]release{
	"1.37": {name: "1.37", modfile: "go.mod"},
	"1.36": {name: "1.36", modfile: "release-1.36.mod", emulated: true},
}

func releaseOf(name string) (release, error) {
	r, ok := releases[name]
	if !ok {
		return release{}, fmt.Errorf("there is no suite of release %q, only of %s", name, strings.Join(slices.Sorted(maps.Keys(releases)), ", "))
	}
	return r, nil
}

// skipFile lists the specs that are not run.
func (r release) skipFile() string { return "skipped-" + r.name + ".txt" }

// flags returns the flags with which servers and controllers are started.
func (r release) flags() []string {
	if !r.emulated {
		return nil
	}
	return []string{"--emulated-version=" + r.name}
}
