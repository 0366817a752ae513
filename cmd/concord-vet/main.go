// Command concord-vet runs Concord's own static checks: concord-vet ./... It exits with 3
// when it finds something.
package main

import (
	"golang.org/x/tools/go/analysis/multichecker"

	"github.com/concord-dev/concord/analysis/versionedfeatures"
)

func main() { multichecker.Main(versionedfeatures.Analyzer) }
