package plugin_test

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/beside/itself"
	"github.com/concord-dev/concord/e2e/cluster"
)

// TestReadOnlyEtcd runs kubectl concord on the etcd of a stock kube-apiserver, as a user of etcd
// that may only read the keys under /registry. The commands census and keys work, and etcd is at
// the same revision afterwards. For an encrypted value the plugin names the key, and says that
// it is needed, although it has no key itself.
func TestReadOnlyEtcd(t *testing.T) {
	ca := cluster.NewAuthority(t, "etcd-ca")
	endpoint := cluster.StartTLSEtcd(t, ca.Files("etcd"))
	root, reader := ca.Files("root"), ca.Files("reader")
	c := beside.New(t, itself.Programs)
	flags := []string{"--etcd-servers=" + endpoint, "--etcd-cafile=" + root.CA, "--etcd-certfile=" + root.Cert, "--etcd-keyfile=" + root.Key}
	s := c.APIServer("a", flags...)
	w := s.Define("widgets", false, nil)
	w.Fill(30, nil)
	s.Terminate() // so that nothing is written

	admin := etcdClient(t, endpoint, root)
	grant(t, admin)
	if _, err := etcdClient(t, endpoint, reader).Put(t.Context(), "/registry/x", "y"); err == nil || err.Error() != rpctypes.ErrPermissionDenied.Error() {
		t.Fatalf("the reader may write: %v", err)
	}
	before := revisionOf(t, admin)
	run := pluginOn(t, endpoint, reader)
	var census struct {
		Rows []struct {
			Resource, Encoding string
			Objects            int
		}
		Revision int64
	}
	must(t, json.Unmarshal([]byte(run(0, "census", w.Name(), "-o", "json")), &census))
	counted := map[string]int{}
	for _, row := range census.Rows {
		if row.Resource != w.Name() {
			t.Errorf("counted %+v", row)
		}
		counted[row.Encoding] = row.Objects
	}
	if len(counted) != 1 || counted[beside.V1] != 30 || census.Revision != before {
		t.Errorf("counted %v at revision %d, not %d", counted, census.Revision, before)
	}
	if text := run(0, "census"); !strings.Contains(text, "customresourcedefinitions.apiextensions.k8s.io") || !strings.Contains(text, "apiextensions.k8s.io/v1") {
		t.Errorf("printed %s", text)
	}
	if text := run(0, "keys"); !strings.Contains(text, "nothing is encrypted") {
		t.Errorf("printed %s", text)
	}
	if after := revisionOf(t, admin); after != before {
		t.Errorf("etcd went from revision %d to %d", before, after)
	}
	wantKeys(t, admin, run)
}

// wantKeys puts an encrypted value into etcd, and expects that the command keys names its key.
func wantKeys(t *testing.T, admin *clientv3.Client, run func(int, ...string) string) {
	t.Helper()
	const key = "aescbc:v1:key1"
	if _, err := admin.Put(t.Context(), "/registry/secrets/default/sealed", "k8s:enc:"+key+":\x00"); err != nil {
		t.Fatal(err)
	}
	before := revisionOf(t, admin)
	for _, text := range []string{run(0, "keys"), run(2, "keys", key)} {
		if !regexp.MustCompile(`(?m)^` + key + ` +1 +no$`).MatchString(text) {
			t.Errorf("printed %s", text)
		}
	}
	if text := run(0, "census", "secrets"); !strings.Contains(text, key) {
		t.Errorf("printed %s", text)
	}
	if after := revisionOf(t, admin); after != before {
		t.Errorf("etcd went from revision %d to %d", before, after)
	}
}

// grant turns on the authentication of etcd, with the users root and reader; reader may read the
// keys under /registry.
func grant(t *testing.T, admin *clientv3.Client) {
	t.Helper()
	must := func(_ any, err error) {
		t.Helper()
		must(t, err)
	}
	for user, role := range map[string]string{"root": "root", "reader": "reads"} {
		must(admin.RoleAdd(t.Context(), role))
		must(admin.UserAddWithOptions(t.Context(), user, "", &clientv3.UserAddOptions{NoPassword: true}))
		must(admin.UserGrantRole(t.Context(), user, role))
	}
	must(admin.RoleGrantPermission(t.Context(), "reads", "/registry/", clientv3.GetPrefixRangeEnd("/registry/"), clientv3.PermissionType(clientv3.PermRead)))
	must(admin.AuthEnable(t.Context()))
}

func revisionOf(t *testing.T, admin *clientv3.Client) int64 {
	t.Helper()
	response, err := admin.Get(t.Context(), "/registry/", clientv3.WithCountOnly(), clientv3.WithPrefix())
	must(t, err)
	return response.Header.Revision
}

// pluginOn builds kubectl concord, and returns a function that runs it on an etcd: with the exit
// code that is expected, and the arguments.
func pluginOn(t *testing.T, endpoint string, reader cluster.Pair) func(code int, args ...string) string {
	t.Helper()
	program := buildPlugin(t)
	return func(code int, args ...string) string {
		t.Helper()
		var out, complaints bytes.Buffer
		cmd := exec.Command(program, append(args, "--etcd-servers="+endpoint, "--etcd-cafile="+reader.CA, "--etcd-certfile="+reader.Cert, "--etcd-keyfile="+reader.Key)...)
		cmd.Env = []string{"KUBECONFIG=/nowhere"} // no API server is asked
		cmd.Stdout, cmd.Stderr = &out, &complaints
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != code {
			t.Fatalf("%s: %v, not exit code %d\n%s", strings.Join(args, " "), err, code, complaints.String())
		}
		return out.String()
	}
}

func etcdClient(t *testing.T, endpoint string, pair cluster.Pair) *clientv3.Client {
	t.Helper()
	tls, err := transport.TLSInfo{TrustedCAFile: pair.CA, CertFile: pair.Cert, KeyFile: pair.Key}.ClientConfig()
	must(t, err)
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, TLS: tls})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}
