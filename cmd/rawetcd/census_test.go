package rawetcd

import (
	"fmt"
	"strings"
	"testing"

	"github.com/concord-dev/concord/keyring/use"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// TestCensusTable: resources that are stored in more than one encoding stand before the others, and of the values that
// cannot be read ten are named.
func TestCensusTable(t *testing.T) {
	var out strings.Builder
	census := migratestore.Census{Revision: 7, Rows: []migratestore.Row{
		{Resource: "configmaps", Encoding: "v1", Objects: 3, Bytes: 30},
		{Resource: "secrets", Encoding: "encrypted:aescbc:v1:k", Objects: 1, Bytes: 10},
		{Resource: "secrets", Encoding: "unknown", Objects: 12, Bytes: 24},
	}}
	for i := range 12 {
		census.Unknown = append(census.Unknown, fmt.Sprintf("/registry/secrets/default/bad-%02d", i))
	}
	if err := PrintCensus(&out, census, false, "table"); err != nil {
		t.Fatal(err)
	}
	want := `secrets
          1 objects            10 bytes  encrypted:aescbc:v1:k
         12 objects            24 bytes  unknown
configmaps
          3 objects            30 bytes  v1

values that cannot be read: 12
  "/registry/secrets/default/bad-00"
  "/registry/secrets/default/bad-01"
  "/registry/secrets/default/bad-02"
  "/registry/secrets/default/bad-03"
  "/registry/secrets/default/bad-04"
  "/registry/secrets/default/bad-05"
  "/registry/secrets/default/bad-06"
  "/registry/secrets/default/bad-07"
  "/registry/secrets/default/bad-08"
  "/registry/secrets/default/bad-09"
  and 2 more, named by -o json

revision 7
`
	if out.String() != want {
		t.Errorf("printed is %s, want %s", out.String(), want)
	}
}

// TestNoKeys: if nothing is encrypted, the command says so instead of printing a table without
// rows.
func TestNoKeys(t *testing.T) {
	var out strings.Builder
	if err := printKeys(&out, use.Report{Revision: 7}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "nothing is encrypted at revision 7:\nno stored value has a key, and no server encrypts with one\n" {
		t.Errorf("printed %q", got)
	}
}
