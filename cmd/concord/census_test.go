package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/concord-dev/concord/embedded"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// runCensus runs the command and returns what it prints.
func runCensus(ctx context.Context, args ...string) (string, error) {
	cmd := NewCensusCommand()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// censusRows runs the command with JSON output and returns the census, and the number of objects by
// "resource encoding".
func censusRows(t *testing.T, args ...string) (migratestore.Census, map[string]int64) {
	t.Helper()
	out, err := runCensus(t.Context(), append(args, "-o", "json")...)
	requireNoError(t, err)
	var census migratestore.Census
	requireNoError(t, json.Unmarshal([]byte(out), &census))
	rows := map[string]int64{}
	for _, r := range census.Rows {
		rows[r.Resource+" "+r.Encoding] = r.Objects
	}
	return census, rows
}

func requireNoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// storedWidgets is more than one page of a census.
const storedWidgets = 3000

// startData starts an etcd in a data directory short enough for a socket and puts
// objects into it.
func startData(t *testing.T) (dataDir string, etcd *embedded.Etcd, client *clientv3.Client) {
	t.Helper()
	dataDir, err := os.MkdirTemp("", "census")
	requireNoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dataDir) })
	etcd, err = embedded.StartEtcd(t.Context(), dataDir)
	requireNoError(t, err)
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	requireNoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	putWidgets(t, client, "v1", storedWidgets)
	for i := range 12 {
		_, err := client.Put(t.Context(), fmt.Sprintf("/registry/secrets/default/bad-%02d", i), "\xff\xfe")
		requireNoError(t, err)
	}
	_, err = client.Put(t.Context(), "/registry/secrets/default/sealed", "k8s:enc:aescbc:v1:key1:\x00")
	requireNoError(t, err)
	return dataDir, etcd, client
}

func putWidgets(t *testing.T, client *clientv3.Client, version string, n int) {
	t.Helper()
	for from := 0; from < n; from += 100 {
		var ops []clientv3.Op
		for i := from; i < min(n, from+100); i++ {
			ops = append(ops, clientv3.OpPut(fmt.Sprintf("/registry/example.com/widgets/%s-%d", version, i),
				fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":"w"}}`, version)))
		}
		_, err := client.Txn(t.Context()).Then(ops...).Commit()
		requireNoError(t, err)
	}
}

var wantRows = map[string]int64{
	"widgets.example.com example.com/v1": storedWidgets,
	"secrets unknown":                    12,
	"secrets encrypted:aescbc:v1:key1":   1,
}

func TestCensusOfRunningAndStoppedServer(t *testing.T) {
	dataDir, etcd, _ := startData(t)
	stopped := false
	stop := func() {
		if !stopped {
			requireNoError(t, etcd.Close())
			stopped = true
		}
	}
	defer stop()
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)

	running, rows := censusRows(t, "--data-dir", dataDir)
	if !maps.Equal(rows, wantRows) || len(running.Unknown) != 12 {
		t.Fatalf("running: got %v and %v", rows, running.Unknown)
	}
	if _, rows := censusRows(t, "--etcd-servers", etcd.Endpoint); !maps.Equal(rows, wantRows) {
		t.Fatalf("by endpoint: got %v", rows)
	}
	stop()

	before := files(t, dataDir)
	atRest, rows := censusRows(t, "--data-dir", dataDir)
	if !maps.Equal(rows, wantRows) || atRest.Revision != running.Revision {
		t.Fatalf("at rest: got %v at revision %d, want %d", rows, atRest.Revision, running.Revision)
	}
	if after := files(t, dataDir); !maps.Equal(before, after) {
		t.Errorf("the data directory was changed: from %v to %v", before, after)
	}
	if left := files(t, temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// files returns the hashes of all files below dir.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	requireNoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		all[path] = fmt.Sprintf("%x", sha256.Sum256(content))
		return err
	}))
	return all
}

// TestCensusAfterCrash counts in files as a killed etcd leaves them: the database is
// older than the write-ahead log.
func TestCensusAfterCrash(t *testing.T) {
	dataDir, etcd, client := startData(t)
	crashed := t.TempDir()
	requireNoError(t, etcd.Close()) // etcd writes the database to disk
	copyTree(t, filepath.Join(dataDir, embedded.EtcdDirName), filepath.Join(crashed, embedded.EtcdDirName))
	_ = client.Close()
	etcd, err := embedded.StartEtcd(t.Context(), dataDir)
	requireNoError(t, err)
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	requireNoError(t, err)
	putWidgets(t, client, "v2", 20)
	requireNoError(t, client.Close())
	requireNoError(t, etcd.Close())
	wal := filepath.Join(embedded.EtcdDirName, "member", "wal")
	requireNoError(t, os.RemoveAll(filepath.Join(crashed, wal)))
	copyTree(t, filepath.Join(dataDir, wal), filepath.Join(crashed, wal))

	_, rows := censusRows(t, "--data-dir", crashed)
	if rows["widgets.example.com example.com/v2"] != 20 || rows["widgets.example.com example.com/v1"] != storedWidgets {
		t.Fatalf("got %v", rows)
	}
}

