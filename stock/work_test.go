package stock

import (
	"strings"
	"testing"
)

// TestNotInstalled: controllers that find no CRDs of their own, and may not install them, say what
// to do.
func TestNotInstalled(t *testing.T) {
	c := &controllers{objects: definedIn(t).Build()}
	err := c.installed(t.Context())
	if err == nil || !strings.Contains(err.Error(), `migration.k8s.io" not found: apply the manifests`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("without definitions: %v", err)
	}
}
