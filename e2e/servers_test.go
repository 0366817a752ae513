package e2e

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/testbed/load"
)

// graceful is how long it may take until all servers notice an orderly stop.
const graceful = time.Minute

// TestThreeServers: three servers on one etcd agree. The reports of a server that stops in an orderly way are
// gone when its process ends; those of a killed server are gone soon after its Lease has expired.
func TestThreeServers(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{}, "one", "two", "three")
	c.WaitReporters(graceful, servers...)
	t.Logf("the stored sets were known %v after the servers were ready", c.WaitSettled().Round(time.Millisecond))
	writes := c.Load(load.Config{Resources: []load.Resource{load.ConfigMaps("default"), load.Policies()}}, servers...)

	stopped, _ := servers[0].ID()
	servers[0].Terminate()
	c.Ledger(func(l *audit.Ledger) {
		if l.Reported().Has(stopped) {
			t.Error("the reports of a stopped server outlive its process")
		}
	})
	c.WaitReporters(graceful, servers[1], servers[2])

	servers[1].Kill()
	took := c.WaitReporters(restored, servers[2])
	t.Logf("agreement was restored %v after SIGKILL, with Leases of %v", took.Round(time.Millisecond), cluster.LeaseDuration)
	t.Logf("and settled %v later", c.WaitSettled().Round(time.Millisecond))
	c.CheckLoad(writes.Stop(), load.BrokenTo("one", "two"))
	c.Check()
	c.Ledger(func(l *audit.Ledger) {
		if found := l.Rewrites(); found != 0 {
			t.Errorf("%d objects were rewritten though no encoding has changed", found)
		}
	})
}

// TestTellsItsBuild: a running server tells which build it is, and "concord version" also of which commit.
func TestTellsItsBuild(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{}, "one")[0]
	version, err := s.Kube().Discovery().ServerVersion()
	must(t, err)
	if !strings.Contains(version.GitVersion, "+concord."+cluster.Build) { // ".dirty" follows where there are changes that are not committed
		t.Errorf("/version is %+v", version)
	}
	_, metrics, err := s.Get(t.Context(), "/metrics")
	must(t, err)
	if n := strings.Count(metrics, "\nkubernetes_build_info{"); n != 1 || !strings.Contains(metrics, `git_version="`+version.GitVersion+`"`) {
		t.Errorf("/metrics has %d of kubernetes_build_info, or not with %s", n, version.GitVersion)
	}
	id, _ := s.ID()
	lease, err := s.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Get(t.Context(), string(id), metav1.GetOptions{})
	must(t, err)
	if got := lease.Annotations[storageversion.BuildAnnotation]; !strings.HasPrefix(got, cluster.Build) {
		t.Errorf("the Lease says %q: %v", got, lease.Annotations)
	}
	log, err := os.ReadFile(s.Log)
	must(t, err)
	if want := `"Starting" version="` + version.GitVersion + `" build="` + cluster.Build; !strings.Contains(string(log), want) {
		t.Errorf("the log does not say %s", want)
	}
	wantCommit(t)
	c.Check()
	s.Terminate()
}

// wantCommit: a program that was built in a clone tells the commit that it was built from, and when that was made.
func wantCommit(t *testing.T) {
	t.Helper()
	said, err := exec.Command(cluster.Binary(t), "version").Output()
	must(t, err)
	built, err := buildinfo.ReadFile(cluster.Binary(t))
	must(t, err)
	for _, is := range built.Settings {
		if (is.Key == "vcs.revision" || is.Key == "vcs.time") && !strings.Contains(string(said), is.Value) {
			t.Errorf("it does not say %s: %s", is.Value, said)
		}
	}
}