func copyTree(t *testing.T, from, to string) {
	t.Helper()
	requireNoError(t, os.CopyFS(to, os.DirFS(from)))
}

func TestCensusOverTLS(t *testing.T) {
	cfg := etcdtest.Config(t.TempDir(), url.URL{Scheme: "https", Host: "127.0.0.1:0"})
	cfg.ClientAutoTLS = true
	cfg.SelfSignedCertValidity = 1
	etcd, err := etcdtest.Start(cfg)
	requireNoError(t, err)
	defer etcd.Close()
	endpoint := "https://" + etcd.Clients[0].Addr().String()
	certs := filepath.Join(cfg.Dir, "fixtures", "client")
	if _, err := runCensus(t.Context(), "--etcd-servers", endpoint, "--etcd-cafile", filepath.Join(certs, "cert.pem")); err == nil || !strings.HasPrefix(err.Error(), "nothing is stored under --etcd-prefix /registry:") {
		t.Fatalf("of an empty etcd: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := runCensus(ctx, "--etcd-servers", endpoint); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Fatalf("without the CA: got %v", err)
	}
}

// TestCopyRemoved: the copy of a stopped server's data, which has its Secrets, is removed also where nobody reads the output
// or the terminal goes away.
func TestCopyRemoved(t *testing.T) {
	dataDir, etcd, _ := startData(t)
	requireNoError(t, etcd.Close())
	for name, disturb := range map[string]func(read *os.File, process *os.Process, copies func() int){
		"closed pipe": func(read *os.File, _ *os.Process, _ func() int) { _ = read.Close() },
		"hangup": func(read *os.File, process *os.Process, copies func() int) {
			for copies() == 0 {
				runtime.Gosched()
			}
			_ = process.Signal(syscall.SIGHUP)
			_, _ = io.Copy(io.Discard, read)
			_ = read.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			temporary := t.TempDir()
			copies := func() int {
				entries, err := os.ReadDir(temporary)
				requireNoError(t, err)
				return len(entries)
			}
			read, write, err := os.Pipe()
			requireNoError(t, err)
			cmd := exec.CommandContext(t.Context(), "concord", "census", "--data-dir", dataDir)
			cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "TMPDIR="+temporary), write, t.Output()
			requireNoError(t, cmd.Start())
			requireNoError(t, write.Close())
			disturb(read, cmd.Process, copies)
			err = cmd.Wait()
			if n := copies(); n > 0 || name == "closed pipe" && err == nil {
				t.Errorf("%d copies are left, and it ends with %v", n, err)
			}
		})
	}
}

// TestDemoUnread: a demo whose output nobody reads ends as one that is interrupted, and leaves nothing.
func TestDemoUnread(t *testing.T) {
	temporary := t.TempDir()
	read, write, err := os.Pipe()
	requireNoError(t, err)
	cmd := exec.CommandContext(t.Context(), "concord", "demo", "--objects", "100")
	var told strings.Builder
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "TMPDIR="+temporary), write, &told
	requireNoError(t, cmd.Start())
	requireNoError(t, errors.Join(write.Close(), read.Close()))
	err = cmd.Wait()
	left, unread := os.ReadDir(temporary)
	requireNoError(t, unread)
	if err == nil || !strings.Contains(told.String(), "interrupted at") || len(left) > 0 {
		t.Errorf("it ends with %v, leaves %v, and says %s", err, left, &told)
	}
}

