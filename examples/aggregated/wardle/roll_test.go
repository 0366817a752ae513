package wardle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

// settle is how long replicas and host may take to agree and to migrate.
const settle = 90 * time.Second

// testRoll: replicas are rolled from v1alpha1 to v1beta1 while clients write. The first one is
// paused in the middle of writes. It is resumed when all others agree on v1beta1, in their own etcd
// and in the host, and the host has migrated the objects that there were. The writes that it had
// begun in v1alpha1 are not made, and the host knows of its writes after that.
func testRoll(t *testing.T) {
	s := deploy(t, ours(t))
	a, b := s.start("a", "v1alpha1"), s.start("b", "v1alpha1")
	s.host.route(b.Port)
	if err := load.Fill(t.Context(), b.endpoint(), flunderLoad(), "fill", 200); err != nil {
		t.Fatal(err)
	}
	s.waitAgreed("v1alpha1", 2)
	s.waitMigrated("v1alpha1")

	writes := s.write(a, b)
	s.waitWritten(writes, a)
	a.Pause()
	s.waitBuried(1)
	s.start("c", "v1beta1")
	b.restart("v1beta1")
	s.waitAgreed("v1beta1", 2)
	s.waitMigrated("v1beta1")
	s.wantOnly("v1beta1")

	agreed := s.own.Revision()
	resumed := time.Now()
	a.Resume()
	s.waitWritten(writes, a)
	// The replica has registered again, with v1alpha1 as it was configured, and the host must know that.
	if reports := s.host.cluster.Reports(flunders); !slices.ContainsFunc(reports, func(r agree.Report) bool { return r.Encoding == encoding("v1alpha1") }) {
		t.Errorf("a replica writes v1alpha1 again, and the host has the reports %v", reports)
	}
	s.wantNewIdentity(a, agreed)
	s.restartWatched(a, "v1beta1")
	s.waitAgreed("v1beta1", 3)
	s.waitMigrated("v1beta1")
	report := writes.Stop()
	if n := report.Across("a", resumed); n == 0 {
		t.Error("no write was under way when the replica went on: nothing was tested")
	} else {
		t.Logf("%d writes were under way when the replica went on", n)
	}
	s.own.CheckLoad(report, load.BrokenTo("a", "b"))
	s.wantOnly("v1beta1")
	s.check()
}

