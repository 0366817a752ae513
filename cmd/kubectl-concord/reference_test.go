package main

import (
	"testing"

	"github.com/concord-dev/concord/cmd/reference"
)

// TestReference holds docs/reference/kubectl-concord.md to the commands.
func TestReference(t *testing.T) {
	reference.Check(t, newCommand(), "../../docs/reference/kubectl-concord.md")
}
