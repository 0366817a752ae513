package stock_test

import (
	"testing"

	"github.com/concord-dev/concord/e2e/beside/itself"
)

func TestMain(m *testing.M) { itself.Main(m) }

// must is for steps without which a test cannot go on.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
