package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// smallQuota is the space of an etcd that is to be without soon.
const smallQuota = 24 << 20

// startSmallEtcd starts an etcd with little space in this process.
func startSmallEtcd(t *testing.T) (endpoint string, raw *clientv3.Client) {
	t.Helper()
	dir := t.TempDir()
	endpoint = cluster.Endpoint(t, dir)
	client, err := url.Parse(endpoint)
	must(t, err)
	config := etcdtest.Config(filepath.Join(dir, "data"), *client)
	config.QuotaBackendBytes = smallQuota
	etcd, err := etcdtest.Start(config)
	must(t, err)
	t.Cleanup(etcd.Close)
	return endpoint, cluster.Connect(t, endpoint)
}

const fillerPrefix = "/filler/"

// useUp writes until the etcd takes no more.
func useUp(t *testing.T, raw *clientv3.Client) {
	t.Helper()
	value := strings.Repeat("x", 256<<10)
	for i := range 2 * smallQuota / len(value) {
		_, err := raw.Put(t.Context(), fmt.Sprintf("%s%d", fillerPrefix, i), value)
		if errors.Is(err, rpctypes.ErrNoSpace) {
			return
		}
		must(t, err)
	}
	t.Fatal("etcd still has space")
}

// makeRoom does what the message says.
func makeRoom(t *testing.T, endpoint string, raw *clientv3.Client) {
	t.Helper()
	resp, err := raw.Delete(t.Context(), fillerPrefix, clientv3.WithPrefix())
	if err == nil {
		_, err = raw.Compact(t.Context(), resp.Header.Revision, clientv3.WithCompactPhysical())
	}
	if err == nil {
		_, err = raw.Defragment(t.Context(), endpoint)
	}
	if err == nil {
		_, err = raw.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	}
	must(t, err)
}

// An etcd out of space is as bad as one that is away: writes are refused with a message that
// says what to do, the server is not ready, and nobody is taken for dead. Deletes pass. A
// migration waits, and goes on by itself when there is space. A server can be stopped meanwhile.
func TestEtcdNoSpace(t *testing.T) {
	t.Parallel()
	endpoint, raw := startSmallEtcd(t)
	c := cluster.NewExternal(t, endpoint)
	servers := c.Start(atRate(50), "one", "two", "stopped")
	stopped := servers[2]
	servers = servers[:2]
	s, config := servers[0], servers[0].Config()
	createWidgets(t, "v1", servers...)
	account := named("v1", "ServiceAccount", "plain")
	if a := send(t.Context(), config, http.MethodPost, "/api/v1/namespaces/default/serviceaccounts", account); a.status != http.StatusCreated {
		t.Fatal(a)
	}
	const objects = 400
	fill(t, s, widgetsV1, objects)
	if a := send(t.Context(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "old")); a.status != http.StatusCreated {
		t.Fatal(a)
	}
	storeWidgetsIn(t, s, "v2")
	cluster.Eventually(t, time.Minute, "the migration is under way", func(ctx context.Context) error {
		if found := widgetsIn(t, raw, "v2"); found < 10 || found > objects/2 {
			return fmt.Errorf("%d objects are in v2", found)
		}
		return nil
	})
	useUp(t, raw)
	for _, server := range servers {
		server.WaitUnready(time.Minute)
	}
	if _, body, err := s.Get(t.Context(), "/readyz?verbose"); err != nil || !strings.Contains(body, "[-]etcd-space") {
		t.Errorf("readyz says %s %v", body, err)
	}
	a := send(t.Context(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "new"))
	if !a.saysUnwritten() || a.retryAfter == "" || !strings.Contains(a.body, "etcdctl alarm disarm") {
		t.Errorf("a write is answered with %v", a)
	}
	if a := send(t.Context(), config, http.MethodDelete, configMapsPath+"/old", ""); a.status != http.StatusOK {
		t.Errorf("a delete is answered with %v", a)
	}
	for path, body := range map[string]string{
		configMapsPath + "?dryRun=All":                           named("v1", "ConfigMap", "new"),
		"/api/v1/namespaces/default/serviceaccounts/plain/token": `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}`,
		"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": `{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{"nonResourceAttributes":{"path":"/","verb":"get"}}}`,
	} {
		if a := send(t.Context(), config, http.MethodPost, path, body); a.status != http.StatusCreated {
			t.Errorf("%s, of which nothing is stored, is answered with %v", path, a)
		}
	}
	noLineForEach(t, s, func() int { return refusedWrites(t, config) })
	stopped.Terminate()
	if !strings.Contains(stopped.Output(), "Leaving without dropping the reports") {
		t.Errorf("a server that was stopped says %s", stopped.Output())
	}
	ids := len(servers[0].IDs()) + len(servers[1].IDs())
	stuck := widgetsIn(t, raw, "v2")
	cluster.Eventually(t, time.Minute, "every Lease has run out for long", leasesRunOut(s, len(servers)))
	if found := widgetsIn(t, raw, "v2"); found != stuck || found == objects {
		t.Errorf("of %d objects in v2 there came to be %d without space", stuck, found)
	}
	makeRoom(t, endpoint, raw)
	for _, server := range servers {
		server.WaitReady()
	}
	cluster.Eventually(t, cluster.SettleTimeout, "the migration goes on", func(ctx context.Context) error {
		if found := widgetsIn(t, raw, "v2"); found != objects {
			return fmt.Errorf("%d objects are in v2", found)
		}
		return nil
	})
	if now := len(servers[0].IDs()) + len(servers[1].IDs()); now != ids {
		t.Errorf("%d servers were buried", now-ids)
	}
}

