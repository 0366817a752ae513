package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"google.golang.org/grpc/grpclog"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// Main is the TestMain of packages that use this one. The test binary also runs as etcd, in processes that a test can
// kill and pause.
func Main(m *testing.M) {
	Serve()
	os.Exit(Suite{m}.Run())
}

// Serve runs the etcd for which a test has started this process (Concord's embedded one, or the program etcd), and
// then ends the process. In any other process it returns at once.
func Serve() {
	testbed.ServeEtcd()
	process.Serve(map[string]func(context.Context, []string) error{
		EtcdProgram: func(context.Context, []string) error { etcdmain.Main(os.Args); return nil },
	})
}

// EtcdProgram is the role in which the test binary runs as the program etcd.
const EtcdProgram = "etcd"

// Suite runs the tests of a package, and removes the files that they leave behind.
type Suite struct{ M *testing.M }

// Run runs the tests and returns the process's exit code.
func (s Suite) Run() int {
	silence()
	code := s.M.Run()
	if built.dir != "" {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return code
}

// silence keeps client libraries from writing between the results of the tests.
func silence() {
	ctrllog.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
}

// built are the programs that were built for the tests, by name, such as "concord1.36" or "concord-earlier".
var built struct {
	sync.Mutex
	dir    string
	binary map[string]string
}

// Binary builds cmd/concord, once per test process, and returns its path.
func Binary(t testing.TB) string { t.Helper(); return Release(t, "") }

// Build is the version of Concord that these programs have.
const Build = "0.0.1-e2e"

// Release builds a program that stands for an older release: it is the same in all but
// the release that it says it is, and so in the versions it knows. "" is the newest.
func Release(t testing.TB, release string) string {
	t.Helper()
	return once(t, "concord"+release, func(path string) {
		flags := "-X github.com/concord-dev/concord/build.version=" + Build
		if release != "" {
			flags += " -X github.com/concord-dev/concord/compat.release=" + release
		}
		Compile(t, "-o", path, "-ldflags", flags, "github.com/concord-dev/concord/cmd/concord")
	})
}

// landed is the commit that Earlier builds as long as no release has a tag.
const landed = "09675978426cc3cb8e52244db731a057123b09e6"

// Earlier builds the program of Concord's release before this one, from the newest tag, in a work
// tree of its own. It needs the repository's history.
func Earlier(t testing.TB) string {
	t.Helper()
	return once(t, "concord-earlier", func(path string) {
		commit := landed
		if tag, err := exec.Command("git", "describe", "--tags", "--abbrev=0", "HEAD~").Output(); err == nil {
			commit = strings.TrimSpace(string(tag))
		}
		tree := path + "-source"
		git(t, "worktree", "add", "--detach", tree, commit)
		defer git(t, "worktree", "remove", "--force", tree)
		Go(t, "build", "-C="+tree, "-o", path, "./cmd/concord")
		t.Logf("the earlier program is of %s", commit)
	})
}

// once builds a program, unless one of this name was built before, and returns its path.
func once(t testing.TB, name string, build func(path string)) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if path, ok := built.binary[name]; ok {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "concord-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.binary = dir, map[string]string{}
	}
	path := filepath.Join(built.dir, name)
	build(path)
	built.binary[name] = path
	return path
}

// Compile builds a program of this module by "go build" with these arguments, of which the last is its package.
func Compile(t testing.TB, args ...string) {
	t.Helper()
	Go(t, append([]string{"build"}, args...)...)
	// The program is not linked into the test, so go test does not know that its sources matter. It runs a test anew if a
	// file or folder that the test has asked for has changed.
	const sources = "{{if .Module}}{{if .Module.Main}}{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}\n{{end}}{{range .EmbedFiles}}{{$dir}}/{{.}}\n{{end}}{{end}}{{end}}"
	for source := range strings.Lines(Go(t, "list", "-deps", "-f", sources, args[len(args)-1])) {
		if source = strings.TrimSpace(source); source != "" {
			if _, err := os.Stat(source); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Go runs the go command, and returns what it prints.
func Go(t testing.TB, args ...string) string {
	t.Helper()
	out, err := process.Go(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func git(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}
