package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
)

// A plan is the answer of "concord apis" for every resource at some versions: in which
// group/version it is stored.
type plan map[schema.GroupResource]agree.Encoding

// planned asks for the plan of servers with these options.
func planned(t *testing.T, o cluster.Options) plan {
	t.Helper()
	args := append([]string{"apis", "-o", "json"}, strings.Fields(o.Args)...)
	if o.Emulation != "" {
		args = append(args, "--emulation-version", o.Emulation)
	}
	if o.MinCompatibility != "" {
		args = append(args, "--min-compatibility-version", o.MinCompatibility)
	}
	result := cluster.Command(t, args...)
	var rows []struct{ Group, Resource, StorageVersion string }
	if err := json.Unmarshal([]byte(result.Stdout), &rows); err != nil || result.Code != 0 {
		t.Fatalf("concord %s: exit %d, %v: %s", strings.Join(args, " "), result.Code, err, result.Stderr)
	}
	p := plan{}
	for _, r := range rows {
		if r.StorageVersion != "" {
			p[schema.GroupResource{Group: r.Group, Resource: r.Resource}] = agree.Encoding(r.StorageVersion)
		}
	}
	return p
}

// diff returns the resources that two plans store differently, sorted.
func (p plan) diff(o plan) []string {
	var found []string
	for gr, encoding := range p {
		if o[gr] != encoding {
			found = append(found, gr.String())
		}
	}
	slices.Sort(found)
	return found
}

// wantPlanned fails unless the cluster, which has to be settled, stores every built-in resource as
// planned: the raw values, the agreement and the stored set. There must be at least so many
// objects of each resource. "concord census" has to count the same.
func wantPlanned(t *testing.T, c *cluster.Cluster, p plan, atLeast map[schema.GroupResource]int) {
	t.Helper()
	want := map[string]agree.Encoding{}
	c.Ledger(func(l *audit.Ledger) {
		for gr, encoding := range p {
			want[gr.String()] = encoding
			found, standing := l.Encodings(gr), l.Standing(gr)
			for other, n := range found {
				if other != encoding {
					t.Errorf("%d objects of %s are stored in %s, planned is %s", n, gr, other, encoding)
				}
			}
			if n := found[encoding]; n < atLeast[gr] {
				t.Errorf("%d objects of %s are stored in %s, want at least %d", n, gr, encoding, atLeast[gr])
			}
			if standing.Common() != encoding || !standing.Stands() || !slices.Equal(standing.Stored(), []string{string(encoding)}) {
				t.Errorf("%s: the agreement is %q and the stored set %v (current: %t), planned is %s", gr, standing.Common(), standing.Stored(), standing.Stands(), encoding)
			}
		}
	})
	counted := map[string]int{}
	for _, row := range census(t, c) {
		if encoding, ok := want[row.Resource]; ok && row.Encoding != encoding {
			t.Errorf("concord census counts %d objects of %s in %s, planned is %s", row.Objects, row.Resource, row.Encoding, encoding)
		}
		counted[row.Resource] += row.Objects
	}
	for gr, n := range atLeast {
		if counted[gr.String()] < n {
			t.Errorf("concord census counts %d objects of %s, want at least %d", counted[gr.String()], gr, n)
		}
	}
}

type censusRow struct {
	Resource string
	Encoding agree.Encoding
	Objects  int
}

// census runs "concord census" on the cluster's etcd.
func census(t *testing.T, c *cluster.Cluster) []censusRow {
	t.Helper()
	result := cluster.Command(t, "census", "--etcd-servers", c.Endpoint, "-o", "json")
	var found struct {
		Rows    []censusRow
		Unknown []string
	}
	err := json.Unmarshal([]byte(result.Stdout), &found)
	if err != nil || result.Code != 0 || len(found.Rows) == 0 || len(found.Unknown) > 0 {
		t.Fatalf("concord census: exit %d, %v, unreadable %v: %s", result.Code, err, found.Unknown, result.Stderr)
	}
	return found.Rows
}

