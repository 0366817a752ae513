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
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/server"
)

// etcdDirVariable makes the test binary run an etcd on that directory instead of tests.
const etcdDirVariable = "CONCORD_E2E_ETCD"

// Main is the TestMain of packages that use this one. The test binary doubles as the
// etcd's program, so that an etcd too can be killed and paused.
func Main(m *testing.M) {
	if dir := os.Getenv(etcdDirVariable); dir != "" {
		if err := runEtcd(dir); err != nil {
			fmt.Fprintln(os.Stderr, "etcd:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	silence()
	code := m.Run()
	if built.dir != "" {
		if err := os.RemoveAll(built.dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// silence keeps the libraries of the tests' clients from writing between the results.
func silence() {
	ctrllog.SetLogger(logr.Discard())
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, os.Stderr))
}

func runEtcd(dir string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	etcd, err := server.StartEtcd(ctx, dir)
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

var built struct {
	once   sync.Once
	dir    string
	binary string
	err    error
}

// Binary builds cmd/concord, once per test process, and returns its path.
func Binary(t testing.TB) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "concord-e2e-"); built.err != nil {
			return
		}
		built.binary = filepath.Join(built.dir, "concord")
		out, err := exec.Command("go", "build", "-o", built.binary, "github.com/concord-dev/concord/cmd/concord").CombinedOutput()
		if err != nil {
			built.err = fmt.Errorf("build cmd/concord: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.binary
}
