package e2e

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/e2e/cluster"
)

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

// undecodable are the encodings that a server of 1.35 cannot decode where everything is stored
// as only 1.37 can read it, by resource.
var undecodable = map[string]string{
	policies.String():       "admissionregistration.k8s.io/v1",
	policyBindings.String(): "admissionregistration.k8s.io/v1",
	bundles.String():        "certificates.k8s.io/v1",
	migrations.String():     "storagemigration.k8s.io/v1",
}

// noWayBack: everything is stored as only 1.37 can read it. Preflight tells so, and a
// server of release 1.35 (this program, linked with that release's number) does not start
// on it, unless it is told to. Objects that it does not serve stay as they are.
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

// wantUnsafe fails unless preflight says, of the live cluster and of the etcd, that 1.35
// and 1.36 cannot read it and others can.
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