// TestGivenCertificates: a server that is given all certificates, of a public key infrastructure that is not Concord's,
// works without the keys of Concord's CAs, and makes none of them.
func TestGivenCertificates(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	company, ca := cluster.NewAuthority(t, "company-ca"), cluster.NewAuthority(t, "concord-ca")
	files := company.Files("serving")
	must(t, os.Mkdir(c.CertDir, 0o700))
	must(t, os.WriteFile(filepath.Join(c.CertDir, pki.CACertName), cluster.EncodePEM(ca.Cert.Raw), 0o600))
	s := c.NewServer("one", cluster.Options{Args: strings.Join([]string{
		"--tls-cert-file", files.Cert, "--tls-private-key-file", files.Key, "--client-ca-file", files.CA,
		"--proxy-client-cert-file", files.Cert, "--proxy-client-key-file", files.Key,
	}, " ")})
	s.Admin = &rest.Config{Host: s.URL(), QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAFile: files.CA}}
	s.Admin.CertData, s.Admin.KeyData = company.Issue("alice", "system:masters")
	s.Start()
	s.WaitReady()
	if a := send(t.Context(), s.Config(), http.MethodPost, configMapsPath, named("v1", "ConfigMap", "alices")); a.status != http.StatusCreated {
		t.Errorf("alice writes: %v", a)
	}
	// --client-ca-file adds to the cluster's own CA.
	own := rest.CopyConfig(s.Config())
	own.CertData, own.KeyData = ca.Issue("admin", "system:masters")
	if a := send(t.Context(), own, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "admins")); a.status != http.StatusCreated {
		t.Errorf("an administrator with a certificate of the cluster's CA writes: %v", a)
	}
	for _, name := range []string{pki.CAKeyName, pki.FrontProxyCAKeyName, pki.AdminKubeconfigName} {
		if _, err := os.Stat(filepath.Join(c.CertDir, name)); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	c.Check()
	s.Terminate()
}

// testSharedDirectory: the certificates may be in the data directory itself.
func testSharedDirectory(t *testing.T) {
	c := cluster.NewEmbedded(t)
	c.CertDir = filepath.Join(c.Dir, "one")
	c.Start(cluster.Options{}, "one")[0].Terminate()
}

// soonStopped is the time that a stop may take: two seconds in which watches are drained, and three more.
const soonStopped = 2*time.Second + 3*time.Second

// TestStopsSoon: a server that embeds etcd stops soon, although a watch is open and a connection is idle; also
// while another server uses its etcd.
func TestStopsSoon(t *testing.T) {
	t.Parallel()
	for _, servers := range [][]string{{"one"}, {"one", "two"}} {
		t.Run(fmt.Sprintf("%d servers", len(servers)), func(t *testing.T) {
			const tries = 3 // another program may take the machine for a while
			for try := 1; !stopsSoon(t, servers); try++ {
				if try == tries {
					t.Fatalf("each of %d stops took too long", tries)
				}
			}
		})
	}
}

// stopsSoon says whether a server stops within the time that it has.
func stopsSoon(t *testing.T, servers []string) bool {
	t.Helper()
	c := cluster.NewEmbedded(t)
	s := c.Start(cluster.Options{}, "one")[0]
	c.Start(cluster.Options{}, servers[1:]...)
	watch, err := s.Kube().CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	mute, err := net.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"))
	must(t, err)
	defer func() { _ = mute.Close() }()
	// The test's own client of etcd must not delay the stop.
	if err := c.Raw.Close(); err != nil {
		t.Log(err)
	}
	began := time.Now()
	s.Signal(syscall.SIGTERM)
	result, ended := s.Wait(2 * time.Minute)
	took := time.Since(began)
	if !ended || result.Code != 0 {
		t.Fatalf("it ended: %t, with %+v", ended, result)
	}
	t.Logf("stopped after %v, of at most %v", took, soonStopped)
	return took <= soonStopped
}

// testElectionsGivenUp: a server that stops gives up the Leases of its elections, so that another server goes
// on at once.
func testElectionsGivenUp(t *testing.T) {
	c := cluster.New(t)
	elected := c.Start(cluster.Options{}, "one")[0]
	leases := elected.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace)
	locks := []string{"concord-controllers", "concord-controllers-storagemigration", "concord-kubernetes-controllers"}
	cluster.Eventually(t, time.Minute, "it is elected", func(ctx context.Context) error {
		for _, lock := range locks {
			if lease, err := leases.Get(ctx, lock, metav1.GetOptions{}); err != nil || ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
				return fmt.Errorf("%s: %+v, %w", lock, lease, err)
			}
		}
		return nil
	})
	next := c.Start(cluster.Options{}, "two")[0]
	watch, err := next.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer watch.Stop()
	elected.Terminate()
	kept, deadline := sets.New(locks...), time.After(time.Minute)
	for kept.Len() > 0 {
		select {
		case event := <-watch.ResultChan():
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && ptr.Deref(lease.Spec.HolderIdentity, "") == "" {
				kept.Delete(lease.Name)
			}
		case <-deadline:
			t.Fatalf("never given up: %v", sets.List(kept))
		}
	}
	c.WaitSettled()
	c.Check()
}