// refusedWrites sends writes that are all refused for want of space, and returns how many.
func refusedWrites(t *testing.T, config *rest.Config) int {
	t.Helper()
	const writes = 400
	for range writes {
		if a := send(t.Context(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "new")); !a.saysUnwritten() {
			t.Fatalf("a write is answered with %v", a)
		}
	}
	return writes
}

// noLineForEach: an error that occurs many times is logged in far fewer lines, whatever else
// the server says in the meantime.
func noLineForEach(t *testing.T, s *cluster.Server, failures func() int) {
	t.Helper()
	before := strings.Count(s.Output(), "\n")
	failed := failures()
	lines := strings.Count(s.Output(), "\n") - before
	t.Logf("%d lines were logged for %d refused writes", lines, failed)
	if lines > failed/4 {
		t.Errorf("%d lines were logged for %d refused writes: %.3000s", lines, failed, s.Output())
	}
}

// leasesRunOut: servers whose identity Leases are so old would be buried if they were dead.
func leasesRunOut(s *cluster.Server, want int) func(context.Context) error {
	return func(ctx context.Context) error {
		leases, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).List(ctx, metav1.ListOptions{LabelSelector: storageversion.Identities.String()})
		if err != nil {
			return err
		}
		if len(leases.Items) < want {
			return fmt.Errorf("there are %d Leases", len(leases.Items))
		}
		for _, lease := range leases.Items {
			if age := time.Since(lease.Spec.RenewTime.Time); age < 3*cluster.LeaseDuration {
				return fmt.Errorf("%s was renewed %v ago", lease.Name, age)
			}
		}
		return nil
	}
}

// widgetsIn counts the widgets that are stored in a version.
func widgetsIn(t *testing.T, raw *clientv3.Client, version string) (n int) {
	t.Helper()
	resp, err := etcdserverpb.NewKVClient(raw.ActiveConnection()).Range(t.Context(), &etcdserverpb.RangeRequest{
		Key: []byte("/registry/e2e.concord.dev/widgets/"), RangeEnd: []byte("/registry/e2e.concord.dev/widgets0"),
	})
	must(t, err)
	for _, kv := range resp.Kvs {
		if strings.Contains(string(kv.Value), `"apiVersion":"e2e.concord.dev/`+version+`"`) {
			n++
		}
	}
	return n
}