func TestCensusErrors(t *testing.T) {
	dataDir, etcd, _ := startData(t)
	requireNoError(t, etcd.Close())
	backend := func(dir string) string { return filepath.Join(dir, embedded.EtcdDirName, "member", "snap", "db") }
	intact, damagedDB, damagedLog, truncated, overwritten := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{intact, damagedDB, damagedLog, truncated, overwritten} {
		copyTree(t, filepath.Join(dataDir, embedded.EtcdDirName), filepath.Join(dir, embedded.EtcdDirName))
	}
	requireNoError(t, os.WriteFile(backend(damagedDB), bytes.Repeat([]byte("damaged"), 10000), 0o600))
	damageLogs(t, damagedLog)
	requireNoError(t, os.Truncate(backend(truncated), int64(3*os.Getpagesize())))
	overwrite(t, backend(overwritten))
	db, err := bolt.Open(backend(dataDir), 0o600, nil) // opens and locks the database, as an etcd does that has no socket yet
	requireNoError(t, err)
	defer func() { _ = db.Close() }()

	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no etcd there":         {[]string{"--data-dir", t.TempDir()}, "there is no etcd in"},
		"in use":                {[]string{"--data-dir", dataDir}, "is in use but its etcd does not answer"},
		"another prefix":        {[]string{"--data-dir", intact, "--etcd-prefix", "/nosuch"}, "nothing is stored under --etcd-prefix /nosuch:"},
		"damaged database":      {[]string{"--data-dir", damagedDB}, "invalid database"},
		"truncated database":    {[]string{"--data-dir", truncated}, "the etcd database is damaged"},
		"overwritten database":  {[]string{"--data-dir", overwritten}, "the etcd database is damaged"},
		"damaged log":           {[]string{"--data-dir", damagedLog}, "cannot be opened (if its files are damaged"},
		"nobody there":          {[]string{"--etcd-servers", "unix:///nowhere/etcd.sock"}, "does not answer"},
		"both":                  {[]string{"--etcd-servers", "x", "--data-dir", "y"}, "not both"},
		"no such output":        {[]string{"-o", "yaml"}, "it can be table or json"},
		"no prefix":             {[]string{"--etcd-prefix", "/"}, "--etcd-prefix must not be empty"},
		"certificates for whom": {[]string{"--etcd-cafile", "x"}, "need --etcd-servers"},
		"half a certificate":    {[]string{"--etcd-servers", "x", "--etcd-keyfile", "x"}, "need each other"},
		"no such certificate":   {[]string{"--etcd-servers", "x", "--etcd-cafile", "/nowhere"}, "etcd certificates"},
		"an argument":           {[]string{"everything"}, "concord census counts all resources"},
		"no such flag":          {[]string{"--everything"}, "unknown flag"},
	} {
		t.Run(name, func(t *testing.T) {
			limit := time.Minute
			if name == "nobody there" { // all of which it takes
				limit = 3 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			out, err := runCensus(ctx, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line with %q", err, test.want)
			}
			if out != "" {
				t.Fatalf("printed %q", out)
			}
		})
	}
}

// damageLogs overwrites a piece of each write-ahead log.
func damageLogs(t *testing.T, dataDir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dataDir, embedded.EtcdDirName, "member", "wal", "*.wal"))
	requireNoError(t, err)
	for _, log := range logs {
		f, err := os.OpenFile(log, os.O_WRONLY, 0)
		requireNoError(t, err)
		_, err = f.WriteAt(bytes.Repeat([]byte{0xff}, 200), 300)
		requireNoError(t, err)
		requireNoError(t, f.Close())
	}
}

// overwrite damages every page of a bolt database except the two meta pages, which say where the
// others are.
func overwrite(t *testing.T, file string) {
	t.Helper()
	content, err := os.ReadFile(file)
	requireNoError(t, err)
	for i := 2 * os.Getpagesize(); i < len(content); i++ {
		content[i] = ^content[i]
	}
	requireNoError(t, os.WriteFile(file, content, 0o600))
}

// TestCensusVerifies: with --verify, a census names the values that do not decode, in the table and
// in JSON.
func TestCensusVerifies(t *testing.T) {
	_, etcd, client := startData(t)
	defer func() { requireNoError(t, etcd.Close()) }()
	const damaged = "/registry/configmaps/default/damaged"
	_, err := client.Put(t.Context(), damaged, `{"apiVersion":"v1","kind":"ConfigMap","data":7}`)
	requireNoError(t, err)
	out, err := runCensus(t.Context(), "--etcd-servers", etcd.Endpoint, "--verify")
	requireNoError(t, err)
	for _, part := range []string{
		"\nvalues that cannot be read: 12\n", "\nvalues that do not decode: 1\n  \"" + damaged + "\": ",
		"\nall others decode, but for 1 encrypted values, which were not tried\n",
	} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in %s", part, out)
		}
	}
	census, _ := censusRows(t, "--etcd-servers", etcd.Endpoint, "--verify")
	if len(census.Undecodable) != 1 || census.Undecodable[0].Key != damaged {
		t.Errorf("got %v", census.Undecodable)
	}
	if census, _ := censusRows(t, "--etcd-servers", etcd.Endpoint); census.Undecodable != nil {
		t.Errorf("without --verify it names %v", census.Undecodable)
	}
}
