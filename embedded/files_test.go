package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// TestMain gives an etcd time to write what it writes at its end, for which a busy disk needs more than
// a server waits.
func TestMain(m *testing.M) {
	etcdCloseTimeout = time.Minute
	os.Exit(m.Run())
}

// closedEtcd returns the data directory of an etcd that was written to and then closed.
func closedEtcd(t *testing.T) (dataDir string) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "db") // its path is short enough for a Unix socket
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

// runEtcd starts an etcd, calls use with a client of it, and closes it.
func runEtcd(t *testing.T, dataDir string, use func(*clientv3.Client)) {
	t.Helper()
	etcd, err := StartEtcd(t.Context(), dataDir)
	must(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}})
	must(t, err)
	use(client)
	must(t, errors.Join(client.Close(), etcd.Close()))
}

// TestLogCutOff cuts the write-ahead log off at many places. The check must find a log that lacks
// entries which the database has, because an etcd waits for such entries for ever.
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

// stoppedDatabase returns the database of an etcd, with so many keys that its tree has several
// levels, and the same file as it was before the last write.
func stoppedDatabase(t *testing.T) (content, before []byte) {
	t.Helper()
	dir, err := os.MkdirTemp("", "db") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd, err := StartEtcd(t.Context(), dir)
	must(t, err)
	must(t, etcd.Close())
	file := filepath.Join(dir, EtcdDirName, "member", "snap", "db")
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoFreelistSync: true, NoSync: true})
	must(t, err)
	for round := range 4 {
		before, err = os.ReadFile(file)
		must(t, err)
		err := db.Update(func(tx *bolt.Tx) error {
			b := tx.Bucket([]byte("key"))
			for i := range 200 {
				if err := b.Put(fmt.Appendf(nil, "%016d_", i*(round+1)), make([]byte, 20+i%100)); err != nil {
					return err
				}
			}
			return b.Put([]byte("large"), make([]byte, 5*os.Getpagesize()))
		})
		must(t, err)
	}
	var size int64 // the size of the used part; bbolt makes files larger
	must(t, db.View(func(tx *bolt.Tx) error { size = tx.Size(); return nil }))
	must(t, db.Close())
	content, err = os.ReadFile(file)
	must(t, err)
	return content[:size], before[:size]
}

// usable opens and writes the database as etcd does; a damaged database makes bbolt end the
// process.
func usable(t *testing.T, file string) {
	t.Helper()
	db, err := bolt.Open(file, 0o600, &bolt.Options{NoFreelistSync: true, NoSync: true, Timeout: time.Second})
	must(t, err)
	defer func() { _ = db.Close() }()
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bolt.Bucket) error { return b.Put([]byte("new"), nil) })
	})
	must(t, err)
}

// TestCheckDatabase damages every page in several ways: either the check finds the damage, or the
// database can still be used.
func TestCheckDatabase(t *testing.T) {
	content, before := stoppedDatabase(t)
	page := os.Getpagesize()
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2))
	try := func(what string, damage func(content []byte) []byte) (damaged bool) {
		t.Helper()
		// bbolt keeps the lock of a file in which it has found damage.
		file := filepath.Join(dir, what)
		defer func() { _ = os.Remove(file) }()
		must(t, os.WriteFile(file, damage(append([]byte(nil), content...)), 0o600))
		err := CheckDatabase(file, time.Second)
		if err != nil && !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", what, err)
		}
		if err == nil {
			usable(t, file)
		}
		return err != nil
	}
	if try("nothing", func(b []byte) []byte { return b }) {
		t.Fatal("a sound database passes for damaged")
	}
	pages := len(content) / page
	found := map[string]int{}
	for i := range pages {
		at := func(b []byte) []byte { return b[i*page : (i+1)*page] }
		for name, damage := range map[string]func([]byte) []byte{
			"truncated": func(b []byte) []byte { return b[:i*page+random.IntN(page)] },
			"zeroed":    func(b []byte) []byte { clear(at(b)); return b },
			"another":   func(b []byte) []byte { copy(at(b), b[random.IntN(pages)*page:]); return b },
			"garbage": func(b []byte) []byte {
				for j := range at(b) {
					at(b)[j] = byte(random.Uint32())
				}
				return b
			},
			"not written": func(b []byte) []byte { copy(at(b), before[i*page:]); return b },
			"its kind":    func(b []byte) []byte { at(b)[8] ^= 1 << random.IntN(8); return b },
			"its length":  func(b []byte) []byte { at(b)[10+random.IntN(6)] ^= 1 << random.IntN(8); return b },
			"a circle":    func(b []byte) []byte { copy(at(b)[24:32], at(b)[:8]); return b }, // its first child is the page itself
		} {
			if try(fmt.Sprintf("page %d: %s", i, name), damage) {
				found[name]++
			}
		}
	}
	t.Logf("of %d pages, damage was found in %v", pages, found)
	for name, least := range map[string]int{"truncated": pages / 4, "zeroed": pages / 4, "another": pages / 4, "garbage": pages / 4, "not written": pages / 8, "its kind": pages / 4, "its length": pages / 4, "a circle": 1} {
		if found[name] < least {
			t.Errorf("%s: found in %d of %d pages, want at least %d: some are free, but not so many", name, found[name], pages, least)
		}
	}
}