// countingTold matches the line that the command prints every three seconds about how far its
// counting is, which happens on a busy machine.
var countingTold = regexp.MustCompile(`(?m)^counting \S+, \d+ of \d+ resources\n`)

// preflight runs concord preflight, which says whether servers may be started. It returns the exit
// code, and the reasons why that is unsafe, by resource.
func preflight(t *testing.T, args ...string) (code int, unsafe map[string]string) {
	t.Helper()
	result := cluster.Command(t, append([]string{"preflight", "-o", "json"}, args...)...)
	var report struct {
		Target, Verdict string
		Resources       []struct{ Resource, Verdict, Reason string }
	}
	if err := json.Unmarshal([]byte(result.Stdout), &report); err != nil {
		t.Fatalf("concord preflight %s: exit %d, %v: %s", strings.Join(args, " "), result.Code, err, result.Stderr)
	}
	unsafe = map[string]string{}
	for _, r := range report.Resources {
		if r.Reason == "" {
			t.Errorf("concord preflight gives no reason for %s", r.Resource)
		}
		if r.Verdict != "safe" {
			unsafe[r.Resource] = fmt.Sprintf("%s: %s", r.Verdict, r.Reason)
		}
	}
	if want := map[int]string{0: "safe", 1: "unknown", 2: "unsafe"}[result.Code]; report.Verdict != want {
		t.Errorf("concord preflight %s ends with %d and says %q of %s", strings.Join(args, " "), result.Code, report.Verdict, report.Target)
	}
	complaints := countingTold.ReplaceAllString(result.Stderr, "")
	if (result.Code == 0) != (complaints == "") || result.Code == 0 && len(unsafe) > 0 {
		t.Errorf("concord preflight %s ends with %d, finds %v and says: %s", strings.Join(args, " "), result.Code, unsafe, complaints)
	}
	return result.Code, unsafe
}

// wantSafe fails unless preflight says that the servers may be started, both from the live cluster
// and from its etcd.
func wantSafe(t *testing.T, c *cluster.Cluster, args ...string) {
	t.Helper()
	for _, source := range sources(c) {
		if code, unsafe := preflight(t, append(source, args...)...); code != 0 {
			t.Errorf("concord preflight %s: exit %d: %v", strings.Join(append(source, args...), " "), code, unsafe)
		}
	}
}

// sources returns the flags that name the live cluster, and those that name its etcd.
func sources(c *cluster.Cluster) [][]string {
	return [][]string{{"--kubeconfig", c.Servers[0].Kubeconfig()}, {"--etcd-servers", c.Endpoint}}
}

// wantVersions fails unless the server's /version tells these releases.
func wantVersions(t *testing.T, s *cluster.Server, binary, emulation, minCompatibility string) {
	t.Helper()
	var v struct{ Major, Minor, EmulationMajor, EmulationMinor, MinCompatibilityMajor, MinCompatibilityMinor string }
	must(t, json.Unmarshal([]byte(fetch(t, s, "/version", "")), &v))
	got := []string{v.Major + "." + v.Minor, v.EmulationMajor + "." + v.EmulationMinor, v.MinCompatibilityMajor + "." + v.MinCompatibilityMinor}
	if want := []string{binary, emulation, minCompatibility}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("/version of %s tells %v, want %v", s.Name, got, want)
	}
}

// undecodable are the encodings that a server of 1.35 cannot decode, by resource, if everything is
// stored in a way that only 1.37 can read.
var undecodable = map[string]string{
	policies.String():       "admissionregistration.k8s.io/v1",
	policyBindings.String(): "admissionregistration.k8s.io/v1",
	bundles.String():        "certificates.k8s.io/v1",
	migrations.String():     "storagemigration.k8s.io/v1",
}

