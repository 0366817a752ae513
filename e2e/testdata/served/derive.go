// Command derive prints the APIs that one Kubernetes release serves, from the Go modules that it
// published: one line for each stable or beta version of each resource, "on" if it is
// served by default and "off" if only --runtime-config enables it.
//
//	derive <minor release> <types>=<clients>...
//
// <types> is a folder with one folder for each version of each group, such as k8s.io/api, and <clients>
// the folder of the typed clients for them, which contain the names of the resources. A version is
// served from the release that introduced it until the one that removed it, both by the module's
// generated APILifecycle methods (types without them are stable and stay). Betas are off: kube-apiserver
// has enabled no new one by default since 1.24, and none of those before is left in 1.34.
package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	group     = regexp.MustCompile(`GroupName = "([^"]*)"`)
	client    = regexp.MustCompile(`(?s)gentype\.NewClient\w*\[[^(]*\]\(\s*"([a-z]+)".*?return &[a-zA-Z0-9]+\.(\w+)\{\}`)
	lifecycle = regexp.MustCompile(`(?s)func \(in \*(\w+)\) APILifecycle(Introduced|Removed)\(\) \(major, minor int\) \{\s*return 1, (\d+)`)
)

func main() {
	minor, err := strconv.Atoi(strings.TrimPrefix(os.Args[1], "1."))
	check(err)
	var lines []string
	for _, pair := range os.Args[2:] {
		types, clients, _ := strings.Cut(pair, "=")
		versions, err := filepath.Glob(filepath.Join(clients, "*", "v*"))
		check(err)
		for _, version := range versions {
			lines = append(lines, served(filepath.Join(types, filepath.Base(filepath.Dir(version)), filepath.Base(version)), version, minor)...)
		}
	}
	slices.Sort(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

func served(types, clients string, minor int) (lines []string) {
	version := filepath.Base(types)
	if strings.Contains(version, "alpha") {
		return nil
	}
	name := group.FindStringSubmatch(read(filepath.Join(types, "register.go")))[1]
	known := map[string]int{} // kind and "Introduced" or "Removed"
	if generated := filepath.Join(types, "zz_generated.prerelease-lifecycle.go"); exists(generated) {
		for _, m := range lifecycle.FindAllStringSubmatch(read(generated), -1) {
			known[m[1]+m[2]], _ = strconv.Atoi(m[3])
		}
	}
	files, err := filepath.Glob(filepath.Join(clients, "*.go"))
	check(err)
	for _, file := range files {
		for _, m := range client.FindAllStringSubmatch(read(file), -1) {
			resource, kind := m[1], m[2]
			removed, ends := known[kind+"Removed"]
			if known[kind+"Introduced"] > minor || ends && removed <= minor {
				continue
			}
			state := "on"
			if strings.Contains(version, "beta") {
				state = "off"
			}
			lines = append(lines, fmt.Sprintf("%s %s %s", cmp.Or(strings.TrimPrefix(name+"/"+version, "/"), version), resource, state))
		}
	}
	return lines
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func read(file string) string {
	content, err := os.ReadFile(file)
	check(err)
	return string(content)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "derive:", err)
		os.Exit(1)
	}
}
