package main

import (
	"testing"

	"github.com/concord-dev/concord/cmd/reference"
)

// TestReference checks that docs/reference/kubectl-concord.md says what the commands say.
func TestReference(t *testing.T) {
	reference.Check(t, newCommand(), "../../docs/reference/kubectl-concord.md")
}
