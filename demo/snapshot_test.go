package demo

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/evolve"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/load"
	"github.com/concord-dev/concord/testbed/process"
)

var updateGolden = flag.Bool("update", false, "write testdata anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", path, got, want)
	}
}

func named(name string, c condition) *serverProcess {
	return &serverProcess{Server: &testbed.Server{Program: &process.Program{Name: name}}, condition: c}
}

// rolling is a cluster in the middle of a roll: server-2 is starting.
func rolling() snapshot {
	w := settledWorld()
	delete(w.ids, "server-2")
	w.Servers["id1"] = &ledger.Server{Release: "1.37"}
	w.Servers["id3"] = &ledger.Server{Release: "1.36"}
	p := w.Of(workload.Policies)
	p.Version.Reports = []agree.Report{
		{Server: "id1", Encoding: "admissionregistration.k8s.io/v1"},
		{Server: "id3", Encoding: "admissionregistration.k8s.io/v1beta1"},
	}
	p.Version.Common, p.State.Status.PersistedEncodings = "", []string{"admissionregistration.k8s.io/v1beta1", "admissionregistration.k8s.io/v1"}
	w.Migrations = map[types.UID]*ledger.Migration{
		"old": {Resource: workload.Gadgets, Phase: evolve.Succeeded, Order: 0},
		"new": {Resource: workload.Gadgets, Phase: evolve.Running, Order: 1, Progress: migrationv1alpha1.MigrationProgress{Done: 1300, Total: 5000}},
		"b":   {Resource: workload.Bindings, Phase: evolve.Succeeded, Order: 2, Progress: migrationv1alpha1.MigrationProgress{Done: 2500}},
	}
	p.Counts = map[agree.Encoding]int{"admissionregistration.k8s.io/v1beta1": 2_500, "admissionregistration.k8s.io/v1": 24}
	w.Of(workload.Bindings).Counts = map[agree.Encoding]int{"admissionregistration.k8s.io/v1": 2_500}
	w.Of(workload.Gadgets).Counts = map[agree.Encoding]int{"demo.concord.dev/v1": 3_700, "demo.concord.dev/v2": 1_300}
	s := snapshot{
		elapsed: 83 * time.Second, step: 2, title: "roll the servers one by one to release 1.37",
		loaded: 10_000, objects: 10_000, acknowledged: 12_345, errors: 7, longest: 340 * time.Millisecond,
	}
	s.see(w, []*serverProcess{named("server-1", ready), named("server-2", starting), named("server-3", ready)})
	return s
}

func TestRender(t *testing.T) {
	loading := rolling()
	loading.loaded, loading.step, loading.title = 2_500, 1, "load 10,000 objects"
	for _, line := range render(rolling()) {
		if len(line) > 80 {
			t.Errorf("%d characters: %s", len(line), line)
		}
	}
	golden(t, "view.txt", strings.Join(append(append(render(rolling()), "----"), render(loading)...), "\n")+"\n")
}

func TestRenderOfAnEmptyCluster(t *testing.T) {
	s := snapshot{objects: 10}
	s.see(newWorld(), []*serverProcess{named("server-1", starting)})
	if text := strings.Join(render(s), "\n"); !strings.Contains(text, "0 of 10") || !strings.Contains(text, "starting") {
		t.Errorf("view:\n%s", text)
	}
}

func TestChanges(t *testing.T) {
	first := rolling()
	second := rolling()
	second.elapsed += time.Second
	second.servers[1] = serverLine{name: "server-2", condition: ready, release: "1.37", id: "id4"}
	second.rows[2].done, second.acknowledged = 1_400, 12_400 // not worth a line
	third := second
	third.elapsed += time.Second
	third.step, third.title = 3, "the next step"
	third.rows = append([]resourceLine{}, second.rows...)
	third.rows[2].done = 2_600
	third.others.exact = 0
	var text strings.Builder
	before := snapshot{}
	for _, s := range []snapshot{first, first, second, third} {
		for _, line := range changes(before, s) {
			text.WriteString(line + "\n")
		}
		before = s
	}
	golden(t, "lines.txt", text.String())
}

func TestScreenRedraws(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	if s.size != nil {
		t.Fatal("a buffer is taken for a terminal")
	}
	if first := s.frame([]string{"one", "two", "three"}, 4, 10); first != "\x1b[Jone\ntwo\nthre\n" {
		t.Errorf("first frame %q", first)
	}
	if second := s.frame([]string{"one"}, 4, 10); second != "\x1b[3A\r\x1b[Jone\n" {
		t.Errorf("second frame %q", second)
	}
	if third := s.frame([]string{"one", "two", "three"}, 4, 3); third != "\x1b[1A\r\x1b[Jone\ntwo\n" {
		t.Errorf("a frame higher than the terminal %q", third)
	}
}

func TestScreenPrintsLinesWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	s := newScreen(&out)
	stop := s.show(t.Context(), rolling)
	stop()
	stop()
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Count(text, "step 2 of 5") != 1 {
		t.Errorf("lines:\n%s", text)
	}
}

func TestPrint(t *testing.T) {
	f := passing()
	f.Agreements = []Agreement{{After: "server-1's restart", ReportsSeconds: 1.234, AgreementSeconds: -1}, {After: "server-3's restart", ReportsSeconds: 1, AgreementSeconds: 2}}
	f.Burial.answers = map[load.Outcome]int64{load.Unavailable: 3, load.Acknowledged: 1}
	var text strings.Builder
	if err := judge(f).Print(&text); err != nil {
		t.Fatal(err)
	}
	f.Lost, f.AfterKill = []string{"gadgets/a: gone"}, -time.Second
	text.WriteString("----\n")
	if err := judge(f).Print(&text); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", text.String())
}

// childVariable is the environment variable that makes the test binary a server that fails.
const childVariable = "CONCORD_DEMO_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVariable) {
	case "":
		os.Exit(m.Run())
	case "failing":
		for i := range 100 {
			fmt.Println("line", i)
		}
		os.Exit(3)
	}
}

// TestRunReportsAServerThatDoesNotStart also checks that nothing is left behind.
func TestRunReportsAServerThatDoesNotStart(t *testing.T) {
	t.Setenv(childVariable, "failing")
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	_, err := Run(t.Context(), Config{Objects: MinObjects})
	if err == nil || !strings.Contains(err.Error(), "server-1 stopped: exit status 3") {
		t.Errorf("error %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, ""},
		{Config{Objects: 3}, "at least 4 objects"},
		{Config{Objects: -1}, "at least 4 objects"},
		{Config{Writers: -1}, "writers must be positive"},
		{Config{LeaseDuration: 1500 * time.Millisecond}, "whole seconds"},
		{Config{LeaseDuration: time.Second}, "at least 3s"},
	} {
		err := tt.cfg.Validate()
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("Validate(%+v) = %v, want %q", tt.cfg, err, tt.want)
		}
	}
}