// TestStartKilledEarly: an etcd starts on an empty database file, as left by a first start that was
// killed.
func TestStartKilledEarly(t *testing.T) {
	dir, err := os.MkdirTemp("", "db") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	snap := filepath.Join(dir, EtcdDirName, "member", "snap")
	must(t, errors.Join(os.MkdirAll(snap, 0o700), os.WriteFile(filepath.Join(snap, "db"), nil, 0o600)))
	etcd, err := StartEtcd(t.Context(), dir)
	must(t, err)
	if err := etcd.Close(); err != nil {
		t.Error(err)
	}
}

// TestEtcdLogger: a panic of etcd says why, as on a full disk, where it logs the reason in a field.
func TestEtcdLogger(t *testing.T) {
	for level, log := range map[string]func(string, ...zap.Field){"panic": EtcdLogger().Panic, "fatal": EtcdLogger().Fatal} {
		err := func() (err error) {
			defer func() { err, _ = recover().(error) }()
			log("failed to create WAL", zap.Error(&os.PathError{Op: "write", Path: "wal", Err: unix.ENOSPC}))
			return nil
		}()
		if !errors.Is(err, unix.ENOSPC) || !strings.HasPrefix(err.Error(), "failed to create WAL: ") {
			t.Errorf("%s: %v", level, err)
		}
	}
}

// TestStartStopped: a start that is stopped does not speak of damaged files.
func TestStartStopped(t *testing.T) {
	dir, err := os.MkdirTemp("", "db") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := StartEtcd(ctx, dir); !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), etcdMend) {
		t.Error(err)
	}
}

// TestFirstStartCutOff: the files of a first start that was killed before its end are moved aside
// by the next start, and later starts move nothing.
func TestFirstStartCutOff(t *testing.T) {
	dir, err := os.MkdirTemp("", "db") // its path is short enough for a Unix socket
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	finish, err := beginFirst(dir)
	must(t, err)
	_ = finish // as if the process were killed here, with some of etcd's files written
	must(t, os.MkdirAll(filepath.Join(dir, EtcdDirName, "member", "wal"), 0o700))
	for range 3 {
		etcd, err := StartEtcd(t.Context(), dir)
		must(t, err)
		must(t, etcd.Close())
		if aside, err := filepath.Glob(filepath.Join(dir, EtcdDirName+".unfinished-*")); err != nil || len(aside) != 1 {
			t.Errorf("put aside: %v, %v", aside, err)
		}
		if _, err := os.Stat(filepath.Join(dir, firstStartName)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the mark is still there: %v", err)
		}
	}
}

func TestCheckDatabaseInUse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	if err := CheckDatabase(file, time.Second); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	db, err := bolt.Open(file, 0o600, nil)
	must(t, err)
	if err := CheckDatabase(file, time.Millisecond); !errors.Is(err, bolterrors.ErrTimeout) {
		t.Errorf("in use: %v", err)
	}
	must(t, db.Close())
	if err := CheckDatabase(file, time.Second); err != nil {
		t.Errorf("new: %v", err)
	}
}
