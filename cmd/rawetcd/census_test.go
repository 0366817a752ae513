package rawetcd

import (
	"strings"
	"testing"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// TestMixedFirst: resources that are stored in more than one encoding stand before the others.
func TestMixedFirst(t *testing.T) {
	var out strings.Builder
	census := migratestore.Census{Revision: 7, Rows: []migratestore.Row{
		{Resource: "configmaps", Encoding: "v1", Objects: 3, Bytes: 30},
		{Resource: "secrets", Encoding: "encrypted:aescbc:v1:k", Objects: 1, Bytes: 10},
		{Resource: "secrets", Encoding: "v1", Objects: 2, Bytes: 20},
	}}
	if err := PrintCensus(&out, census, false, "table"); err != nil {
		t.Fatal(err)
	}
	want := `secrets
          1 objects            10 bytes  encrypted:aescbc:v1:k
          2 objects            20 bytes  v1
configmaps
          3 objects            30 bytes  v1

revision 7
`
	if out.String() != want {
		t.Errorf("printed is %s, want %s", out.String(), want)
	}
}
