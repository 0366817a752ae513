package rawetcd

import (
	"strings"
	"testing"

	"github.com/concord-dev/concord/keyring/use"
)

// TestNoKeys: where nothing is encrypted that is said, in place of a table without rows.
func TestNoKeys(t *testing.T) {
	var out strings.Builder
	if err := printKeys(&out, use.Report{Revision: 7}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "nothing is encrypted at revision 7:\nno stored value has a key, and no server encrypts with one\n" {
		t.Errorf("printed %q", got)
	}
}
