package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/e2e/audit"
	"github.com/concord-dev/concord/e2e/cluster"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// testMigrateCommand: concord migrate says beforehand what there is to do, and has it done. Its
// counts are right: afterwards they equal those of the migration's status and those of concord
// census. It names objects that cannot be migrated, migrates the others, and ends with exit code
// 2. At last it migrates every resource.
func testMigrateCommand(t *testing.T) {
	c := cluster.New(t)
	servers := c.Start(cluster.Options{Args: "--migration-max-objects-per-second=20"}, "one", "two")
	createWidgets(t, "v1", servers...)
	fill(t, servers[0], widgetsV1, stored)
	c.WaitSettled()
	migrate := func(args ...string) cluster.Result {
		t.Helper()
		began := time.Now()
		result := cluster.Command(t, append([]string{"migrate", "--kubeconfig", servers[0].Kubeconfig()}, args...)...)
		t.Logf("concord migrate %s took %v and ended with %d", strings.Join(args, " "), time.Since(began).Round(time.Millisecond), result.Code)
		return result
	}
	storeWidgetsIn(t, servers[0], "v2")
	waitCommon(t, c, widgets, widgetEncoding("v2"))

	// Concord has begun a migration by itself, at a rate that leaves something to see.
	before := dryRun(t, migrate("widgets", "--dry-run", "-o", "json"))
	if len(before) != 1 || before[0].Encoding != string(widgetEncoding("v2")) || *before[0].Objects != stored || *before[0].Rewrite == 0 ||
		*before[0].Bytes == 0 || before[0].Basis != "limited" || *before[0].ExpectedSeconds < float64(*before[0].Rewrite)/20 {
		t.Errorf("the dry run says %+v", before)
	}
	if table := migrate("widget", "--dry-run"); table.Code != 0 || !strings.Contains(table.Stdout, "e2e.concord.dev/v1") || !strings.HasPrefix(table.Stdout, widgets.String()+"\n") {
		t.Errorf("the dry run ends with %+v", table)
	}
	all := dryRun(t, migrate("--all", "--dry-run", "-o", "json"))
	if len(all) < 20 {
		t.Errorf("the dry run of all resources counts %d", len(all))
	}

	interruptMigrate(t, servers[1])
	if result := migrate("widgets", "--max-objects-per-second", "0"); result.Code != 0 ||
		!strings.Contains(result.Stdout, fmt.Sprintf("widgets.e2e.concord.dev: succeeded: %d objects are in e2e.concord.dev/v2", stored)) {
		t.Errorf("it ends with %+v", result)
	}
	wantProof(t, c, servers[1], map[agree.Encoding]int{widgetEncoding("v2"): stored}, 0)
	if after := dryRun(t, migrate("widgets", "--dry-run", "-o", "json")); *after[0].Rewrite != 0 || *after[0].Objects != stored {
		t.Errorf("afterwards the dry run says %+v", after)
	}

	if result := migrate("gadgets"); result.Code != 1 || !strings.Contains(result.Stderr, `"gadgets" is no resource that is stored; `) || strings.Count(result.Stderr, "\n") != 1 {
		t.Errorf("of an unknown resource it ends with %+v", result)
	}

	key := "/registry/e2e.concord.dev/widgets/default/broken"
	c.Audit.With(func(l *audit.Ledger) { l.Ignore(key) })
	if _, err := c.Raw.Put(t.Context(), key, `{"apiVersion":"e2e.concord.dev/v1","kind":"Widget","metadata":{"name":"brok`); err != nil {
		t.Fatal(err)
	}
	result := migrate("widgets.e2e.concord.dev", "-o", "json")
	var ended []struct {
		Succeeded           bool
		Reason              string
		Done, Total, Failed int64
		Failures            []migrationv1alpha1.MigrationFailure
	}
	if err := json.Unmarshal([]byte(result.Stdout), &ended); err != nil || result.Code != 2 || len(ended) != 1 || ended[0].Succeeded ||
		ended[0].Reason != migrationv1alpha1.ReasonObjectsFailed || ended[0].Done != stored || ended[0].Failed != 1 || ended[0].Failures[0].Name != "broken" {
		t.Errorf("with a broken object it ends with %+v (%v)", result, err)
	}
	wantProof(t, c, servers[1], map[agree.Encoding]int{widgetEncoding("v1"): 1, widgetEncoding("v2"): stored}, 1)
	if result := migrate("widgets"); result.Code != 2 || !strings.Contains(result.Stdout, "default/broken: ") {
		t.Errorf("with a broken object it ends with %+v", result)
	}
	if _, err := c.Raw.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if result := migrate("widgets"); result.Code != 0 {
		t.Errorf("without the broken object it ends with %+v", result)
	}
	t.Logf("settled after %v", c.WaitSettled().Round(time.Millisecond))
	migrateAll(t, c, servers[0], migrate)
	c.Check()
}