// noWayBack: everything is stored in a way that only 1.37 can read. Preflight says so, and a
// server of release 1.35 (this program, linked with that release's number) does not start on it,
// unless a flag makes it. Objects that it does not serve stay as they are.
func noWayBack(t *testing.T, s *story, p plan) {
	t.Helper()
	written := read(t, s.servers[0])
	wantUnsafe(t, s.c)
	for _, server := range s.servers {
		server.Terminate()
	}
	old := s.c.NewServer("old", cluster.Options{Release: "1.35"})
	wantRefusal(t, old)

	old.StartAs(cluster.Options{Release: "1.35", Args: "--allow-undecodable-storage"})
	old.WaitReady()
	if out := old.Output(); !strings.Contains(out, "STARTING ALTHOUGH STORED OBJECTS MAY BE UNDECODABLE") || !strings.Contains(out, bundles.String()+" as certificates.k8s.io/v1") {
		t.Errorf("told to start all the same, it says nothing loud:\n%s", out)
	}
	unserved := []schema.GroupResource{policies, policyBindings, bundles, migrations, candidates}
	s.c.WaitReporters(restored, old)
	s.c.WaitSettled(unserved...)
	for _, gr := range unserved {
		wantEncoding(t, s.c, gr, p[gr], s.made[gr])
	}
	old.Terminate()
	s.servers[0].Start()
	s.servers[0].WaitReady()
	s.stage("1.37 again", p)
	wantSame(t, written, s.servers[0])
	s.c.Check()
}

// wantUnsafe fails unless preflight says, from the live cluster and from the etcd, that programs of
// 1.35 and 1.36 cannot read what is stored, but this program emulating 1.35 and one of 1.38 can.
func wantUnsafe(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	for _, source := range sources(c) {
		code, unsafe := preflight(t, append(source, "--back-to", "1.35")...)
		if code != 2 || len(unsafe) != len(undecodable) {
			t.Errorf("preflight ends with %d and finds %v, want 2 and %v", code, unsafe, undecodable)
		}
		for resource, encoding := range undecodable {
			if !strings.Contains(unsafe[resource], "unsafe: 1.35 cannot decode "+encoding+" (introduced in 1.3") {
				t.Errorf("preflight says of %s %q", resource, unsafe[resource])
			}
		}
		table := cluster.Command(t, append([]string{"preflight", "--back-to", "1.35"}, source...)...)
		if table.Code != 2 || !strings.HasPrefix(table.Stdout, "1.35: unsafe\n") || !strings.Contains(table.Stdout, "1.35 cannot decode certificates.k8s.io/v1 (introduced in 1.37") ||
			!strings.Contains(table.Stderr, "unsafe: ") {
			t.Errorf("preflight ends with %d and prints\n%s%s", table.Code, table.Stdout, table.Stderr)
		}
		if code, unsafe := preflight(t, append(source, "--back-to", "1.36")...); code != 2 || len(unsafe) != 2 {
			t.Errorf("back to 1.36 preflight ends with %d and finds %v, want 2, and bundles and migrations", code, unsafe)
		}
	}
	wantSafe(t, c, "--emulation-version", "1.35")
	wantSafe(t, c, "--to", "1.38")
}

// wantRefusal starts a server, which has to end with one line that names what it cannot
// decode.
func wantRefusal(t *testing.T, old *cluster.Server) {
	t.Helper()
	old.Start()
	result, ended := old.Wait(refusalTimeout)
	if !ended || result.Code != 1 {
		t.Fatalf("a server of 1.35 ends with %d (%t), want 1: %s", result.Code, ended, result.Stderr)
	}
	refusal := strings.TrimSpace(result.Stderr)
	if !strings.HasPrefix(refusal, "concord: this binary (1.35) cannot decode") || strings.Contains(refusal, "\n") || !strings.Contains(refusal, "--allow-undecodable-storage") {
		t.Errorf("it says %q", refusal)
	}
	for resource, encoding := range undecodable {
		if !strings.Contains(refusal, resource+" as "+encoding) {
			t.Errorf("it does not name %s as %s: %s", resource, encoding, refusal)
		}
	}
}
