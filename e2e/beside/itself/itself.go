// Package itself has a test binary double as the programs that its tests run: Kubernetes' own
// kube-apiserver, and concord controllers.
package itself

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
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
)

// roleVariable makes the test binary one of the programs below.
const roleVariable = "CONCORD_STOCK_TEST_ROLE"

const (
	apiserverRole   = "kube-apiserver" // Kubernetes' own
	controllersRole = "controllers"
)

// Main is the TestMain of a package.
func Main(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case apiserverRole:
		os.Exit(cli.Run(stockserver.Command()))
	case controllersRole:
		runControllers()
	default:
		cluster.Main(m)
	}
}

// controllersVariable says how controllers are started.
const controllersVariable = "CONCORD_STOCK_TEST_CONTROLLERS"

// started is the content of controllersVariable.
type started struct {
	Access beside.Access
	Config stock.Config
}

func runControllers() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var s started
	err := json.Unmarshal([]byte(os.Getenv(controllersVariable)), &s)
	if err == nil {
		ctrllog.SetLogger(klog.Background())
		s.Config.Rest, s.Config.Logger = s.Access.Config(), klog.Background()
		err = stock.Run(ctx, s.Config)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "controllers:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop is called
	}
}

// Programs are the test binary in its roles.
var Programs = beside.Programs{
	APIServer: func(flags ...string) *exec.Cmd { return self(apiserverRole, "", flags...) },
	Controllers: func(a beside.Access, c stock.Config) *exec.Cmd {
		text, err := json.Marshal(started{Access: a, Config: c}) //nolint:staticcheck // Config.Rest is nil
		if err != nil {
			panic(err) // it can be written, as it was read from flags
		}
		return self(controllersRole, string(text))
	},
}

func self(role, controllers string, args ...string) *exec.Cmd {
	executable, err := os.Executable()
	if err != nil {
		panic(err) // it runs
	}
	cmd := exec.Command(executable, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role, controllersVariable+"="+controllers)
	return cmd
}

// Quick are controllers that wait no longer than tests need: their writers' requests take
// milliseconds. A kube-apiserver has the ordinary time to answer, since one that a busy machine
// keeps from answering ends the agreement.
func Quick() stock.Config {
	return stock.Config{
		Settle: 3 * time.Second, Poll: 2 * time.Second, InstallDefinitions: true,
		Settings: observed.Settings{PruneAfter: 3 * time.Second},
	}
}
