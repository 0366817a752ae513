package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	"github.com/concord-dev/concord/testbed/load"
)

var (
	policyBindings = schema.GroupResource{Group: policies.Group, Resource: "mutatingadmissionpolicybindings"}
	bundles        = schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}
	candidates     = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leasecandidates"}
	migrations     = schema.GroupResource{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"}
	apiServices    = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
)

// A story is a cluster of three servers with objects of every resource.
type story struct {
	t         *testing.T
	c         *cluster.Cluster
	servers   []*cluster.Server
	resources []load.Resource
	// made counts the objects that were created, except those of the load.
	made map[schema.GroupResource]int
	// writes is nil until load is called.
	writes *load.Load
	// rewritten is how many rewrites there were up to the last stage.
	rewritten int
}

// newStory starts the servers, all with the same options, and makes the objects.
func newStory(t *testing.T, o cluster.Options) *story {
	t.Helper()
	s := &story{t: t, c: cluster.New(t)}
	s.servers = s.c.Start(o, "one", "two", "three")
	createWidgets(t, "v1", s.servers...)
	s.c.Audit.With(func(l *audit.Ledger) {
		l.Normalize(migrations, withoutStatus)
		l.Normalize(apiServices.GroupResource(), withoutStatus)
	})
	s.made = createSamples(t, s.servers[0])
	s.awaitSamples()
	s.resources = []load.Resource{load.Policies(), load.Bundles(certificate(t)), widgetsV1}
	s.fill("first", s.servers[0])
	return s
}

// withoutStatus takes away the fields that servers themselves write on a migration or an APIService.
func withoutStatus(fields map[string]any) {
	delete(fields, "status")
	if metadata, ok := fields["metadata"].(map[string]any); ok {
		delete(metadata, "managedFields")
	}
}

// awaitSamples waits until controllers have set the last conditions of two samples: a migration that
// names a resource which does not exist, and an APIService whose Service does not exist. Their
// changes until then were no rewrites.
func (s *story) awaitSamples() {
	s.t.Helper()
	for resource, name := range map[schema.GroupVersionResource]string{migrations.WithVersion("v1beta1"): "sample", apiServices: "v1.remote.example.com"} {
		cluster.Eventually(s.t, cluster.SettleTimeout, "a sample of "+resource.Resource+" has its last condition", func(ctx context.Context) error {
			sample, err := s.servers[0].Dynamic().Resource(resource).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			conditions, _, _ := unstructured.NestedSlice(sample.Object, "status", "conditions")
			if !slices.ContainsFunc(conditions, func(c any) bool { return resource == apiServices || c.(map[string]any)["status"] == "True" }) {
				return fmt.Errorf("it has %v", conditions)
			}
			return nil
		})
	}
	s.c.Ledger(func(l *audit.Ledger) { s.rewritten = l.Rewrites() })
}

// storyObjects is how many objects are made at a time of each resource that moves.
const storyObjects = 200

// fill makes objects through a server.
func (s *story) fill(prefix string, server *cluster.Server) {
	s.t.Helper()
	for _, r := range s.resources {
		must(s.t, load.Fill(s.t.Context(), load.Endpoint{Name: server.Name, Client: server.Dynamic()}, r, prefix, storyObjects))
		s.made[r.GroupResource()] += storyObjects
	}
}

// load starts clients that write without end, to objects of their own.
func (s *story) load() {
	s.t.Helper()
	s.writes = s.c.Load(load.Config{Prefix: loadPrefix, Resources: append(s.resources, load.ConfigMaps("default")), Pause: 100 * time.Millisecond}, s.servers...)
}

// roll restarts servers one by one, each healthy and taking writes before the next.
func (s *story) roll(o cluster.Options, servers ...*cluster.Server) {
	s.t.Helper()
	for _, server := range servers {
		server.Restart(o)
		cluster.Eventually(s.t, 60*time.Second, "all servers take writes", acked(s.writes, s.servers))
	}
}

