package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// atOnce is the time within which a server has to answer requests for which it need not ask
// etcd, on a busy machine. It is below the 34 s after which a request that waits for etcd is given up, and the 30 s
// for which a server that stops waits for writes under way.
const atOnce = 25 * time.Second

const (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	widgetsPath    = "/apis/e2e.concord.dev/v1/namespaces/default/widgets"
	reviewsPath    = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

// answer is the outcome of one HTTP request, which was not tried again.
type answer struct {
	status     int
	retryAfter string
	body       string
	err        error
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

// saysUnwritten says whether the server answers that the write has not taken place.
func (a answer) saysUnwritten() bool {
	return a.status == http.StatusServiceUnavailable && strings.Contains(a.body, "nothing was written")
}

func send(ctx context.Context, config *rest.Config, method, path, body string) (a answer) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return answer{err: err}
	}
	r, err := http.NewRequestWithContext(ctx, method, config.Host+path, strings.NewReader(body))
	if err != nil {
		return answer{err: err}
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := client.Do(r)
	if err != nil {
		return answer{err: err}
	}
	defer func() { _ = response.Body.Close() }()
	raw, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header.Get("Retry-After"), string(raw), err}
}

func named(apiVersion, kind, name string) string {
	return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, apiVersion, kind, name)
}

// TestEtcdAway: while etcd is down, writes are refused at once and reads from the cache go on. When it
// is back the server goes on by itself. A server that stops does not wait for an etcd that is down.
func TestEtcdAway(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	createWidgets(t, "v1", s)
	config := s.Config()
	if a := send(t.Context(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "before")); a.status != http.StatusCreated {
		t.Fatal(a)
	}
	for _, fault := range []struct {
		name       string
		begin, end func()
	}{
		{"paused", c.Etcd.Pause, c.Etcd.Resume},
		{"killed", c.Etcd.Kill, func() { c.Etcd.Start(); c.Etcd.WaitReady() }},
	} {
		fault.begin()
		hasty := "hasty-" + fault.name
		sent := make(chan answer, 1)
		go func() {
			sent <- send(context.Background(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", hasty))
		}()
		s.WaitUnready(time.Minute)
		answersWithoutEtcd(t, config)
		fault.end()
		s.WaitReady()
		first := <-sent
		t.Logf("%s: a write sent before the server knew was answered with %v", fault.name, first)
		path := configMapsPath + "/" + hasty
		if found := send(t.Context(), config, http.MethodGet, path, ""); first.saysUnwritten() && found.status != http.StatusNotFound ||
			first.status == http.StatusCreated && found.status != http.StatusOK {
			t.Errorf("%s: the write was answered with %v, and a read of it with %v", fault.name, first, found)
		}
		cluster.Eventually(t, time.Minute, "the server writes again", func(ctx context.Context) error {
			if a := send(ctx, config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "after-"+fault.name)); a.status != http.StatusCreated && a.status != http.StatusConflict { // an earlier try may have written it
				return errors.New(a.String())
			}
			return nil
		})
	}
	c.Etcd.Pause()
	defer c.Etcd.Resume()
	late := make(chan answer, 1)
	go func() {
		late <- send(context.Background(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "late"))
	}()
	s.WaitUnready(time.Minute)
	s.Signal(syscall.SIGTERM)
	result, ended := s.Wait(atOnce)
	if !ended || result.Code != 0 {
		t.Errorf("a stop without etcd: ended %t with code %d", ended, result.Code)
	}
	if a := <-late; a.status == http.StatusCreated {
		t.Errorf("a write was acknowledged while etcd was paused: %v", a)
	}
}

// answersWithoutEtcd checks the answers of a server that knows that etcd is down.
func answersWithoutEtcd(t *testing.T, config *rest.Config) {
	t.Helper()
	// Kubernetes' own checks of etcd may make the server unready before it refuses writes.
	cluster.Eventually(t, time.Minute, "writes are refused", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, atOnce)
		defer cancel()
		if a := send(ctx, config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "early")); !a.saysUnwritten() {
			return errors.New(a.String())
		}
		return nil
	})
	for _, write := range []struct{ method, path, body string }{
		{http.MethodPost, configMapsPath, named("v1", "ConfigMap", "new")},
		{http.MethodDelete, configMapsPath + "/before", ""},
		{http.MethodPost, widgetsPath, named("e2e.concord.dev/v1", "Widget", "new")},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), atOnce)
		a := send(ctx, config, write.method, write.path, write.body)
		cancel()
		if !a.saysUnwritten() || a.retryAfter == "" || !strings.Contains(a.body, "etcd has not answered for") {
			t.Errorf("%s %s: %v, Retry-After %q, want a 503 about etcd", write.method, write.path, a, a.retryAfter)
		}
	}
	for _, pass := range []struct {
		method, path, body string
		want               int
	}{
		{http.MethodGet, configMapsPath + "?resourceVersion=0", "", http.StatusOK},
		{http.MethodPost, reviewsPath, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, http.StatusCreated},
		{http.MethodGet, "/readyz?verbose", "", http.StatusInternalServerError},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), atOnce)
		a := send(ctx, config, pass.method, pass.path, pass.body)
		cancel()
		if a.status != pass.want {
			t.Errorf("%s %s: %v, want %d", pass.method, pass.path, a, pass.want)
		}
		if pass.path == "/readyz?verbose" {
			for _, want := range []string{"[-]etcd-readiness failed", "[+]ping ok"} {
				if !strings.Contains(a.body, want) {
					t.Errorf("/readyz has no %q: %v", want, a)
				}
			}
		}
	}
}