// restartWatched restarts a replica that a client watches: the stop ends the watch, and does not wait for it.
func (s *deployment) restartWatched(r *replica, version string) {
	s.t.Helper()
	open, err := r.Dynamic().Resource(flunderLoad().GroupVersionResource).Watch(s.t.Context(), metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer open.Stop()
	r.restart(version)
	if strings.Contains(r.Output(), "Failed to shutdown server") {
		s.t.Error("the stop waited in vain for the watch")
	}
}

// write starts clients that write through replicas all the time. They wait for a paused replica for a long time.
func (s *deployment) write(through ...*replica) *load.Load {
	config := load.Config{Resources: []load.Resource{flunderLoad()}, Workers: 6, Pause: time.Millisecond, Timeout: 55 * time.Second}
	for _, r := range through {
		config.Endpoints = append(config.Endpoints, r.endpoint())
	}
	writes := load.Start(config)
	s.t.Cleanup(func() { writes.Stop() })
	return writes
}

// ours starts a host that serves StorageVersions.
func ours(t *testing.T) *host {
	t.Helper()
	return startHost(t, cluster.Binary(t), "kube-apiserver", "--identity-lease-duration="+cluster.LeaseDuration.String(),
		"--identity-lease-renew-interval="+cluster.RenewInterval.String(), "--controller-lease-duration="+cluster.LeaseDuration.String())
}

// waitWritten waits until a replica has acknowledged further writes.
func (s *deployment) waitWritten(writes *load.Load, r *replica) {
	s.t.Helper()
	before := writes.Acked(r.Name)
	cluster.Eventually(s.t, settle, r.Name+" is written through", func(context.Context) error {
		if n := writes.Acked(r.Name) - before; n < 20 {
			return fmt.Errorf("%d writes", n)
		}
		return nil
	})
}

// waitBuried waits until the host has this many reports left. A report must not go from the host
// before it goes from the replicas' own etcd.
func (s *deployment) waitBuried(left int) {
	s.t.Helper()
	cluster.Eventually(s.t, settle, "who is paused is buried", func(context.Context) error {
		host, own := len(s.host.cluster.Reports(flunders)), len(s.own.Reports(flunders))
		if host < own {
			s.t.Errorf("the host has %d reports, and %d servers may write", host, own)
		}
		if host != left || own != left {
			return fmt.Errorf("%d reports in the host, %d in the own etcd", host, own)
		}
		return nil
	})
}

// waitAgreed waits until the reports of this many replicas agree on the version, in the replicas'
// own etcd and in the host.
func (s *deployment) waitAgreed(version string, replicas int) {
	s.t.Helper()
	for where, c := range map[string]*cluster.Cluster{"own etcd": s.own, "host": s.host.cluster} {
		cluster.Eventually(s.t, settle, "the replicas agree on "+version+" in the "+where, func(context.Context) error {
			reports := c.Reports(flunders)
			if common, ok := agree.Common(reports); !ok || common != encoding(version) || len(reports) != replicas {
				return fmt.Errorf("reports are %v", reports)
			}
			return nil
		})
	}
}

// waitMigrated waits until the host knows that flunders are stored in the version alone.
func (s *deployment) waitMigrated(version string) {
	s.t.Helper()
	took := cluster.Eventually(s.t, settle, "the host has migrated the flunders to "+version, func(context.Context) error {
		standing := s.host.cluster.Standing(flunders)
		if !standing.Stands() || standing.Common() != encoding(version) || !slices.Equal(standing.Stored(), []string{string(encoding(version))}) {
			return fmt.Errorf("the agreement is %s, the stored set %v of %s", standing.Common(), standing.Stored(), standing.StateRef())
		}
		return nil
	})
	s.t.Logf("migrated to %s after %v", version, took.Round(time.Millisecond))
}

// wantOnly expects that all flunders in the replicas' own etcd are stored in one version.
func (s *deployment) wantOnly(version string) {
	s.t.Helper()
	found := s.own.Encodings(flunders)
	if len(found) != 1 || found[encoding(version)] < 200 {
		s.t.Errorf("flunders are stored in %v, want %s alone", found, version)
	}
}

// wantNewIdentity expects that the writes of a replica since a revision were permitted by a
// report that it has made since.
func (s *deployment) wantNewIdentity(r *replica, since int64) {
	s.t.Helper()
	ids := s.ids()[r.Name]
	if len(ids) != 2 {
		s.t.Fatalf("%s was registered as %v, want two identities", r.Name, ids)
	}
	s.own.Ledger(func(l *audit.Ledger) {
		for _, w := range l.Writes() {
			if w.Server() != r.Name || w.Revision <= since {
				continue
			}
			if own, ok := agree.Of(w.Reports, ids[1]); !ok || own.Encoding != w.Encoding {
				s.t.Errorf("revision %d: %s was written in %s with the reports %v", w.Revision, w.ID, w.Encoding, w.Reports)
			}
		}
	})
}

// check fails the test for every violation in the host's etcd and in the replicas' own.
func (s *deployment) check() {
	s.t.Helper()
	s.host.cluster.Ledger(func(l *audit.Ledger) {
		for _, violation := range l.Violations() {
			// kube-apiserver writes some core/v1 objects past its storage decorator.
			if !strings.Contains(violation, "/registry/ranges/") && !strings.Contains(violation, "/registry/peerserverleases/") {
				s.t.Error(violation)
			}
		}
	})
	s.wantFenced()
}

// wantFenced fails the test for every violation in the replicas' own etcd.
func (s *deployment) wantFenced() {
	s.t.Helper()
	ids := s.ids()
	s.own.Ledger(func(l *audit.Ledger) {
		for _, violation := range append(l.Violations(), l.Strangers(ids)...) {
			s.t.Error(violation)
		}
	})
}

var errNotBuried = errors.New("its report is still there")

// TestTenLines checks what the package doc and docs/library.md say of the lines marked "join".
func TestTenLines(t *testing.T) {
	source, err := os.ReadFile("wardle.go")
	if err != nil {
		t.Fatal(err)
	}
	marked := 0
	for i, line := range strings.Split(string(source), "\n") {
		code, comment, _ := strings.Cut(line, "//")
		isMarked := strings.TrimSpace(comment) == "join"
		if isMarked {
			marked++
		}
		uses := strings.Contains(code, "join") || strings.Contains(code, "j.") || strings.Contains(code, "j,")
		if uses && !isMarked && !strings.HasPrefix(strings.TrimSpace(line), "//") {
			t.Errorf("wardle.go:%d uses package join and is not marked: %s", i+1, line)
		}
	}
	if marked != 10 {
		t.Errorf("%d lines are marked, not ten", marked)
	}
}

const saidAlone = "The host cluster serves no StorageVersions"

// testStockHost: in a stock cluster a replica serves, and says once that it has nobody to report
// to. The replicas still fence each other.
func testStockHost(t *testing.T) {
	s := deploy(t, startHost(t, build(t, "k8s.io/kubernetes/cmd/kube-apiserver")))
	a, b := s.start("a", "v1alpha1"), s.start("b", "v1alpha1")
	writes := s.write(a, b)
	s.waitWritten(writes, a)
	a.Pause()
	cluster.Eventually(t, settle, "who is paused is buried", func(context.Context) error {
		if n := len(s.own.Reports(flunders)); n != 1 {
			return errNotBuried
		}
		return nil
	})
	b.restart("v1beta1")
	a.Resume()
	s.waitWritten(writes, a)
	s.waitWritten(writes, b)
	s.own.CheckLoad(writes.Stop(), load.BrokenTo("a", "b"))
	s.wantFenced()

	for _, r := range s.started {
		// A replica that was started twice says it at most once in each run.
		lives := strings.Count(r.Output(), `"Registered"`)
		if n := strings.Count(r.Output(), saidAlone); n == 0 || n > lives {
			t.Errorf("%s says %d times that it reports to nobody", r.Name, n)
		}
	}
	leases, err := s.host.Kube().CoordinationV1().Leases(storageversion.IdentityNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: storageversion.AggregatedLabel})
	if err != nil || len(leases.Items) != 0 {
		t.Errorf("the host has the Leases %v of servers that report nothing: %v", leases, err)
	}
}
