package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/datadir"
)

// closedEtcd returns a data directory whose etcd has taken some writes and was closed.
func closedEtcd(t *testing.T) (dataDir string) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "db") // short enough for a socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dataDir) })
	runEtcd(t, dataDir, func(client *clientv3.Client) {
		for i := range 50 {
			if _, err := client.Put(t.Context(), fmt.Sprint("key", i), strings.Repeat("x", 10*i)); err != nil {
				t.Fatal(err)
			}
		}
	})
	return dataDir
}

// runEtcd starts and closes an etcd.
func runEtcd(t *testing.T, dataDir string, use func(*clientv3.Client)) {
	t.Helper()
	etcd, err := StartEtcd(t.Context(), dataDir)
	must(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	must(t, err)
	use(client)
	must(t, errors.Join(client.Close(), etcd.Close()))
}

// TestLogCutOff cuts a log off at many places. An etcd that has entries in its database
// which are not in its log waits for them without end, so that has to be found out before.
func TestLogCutOff(t *testing.T) {
	dataDir := closedEtcd(t)
	dir := filepath.Join(dataDir, EtcdDirName)
	if err := checkFiles(dir); err != nil {
		t.Fatalf("a sound log: %v", err)
	}
	applied, err := checkDatabase(datadir.ToBackendFileName(dir), etcdStartTimeout)
	if err != nil || applied < 50 {
		t.Fatalf("the database says that it has entries up to %d: %v", applied, err)
	}
	logs, err := filepath.Glob(filepath.Join(datadir.ToWALDir(dir), "*.wal"))
	if err != nil || len(logs) != 1 {
		t.Fatalf("logs %v: %v", logs, err)
	}
	content, err := os.ReadFile(logs[0])
	must(t, err)
	used := len(strings.TrimRight(string(content), "\x00"))
	const cuts = 40
	for i := range cuts {
		for how, damaged := range map[string]int{"truncated": used * i / cuts, "zeroed": len(content)} {
			kept := content[:used*i/cuts]
			must(t, errors.Join(os.WriteFile(logs[0], kept, 0o600), os.Truncate(logs[0], int64(damaged))))
			if err := checkFiles(dir); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "the log was cut off") {
				t.Errorf("%s at %d of %d bytes: %v", how, len(kept), used, err)
			}
		}
	}
	if etcd, err := StartEtcd(t.Context(), dataDir); !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "\n") {
		t.Errorf("etcd %v starts on a log that was cut off: %v", etcd, err)
	}
	must(t, os.Remove(logs[0]))
	if err := checkFiles(dir); !errors.Is(err, ErrDamaged) {
		t.Errorf("without the log: %v", err)
	}
	must(t, os.WriteFile(logs[0], content, 0o600))
	runEtcd(t, dataDir, func(client *clientv3.Client) {
		if got, err := client.Get(context.Background(), "key", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != 50 {
			t.Errorf("with the log put back there are %v keys: %v", got, err)
		}
	})
}

// TestClosedFiles: only the files that an orderly end has left behind, untouched, are
// believed to be sound.
func TestClosedFiles(t *testing.T) {
	dataDir := closedEtcd(t)
	database := datadir.ToBackendFileName(filepath.Join(dataDir, EtcdDirName))
	take := func(what string, want bool) {
		t.Helper()
		got, err := takeClosed(dataDir)
		if err != nil || got != want {
			t.Errorf("%s: sound is %t (%v), want %t", what, got, err, want)
		}
	}
	take("closed", true)
	take("taken before", false)
	closed := func() {
		t.Helper()
		runEtcd(t, dataDir, func(*clientv3.Client) {
			if _, err := os.Stat(filepath.Join(dataDir, closedName)); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("an etcd that runs is said to be closed: %v", err)
			}
		})
	}
	closed()
	content, err := os.ReadFile(database)
	must(t, err)
	info, err := os.Stat(database)
	must(t, err)
	// The same size, and a time of modification that was put back.
	must(t, errors.Join(os.WriteFile(database, content, 0o600), os.Chtimes(database, info.ModTime(), info.ModTime())))
	take("written to", false)
	closed()
	logs, err := filepath.Glob(filepath.Join(dataDir, EtcdDirName, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(err)
	}
	must(t, os.Truncate(logs[len(logs)-1], 1000))
	take("the log cut off", false)
}