// migrateAll runs the command for all resources, after the storage version of widgets was changed.
func migrateAll(t *testing.T, c *cluster.Cluster, s *cluster.Server, migrate func(args ...string) cluster.Result) {
	t.Helper()
	v1 := widgetEncoding("v1")
	storeWidgetsIn(t, s, "v1")
	waitCommon(t, c, widgets, v1)
	counted := dryRun(t, migrate("--all", "--dry-run", "-o", "json"))
	result := migrate("--all", "--max-objects-per-second", "0")
	if result.Code != 0 {
		t.Errorf("of all resources it ends with %d: %s\n%s", result.Code, result.Stderr, result.Stdout)
	}
	agreed := map[string]string{}
	for _, row := range counted {
		agreed[row.Resource] = row.Encoding
		if row.Elsewhere != "" {
			t.Errorf("%s is said to be elsewhere: %s", row.Resource, row.Elsewhere)
		}
		if row.Resource == widgets.String() && (row.Encoding != string(v1) || *row.Rewrite == 0) {
			t.Errorf("of widgets the dry run counts %+v: nothing was tested", row)
		}
		ended := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(row.Resource) + `: succeeded: (\d+) objects are in ` + regexp.QuoteMeta(row.Encoding) + `$`).FindStringSubmatch(result.Stdout)
		if ended == nil {
			t.Errorf("nothing is said of the success of %s, in %s: %s", row.Resource, row.Encoding, result.Stdout)
		} else if row.Resource == widgets.String() && ended[1] != fmt.Sprint(stored) {
			t.Errorf("it says %q, there are %d", ended[0], stored)
		}
	}
	t.Logf("%d resources were migrated, and all settled %v later", len(counted), c.WaitSettled().Round(time.Millisecond))

	rows, seen := census(t, c), 0
	for _, row := range rows {
		if row.Resource == migratestore.ResourceOther {
			continue
		}
		seen++
		if encoding, ok := agreed[row.Resource]; !ok || encoding != string(row.Encoding) {
			t.Errorf("census counts %d of %s in %s, the dry run of all resources said %q", row.Objects, row.Resource, row.Encoding, encoding)
		}
		if row.Resource == widgets.String() && row.Objects != stored {
			t.Errorf("census counts %d of widgets, there are %d", row.Objects, stored)
		}
	}
	if seen < 5 {
		t.Errorf("census counts %d resources: %+v", seen, rows)
	}
	for _, row := range dryRun(t, migrate("--all", "--dry-run", "-o", "json")) {
		if row.Rewrite == nil || *row.Rewrite != 0 || row.Encoding != agreed[row.Resource] {
			t.Errorf("afterwards the dry run says %+v", row)
		}
	}
}

// interruptMigrate interrupts the command once its migration exists; the migration goes on, and
// is cancelled at the end.
func interruptMigrate(t *testing.T, s *cluster.Server) {
	t.Helper()
	cmd := exec.Command(cluster.Binary(t), "migrate", "widgets", "--kubeconfig", s.Kubeconfig(), "--max-objects-per-second", "1")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(line, widgets.String()+": ") {
		t.Fatalf("it says %q (%v)", line, err)
	}
	found := commands(t, s)
	if found == nil {
		t.Fatal("there is no migration of the command's")
	}
	must(t, cmd.Process.Signal(os.Interrupt))
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(stderr.String(), "interrupted; the migrations go on in the servers") ||
		!strings.Contains(stderr.String(), found.Name) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("interrupted, it ends with %d and %q", code, stderr.String())
	}
	if now := commands(t, s); now == nil || now.UID != found.UID {
		t.Errorf("after the interrupt its migration is %+v", now)
	}
	must(t, s.Objects().Delete(t.Context(), found))
}

// commands returns the newest migration of widgets that the command has created.
func commands(t *testing.T, s *cluster.Server) *migrationv1alpha1.StorageVersionMigration {
	t.Helper()
	all, err := migrationsOf(t.Context(), s, widgets)
	must(t, err)
	found := slices.DeleteFunc(all, func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.Labels[migrationv1alpha1.AskedByLabel] != "concord-migrate"
	})
	if len(found) > 1 {
		t.Errorf("there are %d migrations of the command's, want the newest one", len(found))
	}
	if len(found) == 0 {
		return nil
	}
	return found[0]
}

type dryRunRow struct {
	Resource, Encoding, Basis, Elsewhere string
	Objects, Bytes, Rewrite              *int64
	ExpectedSeconds                      *float64
}

func dryRun(t *testing.T, result cluster.Result) (rows []dryRunRow) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.Stdout), &rows); err != nil || result.Code != 0 || len(rows) == 0 {
		t.Fatalf("the dry run ends with %+v (%v)", result, err)
	}
	return rows
}

// wantProof fails unless concord census, and the newest migration of widgets by the command,
// count what is wanted.
func wantProof(t *testing.T, c *cluster.Cluster, s *cluster.Server, want map[agree.Encoding]int, failed int64) {
	t.Helper()
	counted := censusOf(t, c, widgets)
	if !maps.Equal(counted, want) {
		t.Errorf("census counts %v, want %v", counted, want)
	}
	m := commands(t, s)
	if m == nil {
		t.Fatal("there is no migration of the command's")
	}
	if p := m.Status.Progress; p == nil || p.Done != int64(counted[widgetEncoding("v2")]) || p.Failed != failed || p.Total != p.Done+failed {
		t.Errorf("the migration says %+v, and census %v", p, counted)
	}
}
