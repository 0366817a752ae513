package embedded

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestSocket: the documented path leads to a socket that only its owner can reach, also in a data
// directory that everybody may list, and also if an older release left its socket there.
func TestSocket(t *testing.T) {
	dataDir := shortDir(t)
	must(t, os.Chmod(dataDir, 0o755))
	left, err := net.Listen("unix", filepath.Join(dataDir, EtcdSocketName))
	must(t, err)
	left.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = left.Close()

	etcd := start(t, dataDir)
	documented := filepath.Join(dataDir, EtcdSocketName)
	if socket, err := SocketPath(dataDir); err != nil || socket != documented || etcd.Endpoint != "unix://"+documented {
		t.Errorf("the socket is at %s, the endpoint %s: %v", socket, etcd.Endpoint, err)
	}
	if _, err := dial(t, "unix://"+documented).Put(t.Context(), "key", "value"); err != nil {
		t.Error(err)
	}
	private(t, documented)
	must(t, etcd.Close())
	if _, err := os.Lstat(documented); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the link outlives the etcd: %v", err)
	}
}

// private asserts that only its owner can reach the socket that a link leads to.
func private(t *testing.T, link string) (socket string) {
	t.Helper()
	socket, err := filepath.EvalSymlinks(link)
	must(t, err)
	if info, err := os.Stat(socket); err != nil || info.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("%s: %v (%v)", socket, info.Mode(), err)
	}
	if info, err := os.Stat(filepath.Dir(socket)); err != nil || info.Mode() != fs.ModeDir|0o700 {
		t.Errorf("%s: %v (%v)", filepath.Dir(socket), info.Mode(), err)
	}
	return socket
}

// TestFarSocket: if the path in the data directory is too long for a socket, the socket is in a
// temporary directory with a random name. Programs find it by the data directory, and it is deleted
// when the etcd is closed, or by the next etcd if that one was killed.
func TestFarSocket(t *testing.T) {
	t.Setenv("TMPDIR", shortDir(t))
	dataDir := filepath.Join(shortDir(t), strings.Repeat("long/", 30))
	if _, err := SocketPath(dataDir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without an etcd the socket is known: %v", err)
	}
	far := func() []string {
		found, err := filepath.Glob(filepath.Join(os.TempDir(), farPrefix+"*"))
		must(t, err)
		return found
	}
	etcd := start(t, dataDir)
	first := private(t, filepath.Join(dataDir, EtcdSocketName))
	if socket, err := SocketPath(dataDir); err != nil || socket != first || etcd.Endpoint != "unix://"+first {
		t.Errorf("the socket %s is said to be at %s, the endpoint %s: %v", first, socket, etcd.Endpoint, err)
	}
	if _, err := dial(t, etcd.Endpoint).Put(t.Context(), "key", "value"); err != nil {
		t.Error(err)
	}
	if _, err := StartEtcd(t.Context(), dataDir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "unix://"+first+" --cert-dir "+filepath.Join(dataDir, "pki")) {
		t.Errorf("a second etcd: %v", err)
	}
	link, err := os.Readlink(filepath.Join(dataDir, EtcdSocketName))
	must(t, err)
	must(t, etcd.Close())
	if left := far(); len(left) > 0 {
		t.Errorf("an etcd that was closed leaves %v", left)
	}

	// The files that a killed etcd leaves.
	must(t, errors.Join(os.Mkdir(filepath.Dir(link), 0o700), os.WriteFile(link, nil, 0o600), os.Symlink(link, filepath.Join(dataDir, EtcdSocketName))))
	etcd = start(t, dataDir)
	second, err := SocketPath(dataDir)
	if err != nil || second == first {
		t.Errorf("the second etcd's socket is at %s, the first one's was at %s: %v", second, first, err)
	}
	if there := far(); len(there) != 1 || there[0] != filepath.Dir(second) {
		t.Errorf("beside the directory of %s there is %v", second, there)
	}
	temporary := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	must(t, os.MkdirAll(temporary, 0o700))
	t.Setenv("TMPDIR", temporary)
	if _, err := StartEtcd(t.Context(), filepath.Join(temporary, "data")); err == nil || !strings.Contains(err.Error(), "set TMPDIR to a shorter directory than "+temporary) || len(far()) > 0 {
		t.Errorf("without a short directory: %v; left are %v", err, far())
	}
	must(t, os.Chmod(filepath.Dir(second), 0o755))
	if _, err := SocketPath(dataDir); !errors.Is(err, ErrNotPrivate) {
		t.Errorf("a socket in a directory for everybody: %v", err)
	}
	must(t, etcd.Close())
}

// TestNotPrivate: directories that other users may write to or enter are refused, with the command
// that helps, and are not changed.
func TestNotPrivate(t *testing.T) {
	for name, test := range map[string]struct {
		make func(dataDir string) error
		says string
	}{
		"data directory for everybody to write to": {func(dir string) error { return os.Chmod(dir, 0o777) }, "chmod go-w"},
		"data directory for a group to write to":   {func(dir string) error { return os.Chmod(dir, 0o770) }, "chmod go-w"},
		"private directory for everybody": {func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, privateDirName), 0o755), os.Chmod(filepath.Join(dir, privateDirName), 0o755))
		}, "chmod 700"},
		"private directory for a group": {func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, privateDirName), 0o700), os.Chmod(filepath.Join(dir, privateDirName), 0o710))
		}, "chmod 700"},
		"link for a private directory": {func(dir string) error { return os.Symlink(t.TempDir(), filepath.Join(dir, privateDirName)) }, "no directory"},
		"file for a private directory": {func(dir string) error { return os.WriteFile(filepath.Join(dir, privateDirName), nil, 0o600) }, "no directory"},
	} {
		t.Run(name, func(t *testing.T) {
			dataDir := shortDir(t)
			must(t, test.make(dataDir))
			_, err := StartEtcd(t.Context(), dataDir)
			if !errors.Is(err, ErrNotPrivate) || !strings.Contains(err.Error(), test.says) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("it says %v", err)
			}
			if _, err := os.Stat(filepath.Join(dataDir, EtcdDirName)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an etcd has begun there: %v", err)
			}
		})
	}
	if dataDir := shortDir(t); os.Chown(dataDir, 65534, -1) == nil { // only root may do that
		t.Run("of another user", func(t *testing.T) {
			if _, err := StartEtcd(t.Context(), dataDir); !errors.Is(err, ErrNotPrivate) || !strings.Contains(err.Error(), "chown") {
				t.Errorf("it says %v", err)
			}
		})
	}
}

// TestCloseWithWatch: clients that watch, such as other servers, delay the closing of an etcd for a
// moment only. A busy machine may delay it once.
func TestCloseWithWatch(t *testing.T) {
	for range 3 {
		if closesSoon(t) {
			return
		}
	}
	t.Error("an etcd with a watch closes as late as without our cutting it off")
}

// closesSoon closes an etcd that has a watch, and says whether that was sooner than etcd gives up waiting for the watch.
func closesSoon(t *testing.T) bool {
	dataDir := shortDir(t)
	etcd := start(t, dataDir)
	client := dial(t, etcd.Endpoint)
	watching := client.Watch(t.Context(), "", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	if created := <-watching; !created.Created {
		t.Fatalf("the watch begins with %v", created)
	}
	waits := etcd.etcd.Server.Cfg.ReqTimeout() // as etcd itself would
	begin := time.Now()
	must(t, etcd.Close())
	took := time.Since(begin)
	again := start(t, dataDir) // another etcd can start in the directory
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Errorf("the client does not find the next etcd: %v", err)
	}
	must(t, again.Close())
	return took < waits
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