// stage waits until the cluster has settled and fails unless everything is stored as
// planned. It returns how many objects were rewritten since the last one.
func (s *story) stage(name string, p plan) int {
	s.t.Helper()
	took := s.c.WaitSettled()
	wantPlanned(s.t, s.c, p, s.made)
	var total int
	s.c.Ledger(func(l *audit.Ledger) { total = l.Rewrites() })
	rewritten := total - s.rewritten
	s.rewritten = total
	s.t.Logf("%s: settled after %v, %d objects were rewritten", name, took.Round(time.Millisecond), rewritten)
	return rewritten
}

// wantRewritten fails unless at least all objects of the resources were rewritten; without resources
// exactly none may have been.
func (s *story) wantRewritten(rewritten int, resources ...schema.GroupResource) {
	s.t.Helper()
	want := 0
	for _, gr := range resources {
		want += s.made[gr]
	}
	if rewritten < want || want == 0 && rewritten > 0 {
		s.t.Errorf("%d objects were rewritten, there are %d of %v", rewritten, want, resources)
	}
}

// end stops the clients and checks all that happened.
func (s *story) end() {
	s.t.Helper()
	if s.writes != nil {
		s.c.CheckLoad(s.writes.Stop(), load.BrokenTo("one", "two", "three"))
	}
	s.c.Check()
}

// moved fails unless the two plans differ in exactly these resources.
func moved(t *testing.T, from, to plan, want ...schema.GroupResource) {
	t.Helper()
	var names []string
	for _, gr := range want {
		names = append(names, gr.String())
	}
	slices.Sort(names)
	if got := from.diff(to); !slices.Equal(got, names) {
		t.Errorf("the plans differ in %v, want %v", got, names)
	}
}

// testCautiousUpgrade: KEP-4330's first story, an upgrade in the smallest steps: first the binary,
// emulating the release that ran before; then the emulation version; then the min compatibility
// version, after which there is no way back. Each is rolled server by server, and before each
// preflight says that it is safe. The program of 1.36 is this one, linked with that release's
// number: it knows what was introduced by then. There is no other program of 1.36.
func testCautiousUpgrade(t *testing.T) {
	before := cluster.Options{Release: "1.36", Args: betas}
	emulating := cluster.Options{Emulation: "1.36", Args: betas}
	upgraded := cluster.Options{Emulation: "1.37", Args: betas}
	final := cluster.Options{Emulation: "1.37", MinCompatibility: "1.37", Args: betas}
	plan36, plan37, planFinal := planned(t, emulating), planned(t, upgraded), planned(t, final)
	moved(t, plan36, plan37, policies, policyBindings)
	moved(t, plan37, planFinal, bundles, migrations)
	s := newStory(t, before)
	s.load()
	s.stage("1.36", plan36)
	wantLease(t, s.servers[0], "1.36", "1.36", "1.35")

	wantSafe(t, s.c, "--emulation-version", "1.36")
	s.roll(emulating, s.servers...)
	wantLease(t, s.servers[0], "1.37", "1.36", "1.35")
	s.wantRewritten(s.stage("the binary is 1.37, emulating 1.36", plan36))

	wantSafe(t, s.c, "--emulation-version", "1.37")
	s.roll(upgraded, s.servers...)
	s.wantRewritten(s.stage("1.37", plan37), policies, policyBindings)
	wantSafe(t, s.c, "--back-to", "1.36")

	wantSafe(t, s.c, "--emulation-version", "1.37", "--min-compatibility-version", "1.37")
	s.roll(final, s.servers...)
	s.wantRewritten(s.stage("1.37 that no older release has to read", planFinal), bundles, migrations)
	s.end()
}

