package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
	"k8s.io/api/apiserverinternal/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/embedded"
)

// bump is the revision bump of a restore: far more than the writes between backup and restore.
const bump = 1_000_000_000

// TestRestore follows the rule for backups in docs/faults.md: stop all servers, and restore with a revision bump.
// Then no fence revision or resourceVersion is used a second time.
func TestRestore(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	before := cluster.New(t)
	servers := before.Start(cluster.Options{}, "one", "two")
	kept := createConfigMap(ctx, t, servers[0], "kept")
	before.WaitSettled()
	backup := saveBackup(ctx, t, before.Raw)
	createConfigMap(ctx, t, servers[1], "lost")
	last := before.Revision()
	for _, s := range servers {
		s.Terminate()
	}
	before.Check()

	dir := t.TempDir()
	restore(t, backup, filepath.Join(dir, embedded.EtcdDirName), bump)
	etcd := cluster.StartEtcd(t, dir, dir)
	after := cluster.NewExternal(t, etcd.Endpoint)
	restored := after.Start(cluster.Options{}, "three", "four")
	configMaps := restored[0].Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	got, err := configMaps.Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || got.UID != kept.UID || got.Data["a"] != "b" {
		t.Errorf("what the backup held: %v, %v", got, err)
	}
	if _, err := configMaps.Get(ctx, "lost", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was written after the backup: %v, want not found", err)
	}
	waitBuried(t, restored...)
	fresh := createConfigMap(ctx, t, restored[1], "fresh")
	revision, err := etcd.Raw.Get(ctx, "revision")
	must(t, err)
	if revision.Header.Revision <= last {
		t.Errorf("%s was written by revision %d, not after %d, the last one before the restore", fresh.Name, revision.Header.Revision, last)
	}
}

// lost is how many writes are made after a backup: more than a server makes in the half second between two of its
// checks of etcd.
const lost = 500

// TestRestoreUnder breaks the rule: etcd is restored to an earlier revision while a server runs. Until it is
// restarted, the server refuses writes and says why, also in /livez and /readyz.
func TestRestoreUnder(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 6*time.Minute)
	defer cancel()
	dir := t.TempDir()
	etcd := cluster.StartEtcd(t, dir, dir)
	c := cluster.NewExternal(t, etcd.Endpoint)
	s := c.Start(cluster.Options{}, "one")[0]
	waitBuried(t, s)
	backup := saveBackup(ctx, t, etcd.Raw)
	for i := range lost {
		createConfigMap(ctx, t, s, fmt.Sprint("lost-", i))
	}
	etcd.Kill()
	data := filepath.Join(dir, embedded.EtcdDirName)
	must(t, os.RemoveAll(data))
	restore(t, backup, data, 0)
	etcd.Start()
	etcd.WaitReady()
	cluster.Eventually(t, cluster.SettleTimeout, "the server has noticed", func(ctx context.Context) error {
		for _, path := range []string{"/livez", "/readyz"} {
			if status, body, err := s.Get(ctx, path+"?verbose"); err != nil || status == http.StatusOK || !strings.Contains(body, "[-]etcd-restored") {
				return fmt.Errorf("%s: %d %s, %w", path, status, body, err)
			}
		}
		return nil
	})
	configMaps := s.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	_, err := configMaps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "refused"}}, metav1.CreateOptions{})
	if !apierrors.IsServiceUnavailable(err) || !strings.Contains(err.Error(), "restored from a backup") {
		t.Errorf("a write: %v", err)
	}
	s.Kill()
	s.StartAs(cluster.Options{})
	s.WaitReady()
	waitBuried(t, s)
	createConfigMap(ctx, t, s, "taken")
}

// waitBuried waits until only these servers have reports: those from the time of the backup are gone.
func waitBuried(t *testing.T, servers ...*cluster.Server) {
	t.Helper()
	objects := servers[0].Objects()
	cluster.Eventually(t, cluster.SettleTimeout, "the servers of the backup are buried", func(ctx context.Context) error {
		var list v1alpha1.StorageVersionList
		if err := objects.List(ctx, &list); err != nil {
			return err
		}
		for _, sv := range list.Items {
			for _, r := range sv.Status.StorageVersions {
				if !slices.ContainsFunc(servers, func(s *cluster.Server) bool {
					id, ok := s.ID()
					return ok && string(id) == r.APIServerID
				}) {
					return fmt.Errorf("%s reports %s", r.APIServerID, sv.Name)
				}
			}
			if _, agreed := storageversion.Agreement(&sv); !agreed {
				return fmt.Errorf("no agreement on %s", sv.Name)
			}
		}
		return nil
	})
}

func createConfigMap(ctx context.Context, t *testing.T, s *cluster.Server, name string) *corev1.ConfigMap {
	t.Helper()
	created, err := s.Kube().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	must(t, err)
	return created
}

func saveBackup(ctx context.Context, t *testing.T, raw *clientv3.Client) string {
	t.Helper()
	from, err := raw.Snapshot(ctx)
	must(t, err)
	path := filepath.Join(t.TempDir(), "backup")
	to, err := os.Create(path)
	must(t, err)
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	must(t, to.Close())
	return path
}

func restore(t *testing.T, backup, dir string, bump uint64) {
	t.Helper()
	const peer = "http://127.0.0.1:0"
	err := snapshot.NewV3(zap.NewNop()).Restore(snapshot.RestoreConfig{
		SnapshotPath: backup, Name: "concord", OutputDataDir: dir,
		PeerURLs: []string{peer}, InitialCluster: "concord=" + peer,
		RevisionBump: bump, MarkCompacted: bump > 0,
	})
	must(t, err)
}

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
	// The program may have logged its version, and that it waits for etcd.
	lines = slices.DeleteFunc(lines, func(line string) bool {
		return strings.Contains(line, `] "Starting" `) || strings.Contains(line, `] "Waiting for etcd" `)
	})
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

// testRefusedSurroundings: a wrong environment (files, etcd, certificates) is named in one line, too.
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

// damagedPages damages every page of a database except the first two, which say where the others are.
func damagedPages(content []byte) []byte {
	for i := 2 * os.Getpagesize(); i < len(content); i++ {
		content[i] = ^content[i]
	}
	return content
}

// refusesDamagedCA damages the key of a cluster's CA, and expects that a server refuses to start.
func refusesDamagedCA(t *testing.T, flags []string, damage func(key string) error) {
	c := cluster.NewEmbedded(t)
	c.Start(cluster.Options{}, "one")[0].Terminate()
	key := filepath.Join(c.CertDir, "ca.key")
	must(t, damage(key))
	refused(t, append(flags, "--cert-dir", c.CertDir), key, "restore it", "--cert-dir")
}

// refusesCorrupt damages the files of an etcd's data that match the pattern, and expects that a server refuses to
// start.
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

// refusesWrongCA: a certificate that is refused is reported at once; the server does not wait for etcd, which runs.
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

// TestEtcdWithTLS: a server on an etcd with TLS works with the right certificates.
func TestEtcdWithTLS(t *testing.T) {
	t.Parallel()
	ca := cluster.NewAuthority(t, "etcd-ca")
	endpoint := cluster.StartTLSEtcd(t, ca.Files("etcd"))
	files := ca.Files("client")
	c := cluster.NewExternal(t, endpoint)
	args := strings.Join([]string{"--etcd-cafile", files.CA, "--etcd-certfile", files.Cert, "--etcd-keyfile", files.Key}, " ")
	c.Start(cluster.Options{Args: args}, "one")[0].Terminate()
}
