package skew

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

const (
	n36 = "=1.37/1.36/1.35" // n36 and n37 are the same binary at two emulation versions
	n37 = "=1.37/1.37/1.36"
	old = "=1.35/1.35/1.34"

	alike    = " agree=True SameVersions"
	differ   = " agree=False DifferentVersions"
	within   = " allowed=True WithinAllowance"
	out      = " allowed=False OutOfAllowance"
	began    = "Normal ServerSkewBegan"
	ended    = "Normal ServerSkewEnded"
	refused  = "Warning ServerSkewNotAllowed"
	accepted = "Normal ServerSkewAllowed"
	silent   = "Warning ServerSkewUnknown"
)

// TestUpgrade is a rolling upgrade: servers of two versions run beside each other for a while,
// within the allowed skew.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.servers("a"+n36, "b"+n36, "c"+n36)
	w.step()
	w.expectStatus("3 1.36..1.36" + alike + within)
	w.expectEvents()

	w.servers("a"+n36, "b"+n36, storageversion.NewUpstreamIdentity()) // the last one is the Lease of upstream's code, which is no server
	w.step()
	w.expectStatus("2 1.36..1.36" + alike + within)
	w.servers("a"+n36, "b"+n36, "d"+n37)
	w.step()
	w.expectStatus("3 1.36..1.37" + differ + within)
	w.expectEvents(began)
	changed := meta.FindStatusCondition(w.cluster().Status.Conditions, versionv1alpha1.ConditionVersionsAgree)
	if want := "servers: 2 at emulation version 1.36 with min compatibility version 1.35 (binary 1.37); 1 at emulation version 1.37 with min compatibility version 1.36 (binary 1.37)"; changed.Message != want {
		t.Errorf("message %q", changed.Message)
	}

	w.servers("a"+n36, "e"+n37, "d"+n37)
	w.step()
	still := meta.FindStatusCondition(w.cluster().Status.Conditions, versionv1alpha1.ConditionVersionsAgree)
	if still.LastTransitionTime != changed.LastTransitionTime || !strings.Contains(still.Message, "1 at emulation version 1.36") {
		t.Errorf("condition %+v, before %+v", still, changed)
	}
	w.servers("f"+n37, "e"+n37, "d"+n37)
	w.step()
	w.expectStatus("3 1.37..1.37" + alike + within)
	w.expectEvents(began, ended)
	var ids []string
	for _, s := range w.cluster().Status.Servers {
		ids = append(ids, s.ID+"="+s.Binary+"/"+s.Emulation+"/"+s.MinCompatibility)
	}
	if got := strings.Join(ids, " "); got != "d"+n37+" e"+n37+" f"+n37 {
		t.Errorf("servers %s", got)
	}
}

// TestOutOfAllowance: there is a warning Event when the skew is not allowed, and another Event when
// that ends.
func TestOutOfAllowance(t *testing.T) {
	w := newWorld(t)
	w.servers("a"+n37, "b"+old)
	w.step()
	w.expectStatus("2 1.35..1.37" + differ + out)
	w.expectEvents(began, refused)
	for _, e := range w.events() {
		if e.Reason != EventSkewNotAllowed {
			continue
		}
		if !strings.Contains(e.Message, "1.37 is newer than the 1.34..1.36 that servers at emulation version 1.35 with min compatibility version 1.34 allow") {
			t.Errorf("message %q", e.Message)
		}
		if o := e.InvolvedObject; o.Kind != "ClusterVersion" || o.APIVersion != "concord.dev/v1alpha1" || o.Name != "cluster" || e.ReportingInstance != "concord-a" {
			t.Errorf("event %+v", e)
		}
	}
	w.servers("a"+n37, "b"+n36)
	w.step()
	w.expectStatus("2 1.36..1.37" + differ + within)
	w.expectEvents(began, refused, accepted)
	w.servers("a" + n37)
	w.step()
	w.expectEvents(began, refused, accepted, ended)
}

// TestSilentServers: the versions of a server that does not tell them are unknown, and never taken
// as allowed. A condition that is False because of other servers stays False.
func TestSilentServers(t *testing.T) {
	w := newWorld(t)
	w.servers("a"+n37, "stock", "mangled=1.37/latest/1.36")
	w.step()
	w.expectStatus("3 1.37..1.37 agree=Unknown VersionsUnknown allowed=Unknown VersionsUnknown")
	w.expectEvents(silent)
	c := meta.FindStatusCondition(w.cluster().Status.Conditions, versionv1alpha1.ConditionSkewAllowed)
	if !strings.HasSuffix(c.Message, "do not tell their versions: mangled, stock") {
		t.Errorf("message %q", c.Message)
	}
	w.servers("a"+n37, "b"+old, "stock")
	w.step()
	w.expectStatus("3 1.35..1.37" + differ + out)
	w.servers("a"+n37, "b"+n37)
	w.step()
	w.expectEvents(silent, began, refused, ended, accepted)
	w.servers()
	w.step()
	w.expectStatus("0 .. agree=Unknown NoServers allowed=Unknown NoServers")
}

