// Package itself lets a test binary run as the programs that its tests need: Kubernetes' own
// kube-apiserver, and concord controllers.
package itself

import (
	"context"
	"encoding/json"
	"os/exec"
	"testing"
	"time"

	"k8s.io/component-base/cli"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/concord-dev/concord/e2e/beside"
	"github.com/concord-dev/concord/e2e/cluster"
	stockserver "github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/stock"
	"github.com/concord-dev/concord/stock/observed"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	apiserverRole   = "kube-apiserver" // Kubernetes' own
	controllersRole = "controllers"
)

// Main is the TestMain of a package.
func Main(m *testing.M) {
	process.Serve(map[string]func(context.Context, []string) error{
		apiserverRole:   func(context.Context, []string) error { return cli.RunNoErrOutput(stockserver.Command()) },
		controllersRole: runControllers,
	})
	cluster.Main(m)
}

// started says how the controllers are started; it is their argument, in JSON.
type started struct {
	Access beside.Access
	Config stock.Config
}

func runControllers(ctx context.Context, args []string) error {
	var s started
	if err := json.Unmarshal([]byte(args[0]), &s); err != nil {
		return err
	}
	ctrllog.SetLogger(klog.Background())
	s.Config.Rest, s.Config.Logger = s.Access.Config(), klog.Background()
	return stock.Run(ctx, s.Config)
}

// Programs run the test binary in these roles.
var Programs = beside.Programs{
	APIServer: func(flags ...string) *exec.Cmd { return process.Self(apiserverRole, flags...) },
	Controllers: func(a beside.Access, c stock.Config) *exec.Cmd {
		text, err := json.Marshal(started{Access: a, Config: c}) //nolint:staticcheck // Config.Rest is nil
		if err != nil {
			panic(err) // it can be written, as it was read from flags
		}
		return process.Self(controllersRole, string(text))
	},
}

// Quick returns settings with which the controllers wait no longer than tests need: the
// requests of a test's writers take milliseconds. A kube-apiserver has the usual time to
// answer, since the agreement ends if a busy machine keeps one from answering.
func Quick() stock.Config {
	return stock.Config{
		Settle: 3 * time.Second, Poll: 2 * time.Second, InstallDefinitions: true,
		Settings: observed.Settings{PruneAfter: 3 * time.Second},
	}
}
