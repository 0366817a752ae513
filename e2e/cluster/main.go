package cluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"google.golang.org/grpc/grpclog"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/embedded"
)

// etcdDirVariable makes the test binary run an etcd on that directory instead of tests.
const etcdDirVariable = "CONCORD_E2E_ETCD"

// Main is the TestMain of packages that use this one. The test binary doubles as the
// etcd's program, so that an etcd too can be killed and paused.
func Main(m *testing.M) {
	Serve()
	os.Exit(Suite{m}.Run())
}

// Serve makes this process the etcd that a test has started it as, and ends it; if it was
// started as none it returns.
func Serve() {
	if dir := os.Getenv(etcdDirVariable); dir != "" {
		if err := runEtcd(dir); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if description := os.Getenv(memberVariable); description != "" {
		if err := runMember(description); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// Suite is the tests of a package, without what they leave behind.
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

// silence keeps the libraries of the tests' clients from writing between the results.
func silence() {
	ctrllog.SetLogger(logr.Discard())
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
}

func runEtcd(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	etcd, err := embedded.StartEtcd(ctx, dir)
	if err != nil {
		return err
	}
	fmt.Println("serving on", etcd.Endpoint)
	select {
	case <-ctx.Done():
		return etcd.Close()
	case err := <-etcd.Err():
		return err
	}
}

// built are the programs that the tests run, by the release they stand for.
var built struct {
	sync.Mutex
	dir    string
	binary map[string]string
}

// Binary builds cmd/concord, once per test process, and returns its path.
func Binary(t testing.TB) string { t.Helper(); return Release(t, "") }

// Release builds a program that stands for an older release: it is the same in all but
// the release that it says it is, and so in the versions it knows. "" is the newest.
func Release(t testing.TB, release string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	if path, ok := built.binary[release]; ok {
		return path
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "concord-e2e-")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.binary = dir, map[string]string{}
	}
	args := []string{"build", "-o", filepath.Join(built.dir, "concord"+release)}
	if release != "" {
		args = append(args, "-ldflags", "-X github.com/concord-dev/concord/compat.release="+release)
	}
	if out, err := exec.Command("go", append(args, "github.com/concord-dev/concord/cmd/concord")...).CombinedOutput(); err != nil {
		t.Fatalf("build cmd/concord: %v\n%s", err, out)
	}
	built.binary[release] = args[2]
	return args[2]
}