// testStopWhileStarting: a server can be stopped cleanly at any moment of its start.
func testStopWhileStarting(t *testing.T) {
	for _, moment := range []struct {
		name    string
		reached func(c *cluster.Cluster, s *cluster.Server) bool
	}{
		{"EtcdStarts", func(c *cluster.Cluster, _ *cluster.Server) bool { return exists(filepath.Join(c.Dir, "one", "lock")) }},
		{"CertificatesMade", func(c *cluster.Cluster, _ *cluster.Server) bool { return exists(filepath.Join(c.CertDir, "ca.crt")) }},
		{"Serves", func(_ *cluster.Cluster, s *cluster.Server) bool { return strings.Contains(s.Output(), "serving on") }},
		{"Registered", func(_ *cluster.Cluster, s *cluster.Server) bool { _, ok := s.ID(); return ok }},
	} {
		t.Run(moment.name, func(t *testing.T) {
			c := cluster.NewEmbedded(t)
			s := c.NewServer("one", cluster.Options{})
			s.Start()
			cluster.Eventually(t, time.Minute, moment.name, func(context.Context) error {
				if !moment.reached(c, s) {
					return errors.New("not yet")
				}
				return nil
			})
			s.Signal(syscall.SIGTERM)
			result, ended := s.Wait(time.Minute)
			if !ended || result.Code != 0 {
				t.Fatalf("ended %t with code %d: %s", ended, result.Code, result.Stderr)
			}
			for _, line := range strings.Split(result.Stderr, "\n") {
				if strings.HasPrefix(line, "F") || strings.HasPrefix(line, "goroutine ") || strings.HasPrefix(line, "concord: ") {
					t.Errorf("it says: %s", line)
				}
			}
			// A server can be started on the data that it left behind.
			s.Start()
			s.WaitReady()
			s.Terminate()
		})
	}
}