// TestQuiet: while no server changes, only the Leases are read. A ClusterVersion that somebody else
// changed or deleted is repaired after a while.
func TestQuiet(t *testing.T) {
	w := newWorld(t)
	w.servers("a" + n37)
	w.step()
	if got, want := w.Took(), "list LeaseList; get ClusterVersion; create ClusterVersion; update status ClusterVersion"; got != want {
		t.Errorf("first look: %s", got)
	}
	w.step()
	if got, want := w.Took(), "list LeaseList"; got != want {
		t.Errorf("second look: %s", got)
	}
	must(t, w.Raw.Delete(context.Background(), w.cluster()))
	w.clock.Step(resync)
	w.step()
	w.expectStatus("1 1.37..1.37" + alike + within)
	w.Took()
	w.clock.Step(resync)
	w.step()
	if got, want := w.Took(), "list LeaseList; get ClusterVersion"; got != want {
		t.Errorf("later look: %s", got)
	}
	w.expectEvents()
}

// TestNextLeader: the next elected controller does not repeat Events.
func TestNextLeader(t *testing.T) {
	w := newWorld(t)
	w.servers("a"+n36, "b"+n37)
	w.step()
	w.c = w.newController()
	w.step()
	w.expectEvents(began)
	w.servers("b" + n37)
	w.step()
	w.expectEvents(began, ended)
}

// TestTwoLeaders: two controllers both believe that they are elected. One of them has a conflict,
// and each Event is told once.
func TestTwoLeaders(t *testing.T) {
	w := newWorld(t)
	w.servers("a" + n36)
	w.step()
	w.servers("a"+n36, "b"+n37)
	other := w.newController()
	raced := false
	w.Before = func(call string) error {
		if call == "update status ClusterVersion" && !raced {
			raced = true
			return other.Step(context.Background())
		}
		return nil
	}
	w.clock.Step(time.Second)
	if err := w.c.Step(t.Context()); !apierrors.IsConflict(err) {
		t.Fatalf("Step: %v, want a conflict", err)
	}
	w.step()
	w.expectStatus("2 1.36..1.37" + differ + within)
	w.expectEvents(began)
}

// TestFailures: a call fails, or only its reply is lost; the controller tries again, and each Event
// is told once.
func TestFailures(t *testing.T) {
	for _, call := range []string{"list LeaseList", "get ClusterVersion", "create ClusterVersion", "update status ClusterVersion", "create Event"} {
		for _, lost := range []bool{false, true} {
			name := call
			if lost {
				name += ", its reply is lost"
			}
			t.Run(name, func(t *testing.T) {
				w := newWorld(t)
				w.servers("a"+n37, "b"+old)
				failures := 0
				fail := func(c string) error {
					if c == call && failures < 2 {
						failures++
						return errBroken
					}
					return nil
				}
				if lost {
					w.After = fail
				} else {
					w.Before = fail
				}
				for range 20 {
					w.clock.Step(time.Second)
					if err := w.c.Step(t.Context()); err == nil {
						break
					}
				}
				if failures == 0 {
					t.Fatal("nothing failed")
				}
				w.expectStatus("2 1.35..1.37" + differ + out)
				w.expectEvents(began, refused)
				w.Took()
				w.step()
				if got := w.Took(); got != "list LeaseList" {
					t.Errorf("afterwards: %s", got)
				}
			})
		}
	}
}

// TestRun: the controller reads the Leases at once, at every interval, and again after an error.
func TestRun(t *testing.T) {
	w := newWorld(t)
	w.servers("a" + n36)
	var looks atomic.Int32
	w.Before = func(call string) error {
		if call == "list LeaseList" && looks.Add(1) == 1 {
			return errBroken
		}
		return nil
	}
	ctx := t.Context() // is cancelled before the cleanup functions run
	var running sync.WaitGroup
	running.Go(func() { w.c.Run(ctx) })
	t.Cleanup(running.Wait)
	shows := func(want string) {
		t.Helper()
		w.Eventually("shows "+want, func() bool {
			w.clock.Step(interval)
			cluster := &versionv1alpha1.ClusterVersion{}
			err := w.Raw.Get(ctx, clientKey, cluster)
			return err == nil && cluster.Status.NewestEmulation == want
		})
	}
	shows("1.36")
	w.servers("b" + n37)
	shows("1.37")
}

