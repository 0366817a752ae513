package e2e

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/e2e/cluster"
)

// refusalTimeout is how long a server may take to find out that it cannot start. It waits
// a while for an etcd that does not answer.
const refusalTimeout = 60 * time.Second

// refused runs a command that has to end with exit code 1 and one line that has all the parts.
func refused(t *testing.T, args []string, parts ...string) {
	t.Helper()
	binary := cluster.Binary(t)
	p := cluster.NewProcess(t, "refused", t.TempDir(), func() *exec.Cmd { return exec.Command(binary, args...) })
	p.Start()
	result, ended := p.Wait(refusalTimeout)
	if !ended {
		t.Fatalf("concord %s still runs after %v", strings.Join(args, " "), refusalTimeout)
	}
	lines := strings.Split(strings.TrimSpace(result.Stderr), "\n")
	// It may have said what it waits for.
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.Contains(line, `] "Waiting for etcd" `) })
	if result.Code != 1 || len(lines) != 1 || !strings.HasPrefix(lines[0], "concord: ") {
		t.Errorf("concord %s ends with code %d and %d lines, want code 1 and one line:\n%s", strings.Join(args, " "), result.Code, len(lines), result.Stderr)
	}
	if result.Stdout != "" {
		t.Errorf("it prints %q", result.Stdout)
	}
	for _, part := range parts {
		if !strings.Contains(lines[len(lines)-1], part) {
			t.Errorf("there is no %q in: %s", part, lines[len(lines)-1])
		}
	}
}

// Wrong surroundings are named in one line too.
func testRefusedSurroundings(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(t *testing.T, flags []string)
	}{
		{"DataDirectoryLocked", refusesLockedDirectory},
		{"NoEtcdOnSocket", func(t *testing.T, flags []string) {
			refused(t, append(flags, "--etcd-servers", "unix:///nowhere/etcd.sock"), "/nowhere/etcd.sock", "--etcd-servers")
		}},
		{"NoEtcdOnPort", func(t *testing.T, flags []string) {
			at := net.JoinHostPort("127.0.0.1", strconv.Itoa(cluster.FreePort(t)))
			refused(t, append(flags, "--etcd-servers", "http://"+at), at, "--etcd-servers")
		}},
		{"WrongCA", refusesWrongCA},
		{"CorruptDatabase", func(t *testing.T, flags []string) { refusesCorrupt(t, flags, "snap/db", garbage) }},
		{"CorruptLog", func(t *testing.T, flags []string) { refusesCorrupt(t, flags, "wal/*.wal", garbage) }},
		{"TruncatedLog", func(t *testing.T, flags []string) {
			refusesCorrupt(t, flags, "wal/*.wal", func(content []byte) []byte { return content[:len(bytes.TrimRight(content, "\x00"))*2/3] })
		}},
		{"TruncatedDatabase", func(t *testing.T, flags []string) {
			refusesCorrupt(t, flags, "snap/db", func(content []byte) []byte { return content[:5*os.Getpagesize()/2] })
		}},
		{"DamagedPages", func(t *testing.T, flags []string) { refusesCorrupt(t, flags, "snap/db", damagedPages) }},
		{"MissingCAKey", func(t *testing.T, flags []string) { refusesDamagedCA(t, flags, os.Remove) }},
		{"DamagedCAKey", func(t *testing.T, flags []string) {
			refusesDamagedCA(t, flags, func(key string) error { return os.WriteFile(key, []byte("no key"), 0o600) })
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "data")
			test.run(t, []string{"server", "--data-dir", dir, "--secure-port", strconv.Itoa(cluster.FreePort(t))})
		})
	}
}

func refusesLockedDirectory(t *testing.T, flags []string) {
	dir := t.TempDir()
	etcd := cluster.StartEtcd(t, dir, t.TempDir())
	refused(t, append(flags, "--data-dir", dir), dir, "another process", "--data-dir", "--etcd-servers "+etcd.Endpoint)
}

func garbage([]byte) []byte { return []byte(strings.Repeat("this is not a database\n", 5000)) }

// damagedPages damages every page of a database but the two that say where the others are.
func damagedPages(content []byte) []byte {
	for i := 2 * os.Getpagesize(); i < len(content); i++ {
		content[i] = ^content[i]
	}
	return content
}

// refusesDamagedCA damages the key of a cluster's CA.
func refusesDamagedCA(t *testing.T, flags []string, damage func(key string) error) {
	c := cluster.NewEmbedded(t)
	c.Start(cluster.Options{}, "one")[0].Terminate()
	key := filepath.Join(c.CertDir, "ca.key")
	must(t, damage(key))
	refused(t, append(flags, "--cert-dir", c.CertDir), key, "restore it", "--cert-dir")
}

// refusesCorrupt damages the matching files of an etcd's data.
func refusesCorrupt(t *testing.T, flags []string, pattern string, damage func(content []byte) []byte) {
	dir := t.TempDir()
	cluster.StartEtcd(t, dir, t.TempDir()).Terminate()
	files, err := filepath.Glob(filepath.Join(dir, "etcd", "member", pattern))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files %s: %v", pattern, err)
	}
	for _, file := range files {
		content, err := os.ReadFile(file)
		must(t, err)
		must(t, os.WriteFile(file, damage(content), 0o600))
	}
	refused(t, append(flags, "--data-dir", dir), dir, "backup")
}

// A certificate that is refused is told at once: nothing but it is wrong.
func refusesWrongCA(t *testing.T, flags []string) {
	ca := cluster.NewAuthority(t, "etcd-ca")
	endpoint := cluster.StartTLSEtcd(t, ca.Files("etcd"))
	client, stranger := ca.Files("client"), cluster.NewAuthority(t, "other-ca").Files("client")
	with := func(ca, cert, key string) []string {
		return append(flags, "--etcd-servers", endpoint, "--etcd-cafile", ca, "--etcd-certfile", cert, "--etcd-keyfile", key)
	}
	refused(t, with(stranger.CA, client.Cert, client.Key), "--etcd-cafile must name", "certificate signed by unknown authority")
	refused(t, with(client.CA, stranger.Cert, stranger.Key), "--etcd-certfile and --etcd-keyfile must name")
}

// A server on an etcd with TLS works with the right certificates.
func TestEtcdWithTLS(t *testing.T) {
	t.Parallel()
	ca := cluster.NewAuthority(t, "etcd-ca")
	endpoint := cluster.StartTLSEtcd(t, ca.Files("etcd"))
	files := ca.Files("client")
	c := cluster.NewExternal(t, endpoint)
	args := strings.Join([]string{"--etcd-cafile", files.CA, "--etcd-certfile", files.Cert, "--etcd-keyfile", files.Key}, " ")
	c.Start(cluster.Options{Args: args}, "one")[0].Terminate()
}
