package stock_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
)

// testOperator runs the example of an operator that migrates its own custom resource, with two
// kube-apiservers and under writers: storedVersions names the new version alone, nothing else is
// stored, and the old version can go.
func testOperator(t *testing.T, a, b *beside.APIServer) {
	const objects = 150
	w := a.Define("widgets", true, nil)
	w.Fill(objects, nil)
	operator := a.Cluster.Path("operator")
	cluster.Compile(t, "-o", operator, "github.com/concord-dev/concord/examples/operator")
	kubeconfig, err := b.Access(beside.AdminToken).Kubeconfig("operator")
	must(t, err)
	p := cluster.NewProcess(t, "operator", a.Cluster.Dir, func() *exec.Cmd {
		cmd := exec.Command(operator, "-settle=3s")
		cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
		return cmd
	})
	p.Start()
	writing := w.Write(objects, a, b)
	w.Store("v2")
	w.AwaitPruned(objects)
	if writing.Stop() == 0 {
		t.Error("nothing was written meanwhile")
	}
	if err := w.TakeOut(); err != nil {
		t.Errorf("v1 cannot be taken out: %v", err)
	}
	p.Terminate()
}
