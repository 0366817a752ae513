package concord

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// serverCode are the packages that make a server. The plugin must not link them, not even
// indirectly: it is small, starts at once, and people install it on their own machines. It reads
// raw etcd, so it does have the code that recognizes stored values.
var serverCode = []string{
	"k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/registry", "k8s.io/apiserver/pkg/admission", "k8s.io/apiserver/pkg/endpoints/handlers",
	"k8s.io/apiserver/pkg/storage/etcd3", "k8s.io/apiserver/pkg/storage/cacher", "k8s.io/kubernetes", "go.etcd.io/etcd/server",
	modulePath + "/server", modulePath + "/join", modulePath + "/member", modulePath + "/fence", modulePath + "/sim",
}

// TestPluginHoldsNoServer asserts that kubectl-concord links none of these packages.
func TestPluginHoldsNoServer(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/kubectl-concord").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, modulePath+"/status") {
		t.Fatalf("go list says that it is linked from %d packages, and not from status", len(linked))
	}
	for _, p := range linked {
		if i := slices.IndexFunc(serverCode, func(s string) bool { return under(p, s) }); i >= 0 {
			t.Errorf("cmd/kubectl-concord links %s", p)
		}
	}
}
