package planning_test

import (
	"flag"
	"os"
	"testing"

	"github.com/concord-dev/concord/server/planning"
	"github.com/concord-dev/concord/verdict"
)

var writeTable = flag.Bool("write-table", false, "write verdict/lifecycles.txt anew")

// TestTableOfLifecycles: programs that link no Kubernetes know its lifecycles from a table,
// which says the same as Kubernetes' types.
//
//	go test ./server/planning -run TableOfLifecycles -write-table
func TestTableOfLifecycles(t *testing.T) {
	want := verdict.FormatLifecycles(planning.Lifecycles())
	const file = "../../verdict/lifecycles.txt"
	if *writeTable {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what Kubernetes' types say: run this test with -write-table", file)
	}
	if back, err := verdict.ParseLifecycles(want); err != nil || verdict.FormatLifecycles(back) != want {
		t.Errorf("the table cannot be read as it is written: %v", err)
	}
}
