package planning_test

import (
	"os"
	"path/filepath"
	"testing"

	kubeoptions "k8s.io/kubernetes/pkg/kubeapiserver/options"

	"github.com/concord-dev/concord/server/planning"
)

// TestByRBAC: RBAC counts wherever it stands among a server's authorizers.
func TestByRBAC(t *testing.T) {
	file := func(authorizers string) *kubeoptions.BuiltInAuthorizationOptions {
		name := filepath.Join(t.TempDir(), "authorization.json")
		if err := os.WriteFile(name, []byte(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[`+authorizers+`]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return &kubeoptions.BuiltInAuthorizationOptions{AuthorizationConfigurationFile: name}
	}
	for name, test := range map[string]struct {
		options *kubeoptions.BuiltInAuthorizationOptions
		want    bool
	}{
		"as kubeadm": {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"Node", "RBAC"}}, true},
		"ABAC":       {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"ABAC"}}, false},
		"all may":    {&kubeoptions.BuiltInAuthorizationOptions{Modes: []string{"AlwaysAllow"}}, false},
		"a file":     {file(`{"type":"Node","name":"node"},{"type":"RBAC","name":"rbac"}`), true},
		"no RBAC":    {file(`{"type":"Node","name":"node"}`), false},
	} {
		if got, err := planning.ByRBAC(test.options); err != nil || got != test.want {
			t.Errorf("%s: %t, error %v", name, got, err)
		}
	}
	if _, err := planning.ByRBAC(file(`{"type":"Nobody","name":"nobody"}`)); err == nil {
		t.Error("a file with an authorizer that there is not is taken")
	}
}