func TestDefaults(t *testing.T) {
	w := newWorld(t)
	w.servers("a" + n37)
	if err := New(Config{Client: w.API}).Step(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestTransitions(t *testing.T) {
	conditions := func(agree, allowed metav1.ConditionStatus) []metav1.Condition {
		if agree == "" {
			return nil
		}
		return []metav1.Condition{
			{Type: versionv1alpha1.ConditionVersionsAgree, Status: agree, Message: strings.Repeat("m", 2*maxNote)},
			{Type: versionv1alpha1.ConditionSkewAllowed, Status: allowed},
			{Type: "Other", Status: agree},
		}
	}
	const yes, no, unknown = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for _, c := range []struct {
		wasAgree, wasAllowed, agree, allowed metav1.ConditionStatus
		want                                 string
	}{
		{"", "", yes, yes, ""},
		{"", "", no, yes, EventSkewBegan},
		{"", "", no, no, EventSkewBegan + " " + EventSkewNotAllowed},
		{"", "", unknown, unknown, EventSkewUnknown},
		{yes, yes, yes, yes, ""},
		{yes, yes, no, yes, EventSkewBegan},
		{yes, yes, unknown, unknown, EventSkewUnknown},
		{no, yes, no, no, EventSkewNotAllowed},
		{no, no, no, no, ""},
		{no, no, no, yes, EventSkewAllowed},
		{no, no, yes, yes, EventSkewEnded + " " + EventSkewAllowed},
		{no, yes, unknown, unknown, EventSkewUnknown},
		{unknown, unknown, yes, yes, EventSkewEnded},
		{unknown, unknown, no, no, EventSkewBegan + " " + EventSkewNotAllowed},
	} {
		var got []string
		for _, n := range transitions(conditions(c.wasAgree, c.wasAllowed), conditions(c.agree, c.allowed)) {
			got = append(got, n.reason)
			if len(n.note) > maxNote {
				t.Errorf("%s: a note of %d bytes", n.reason, len(n.note))
			}
			if wantWarning := n.reason == EventSkewNotAllowed || n.reason == EventSkewUnknown; (n.kind == corev1.EventTypeWarning) != wantWarning {
				t.Errorf("%s is %s", n.reason, n.kind)
			}
		}
		if got := strings.Join(got, " "); got != c.want {
			t.Errorf("%s/%s to %s/%s: %q, want %q", c.wasAgree, c.wasAllowed, c.agree, c.allowed, got, c.want)
		}
	}
}

var clientKey = client.ObjectKey{Name: versionv1alpha1.ClusterVersionName}

const help = `
# HELP concord_server_skew_allowed [ALPHA] 1 if every server's emulation version is one that all others allow, 0 if not; absent while that cannot be told.
# TYPE concord_server_skew_allowed gauge
# HELP concord_server_skew_releases [ALPHA] Minor releases between the lowest and the highest emulation version of servers.
# TYPE concord_server_skew_releases gauge
# HELP concord_server_skew_servers [ALPHA] Servers by emulation version, as the elected server sees them.
# TYPE concord_server_skew_servers gauge
`

// expose returns the samples with the help text that testutil expects: only of the metrics that
// have values.
func expose(samples string) string {
	var lines []string
	for _, line := range strings.Split(help, "\n") {
		if fields := strings.Fields(line); len(fields) > 2 && strings.Contains(samples, fields[2]) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n" + samples
}

// TestMetrics: the gauges follow the servers, and have no value while this controller is not
// elected or while the versions are not known.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	registry := metrics.NewKubeRegistry()
	for _, r := range w.c.cfg.Metrics.Registerables() {
		registry.MustRegister(r)
	}
	expect := func(when, samples string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(expose(samples))); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	expect("before leading", "")
	w.servers("a"+n36, "b"+n37, "c"+n37)
	w.step()
	expect("within the allowance", `
concord_server_skew_allowed 1
concord_server_skew_releases 1
concord_server_skew_servers{emulation_version="1.36"} 1
concord_server_skew_servers{emulation_version="1.37"} 2
`)
	w.servers("b"+n37, "c"+old)
	w.step()
	expect("out of the allowance", `
concord_server_skew_allowed 0
concord_server_skew_releases 2
concord_server_skew_servers{emulation_version="1.35"} 1
concord_server_skew_servers{emulation_version="1.37"} 1
`)
	w.servers("b"+n37, "c")
	w.step()
	expect("a server does not tell", `
concord_server_skew_releases 0
concord_server_skew_servers{emulation_version="1.37"} 1
concord_server_skew_servers{emulation_version="unknown"} 1
`)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.c.Run(ctx)
	expect("after leading", "")
}
