package concord

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestTrackRecord asserts that each command in docs/track-record.md still runs a test: its packages
// exist, and a test for each name in its pattern. It reads only the sources.
func TestTrackRecord(t *testing.T) {
	text, err := os.ReadFile("docs/track-record.md")
	must(t, err)
	commands := 0
	for n, row := range strings.Split(string(text), "\n") {
		if strings.Contains(row, "its code is gone since then") {
			continue
		}
		for _, quoted := range regexp.MustCompile("`(go test [^`]*)`").FindAllStringSubmatch(row, -1) {
			commands++
			if err := runsATest(strings.ReplaceAll(quoted[1], `\|`, "|")); err != nil {
				t.Errorf("docs/track-record.md:%d: %s: %v", n+1, quoted[1], err)
			}
		}
	}
	if commands < 100 {
		t.Errorf("found only %d commands", commands)
	}
	for _, wrong := range []string{"go test ./nowhere", "go test ./agree -run Nothing", "go test ./agree -run 'Liveness|Nothing'", "go test ./agree -run Liveness/NoSuchCase"} {
		if runsATest(wrong) == nil {
			t.Errorf("%s: taken for a test", wrong)
		}
	}
}

// runsATest returns an error if a command `go test [PACKAGE | -run PATTERN]...` runs no test.
func runsATest(command string) error {
	command, _, _ = strings.Cut(command, " -args")
	words := strings.Fields(strings.ReplaceAll(command, "'", ""))
	var pattern string
	var sources strings.Builder
	for i, word := range words {
		if word == "-run" && i+1 < len(words) {
			pattern = words[i+1]
		}
		if word != "." && !strings.HasPrefix(word, "./") {
			continue
		}
		files, err := testFiles(word)
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			// A script in testdata is a subtest with the script's name.
			fmt.Fprintf(&sources, "%s\n%q\n", content, strings.TrimSuffix(filepath.Base(file), ".txtar"))
		}
	}
	tests := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Example)\w*)\(`).FindAllStringSubmatch(sources.String(), -1)
	// The name of a subtest has underscores for spaces.
	subtests := regexp.MustCompile(`"([^"\n]+)"`).FindAllStringSubmatch(strings.ReplaceAll(sources.String(), " ", "_"), -1)
	for level, part := range strings.Split(pattern, "/") {
		among := subtests
		if level == 0 {
			among = tests
		}
		for _, name := range alternatives(part) {
			matches := regexp.MustCompile(name)
			if !slices.ContainsFunc(among, func(found []string) bool { return matches.MatchString(found[1]) }) {
				return fmt.Errorf("no test matches %s", name)
			}
		}
	}
	return nil
}

// testFiles returns the test files of a package, or of all packages below if the pattern ends in
// "/...", and the scripts that their tests run.
func testFiles(pattern string) (files []string, err error) {
	folder, all := strings.CutSuffix(filepath.Clean(pattern), "/...")
	err = filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && !all && path != folder && !strings.Contains(path, "testdata"):
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".txtar"):
			files = append(files, path)
		}
		return nil
	})
	return files, err
}

// alternatives returns a, b for a|b, and pa, pb for p(a|b).
func alternatives(pattern string) []string {
	prefix, rest, grouped := strings.Cut(pattern, "(")
	if !grouped {
		return strings.Split(pattern, "|")
	}
	names := strings.Split(strings.TrimSuffix(rest, ")"), "|")
	for i := range names {
		names[i] = prefix + names[i]
	}
	return names
}

// must ends the test if err is not nil.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