// TestStopAtOnce: SIGTERM in the very first moment may end the program directly, while it is
// being loaded. Then it has done nothing yet; otherwise it stops in an orderly way.
func TestStopAtOnce(t *testing.T) {
	t.Parallel()
	for range 5 {
		c := cluster.NewEmbedded(t)
		s := c.NewServer("one", cluster.Options{})
		s.Start()
		s.Signal(syscall.SIGTERM)
		result, ended := s.Wait(time.Minute)
		switch made := exists(filepath.Join(c.Dir, "one")); {
		case !ended || result.Code > 0:
			t.Errorf("ended %t with code %d: %s", ended, result.Code, result.Stderr)
		case result.Code < 0 && (made || s.Output() != ""):
			t.Errorf("ended by the signal, after it has made its data directory (%t) or said: %s", made, s.Output())
		}
	}
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// smallQuota is the space of an etcd that is soon to be full.
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

// useUp writes until the etcd has no space left.
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

// makeRoom does what the server's message advises.
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

// TestEtcdNoSpace: an etcd out of space has the effects of one that is down: writes are refused with
// a message that says what to do, the server is not ready, and no server is buried. Deletes pass. A
// migration waits, and goes on by itself when there is space. A server can be stopped meanwhile.
func TestEtcdNoSpace(t *testing.T) {
	t.Parallel()
	endpoint, raw := startSmallEtcd(t)
	c := cluster.NewExternal(t, endpoint)
	// The rate is low, so that the migration is under way for as long as it takes to use up the space, and the Leases
	// are long enough for a busy machine to renew.
	servers := c.Start(cluster.Options{Args: atRate(10).Args + " --identity-lease-duration=10s"}, "one", "two", "stopped")
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
	cluster.Eventually(t, cluster.SettleTimeout, "the migration is under way", func(ctx context.Context) error {
		if found := widgetsIn(t, raw, "v2"); found < 10 || found > objects/2 {
			return fmt.Errorf("%d objects are in v2", found)
		}
		return nil
	})
	useUp(t, raw)
	for _, server := range servers {
		server.WaitUnready(time.Minute)
	}
	cluster.Eventually(t, time.Minute, "readyz tells why", func(ctx context.Context) error {
		if _, body, err := s.Get(ctx, "/readyz?verbose"); err != nil || !strings.Contains(body, "[-]etcd-space") {
			return fmt.Errorf("it says %s (%v)", body, err)
		}
		return nil
	})
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
	cluster.Eventually(t, cluster.SettleTimeout, "the migration goes on", func(context.Context) error {
		if widgetsIn(t, raw, "v2") == stuck {
			return fmt.Errorf("%d objects are in v2", stuck)
		}
		return nil
	})
	cluster.Eventually(t, cluster.SettleTimeout, "the migration ends", func(ctx context.Context) error {
		if found := widgetsIn(t, raw, "v2"); found != objects {
			return errors.Join(fmt.Errorf("%d objects are in v2", found), hasten(ctx, s))
		}
		return nil
	})
	if now := len(servers[0].IDs()) + len(servers[1].IDs()); now != ids {
		t.Errorf("%d servers were buried", now-ids)
	}
}

// hasten lets migrations go on as fast as they can.
func hasten(ctx context.Context, s *cluster.Server) error {
	var list migrationv1alpha1.StorageVersionMigrationList
	err := s.Objects().List(ctx, &list)
	for i := range list.Items {
		if m := &list.Items[i]; m.Spec.MaxObjectsPerSecond == nil && !migrationv1alpha1.Final(m) {
			m.Spec.MaxObjectsPerSecond = ptr.To[int64](0)
			err = errors.Join(err, s.Objects().Update(ctx, m))
		}
	}
	return err
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

// noLineForEach expects that an error that occurs many times is logged in far fewer lines,
// whatever else the server logs in the meantime.
func noLineForEach(t *testing.T, s *cluster.Server, failures func() int) {
	t.Helper()
	before := len(s.Output())
	failed := failures()
	lines := strings.SplitAfter(s.Output()[before:], "\n")
	of := slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		return !strings.Contains(line, "nothing was written") && !strings.Contains(line, configMapsPath)
	})
	t.Logf("%d lines were logged for %d refused writes, of %d", len(of), failed, len(lines))
	if len(of) > failed/4 || len(lines) >= failed {
		t.Errorf("%d lines were logged for %d refused writes, of %d: %.3000s", len(of), failed, len(lines), s.Output())
	}
}

// leasesRunOut returns a check that this many identity Leases exist, and none was renewed for so
// long that its server would be buried if it were dead.
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
			if age := time.Since(lease.Spec.RenewTime.Time); age < time.Duration(*lease.Spec.LeaseDurationSeconds)*time.Second+2*cluster.LeaseDuration {
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
