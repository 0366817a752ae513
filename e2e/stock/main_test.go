package stock_test

import (
	"testing"

	"github.com/concord-dev/concord/e2e/beside/itself"
)

func TestMain(m *testing.M) { itself.Main(m) }