// TestShutdownDelay: a server that stops takes writes for as long as --shutdown-delay-duration says, because
// load balancers may send writes until they have seen that it is not ready.
func TestShutdownDelay(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	s := c.Start(cluster.Options{Args: "--shutdown-delay-duration=20s"}, "one")[0]
	s.Signal(syscall.SIGTERM)
	s.WaitUnready(10 * time.Second)
	for i := range 3 {
		if a := send(t.Context(), s.Config(), http.MethodPost, configMapsPath, named("v1", "ConfigMap", fmt.Sprint("late", i))); a.status != http.StatusCreated {
			t.Errorf("a write is answered with %v", a)
		}
	}
	if result, ended := s.Wait(time.Minute); !ended || result.Code != 0 {
		t.Errorf("it ended: %t, with %+v", ended, result)
	}
}

const stored = 500

// testMixedReleases: servers of two releases may run side by side for long, also if the elected one is of the
// older release. Resources that only the newer ones serve have stored sets, too.
func testMixedReleases(t *testing.T) {
	c := cluster.New(t)
	older := c.Start(cluster.Options{Emulation: "1.36"}, "one")[0]
	waitLeader(t, older)
	newer := c.Start(cluster.Options{Emulation: "1.37"}, "two")[0]
	c.WaitReporters(graceful, older, newer)
	bundles := schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	if reports := c.Reports(bundles); len(reports) != 1 {
		t.Fatalf("clustertrustbundles are reported by %v, want the newer server alone", reports)
	}
	bindings := schema.GroupResource{Group: policies.Group, Resource: "mutatingadmissionpolicybindings"}
	c.WaitSettled(policies, bindings)
	c.Check()
}

// testOwnUpgrade: Concord itself is upgraded from the release before, downgraded and upgraded again, under
// load. Servers of both releases agree and migrate together, whichever of them is elected.
func testOwnUpgrade(t *testing.T) {
	c := cluster.New(t)
	earlier, newest := cluster.Options{Earlier: true}, cluster.Options{}
	servers := c.Start(earlier, "one", "two", "three")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	writes := c.Load(load.Config{Resources: []load.Resource{widgetsV1, load.ConfigMaps("default")}, Pause: 50 * time.Millisecond}, servers...)
	for _, step := range []struct {
		what  string
		to    []cluster.Options
		store string
	}{
		{"one upgraded", []cluster.Options{newest, earlier, earlier}, "v2"},
		{"two upgraded", []cluster.Options{newest, newest, earlier}, "v1"},
		{"one rolled back", []cluster.Options{earlier, newest, earlier}, "v2"},
		{"all upgraded", []cluster.Options{newest, newest, newest}, "v1"},
		{"all rolled back", []cluster.Options{earlier, earlier, earlier}, "v2"},
		{"all upgraded again", []cluster.Options{newest, newest, newest}, "v1"},
	} {
		for i, s := range servers {
			if s.Options() != step.to[i] {
				s.Restart(step.to[i])
			}
		}
		c.WaitReporters(graceful, servers...)
		storeWidgetsIn(t, servers[0], step.store)
		took := cluster.Eventually(t, 3*time.Minute, step.what+": all widgets in "+step.store, func(context.Context) error {
			return encodedAs(c, widgets, widgetEncoding(step.store), stored)
		})
		t.Logf("%s: migrated to %s %v after the change", step.what, step.store, took.Round(time.Millisecond))
	}
	c.WaitSettled()
	cluster.Eventually(t, time.Minute, "every server takes writes", acked(writes, servers))
	c.CheckLoad(writes.Stop(), load.BrokenTo("one", "two", "three"))
	expectCensus(t, c)
	c.Check()
}
