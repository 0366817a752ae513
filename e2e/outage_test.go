package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
)

// atOnce is the time within which a server has to answer requests for which it need not ask
// etcd. It is far below the 34 s after which a request that waits for etcd is given up.
const atOnce = 10 * time.Second

const (
	configMapsPath = "/api/v1/namespaces/default/configmaps"
	widgetsPath    = "/apis/e2e.concord.dev/v1/namespaces/default/widgets"
	reviewsPath    = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
)

// answer is the outcome of one HTTP request, which nobody tried again.
type answer struct {
	status     int
	retryAfter string
	body       string
	err        error
}

func (a answer) String() string { return fmt.Sprintf("%d %s %v", a.status, a.body, a.err) }

// saysUnwritten says whether the server vouches for the write not to have taken place.
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

// While etcd is away, writes are refused at once and reads from the cache go on. When it
// is back the server goes on by itself. A stop does not wait for an etcd that is away.
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
			if a := send(ctx, config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "after-"+fault.name)); a.status != http.StatusCreated {
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
	result, ended := s.Wait(2 * atOnce)
	if !ended || result.Code != 0 {
		t.Errorf("a stop without etcd: ended %t with code %d", ended, result.Code)
	}
	if a := <-late; a.status == http.StatusCreated {
		t.Errorf("a write was acknowledged while etcd was paused: %v", a)
	}
}

// answersWithoutEtcd asserts the answers of a server that knows etcd to be away.
func answersWithoutEtcd(t *testing.T, config *rest.Config) {
	t.Helper()
	// Kubernetes' own checks of etcd may make it unready before it refuses writes.
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

// A stop at any moment of the start is a clean one.
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

// A stop in the very first moment may end the program by the signal, while it is being
// loaded. Then it has done nothing yet; else the stop is an orderly one.
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