// testEmulationRollback: KEP-4330's second story. After an upgrade to 1.37 the servers are restarted
// with --emulation-version=1.36, one by one. The objects written in between can be read through the
// first server that is back, while the others still emulate 1.37, and through all servers in the
// end. Then the servers go forward again.
func testEmulationRollback(t *testing.T) {
	upgraded := cluster.Options{Args: betas}
	back := cluster.Options{Emulation: "1.36", Args: betas}
	plan36, plan37 := planned(t, back), planned(t, upgraded)
	s := newStory(t, cluster.Options{Release: "1.36", Args: betas})
	s.load()
	s.stage("1.36", plan36)
	s.roll(upgraded, s.servers...)
	s.stage("1.37", plan37)
	s.fill("between", s.servers[1])
	between := read(t, s.servers[1])

	wantSafe(t, s.c, "--emulation-version", "1.36")
	s.roll(back, s.servers[0])
	if standing := s.c.Standing(policies); standing.Common() != "" {
		t.Errorf("one server of three is back at 1.36, and yet they agree on %s", standing.Common())
	}
	if found := s.c.Encodings(policies); found[policyV1] < s.made[policies] {
		t.Errorf("one server of three is back at 1.36, and policies are stored as %v", found)
	}
	wantSame(t, between, s.servers...)
	s.roll(back, s.servers[1:]...)
	s.wantRewritten(s.stage("back at 1.36", plan36), policies, policyBindings)
	wantSame(t, between, s.servers...)

	wantSafe(t, s.c, "--emulation-version", "1.37")
	s.roll(upgraded, s.servers...)
	s.wantRewritten(s.stage("1.37 again", plan37), policies, policyBindings)
	wantSame(t, between, s.servers...)
	s.end()
}

// testGreenField: KEP-4330's third story. A new cluster that never has to go back stores everything
// in the newest versions from the first object on. Then there is no way back: preflight says so, and
// a server of an older release refuses to start.
func testGreenField(t *testing.T) {
	o := cluster.Options{MinCompatibility: "1.37", Args: betas}
	p := planned(t, o)
	moved(t, planned(t, cluster.Options{Args: betas}), p, bundles, migrations)
	s := newStory(t, o)
	s.load()
	s.wantRewritten(s.stage("started", p))
	cluster.Eventually(t, 60*time.Second, "all servers take writes", acked(s.writes, s.servers))
	s.wantRewritten(s.stage("under load", p))
	for _, server := range s.servers {
		wantVersions(t, server, "1.37", "1.37", "1.37")
	}
	s.end()
	noWayBack(t, s, p)
}

// testWholeRestart: the whole cluster is restarted at an older emulation version and back. Servers
// at either version can read all objects that servers at the other one have written; so can programs
// of the older releases themselves, once preflight says so.
func testWholeRestart(t *testing.T) {
	newer := cluster.Options{Emulation: "1.37", MinCompatibility: "1.37", Args: betas}
	older := cluster.Options{Emulation: "1.36", MinCompatibility: "1.35", Args: betas}
	planNewer, planOlder := planned(t, newer), planned(t, older)
	moves := []schema.GroupResource{policies, policyBindings, bundles, migrations}
	moved(t, planNewer, planOlder, moves...)
	s := newStory(t, newer)
	s.stage("1.37", planNewer)
	written := read(t, s.servers[0])

	wantSafe(t, s.c, "--emulation-version", "1.36", "--min-compatibility-version", "1.35")
	s.restart(older)
	wantSame(t, written, s.servers...)
	s.wantRewritten(s.stage("1.36 that 1.35 can read", planOlder), moves...)
	wantSame(t, written, s.servers...)
	wantSafe(t, s.c, "--back-to", "1.36")
	s.servers[0].Restart(cluster.Options{Release: "1.36", Args: betas})
	wantSafe(t, s.c, "--back-to", "1.35")
	s.servers[1].Restart(cluster.Options{Release: "1.35", Args: betas + ",admissionregistration.k8s.io/v1beta1=true"})
	s.wantRewritten(s.stage("programs of 1.37, 1.36 and 1.35", planOlder))
	wantSame(t, written, s.servers...)

	s.fill("second", s.servers[2])
	written = read(t, s.servers[2])
	s.restart(newer)
	wantSame(t, written, s.servers...)
	s.wantRewritten(s.stage("1.37 again", planNewer), moves...)
	wantSame(t, written, s.servers...)
	s.end()
}

// restart ends all servers before it starts the first one with other options.
func (s *story) restart(o cluster.Options) {
	s.t.Helper()
	for _, server := range s.servers {
		server.Terminate()
	}
	for _, server := range s.servers {
		server.StartAs(o)
	}
	for _, server := range s.servers {
		server.WaitReady()
	}
}
