package stage

import (
	"net"
	"os"
	"os/exec"
	"strconv"

	"github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// Stock makes all servers of the cluster stock kube-apiservers. Call it before they are started.
func (c *Cluster) Stock() {
	for _, s := range c.Servers {
		s.stock, s.Admin = true, cluster.WithToken(s.URL(), cluster.AdminToken)
	}
}

// stockCommand returns the command of a stock kube-apiserver, and writes the files that it needs.
func (s *Server) stockCommand() (*exec.Cmd, error) {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := cluster.WriteFiles(s.Dir, cluster.Admin); err != nil {
		return nil, err
	}
	return process.Self(stockRole, cluster.Flags(s.Dir, s.Port, "--etcd-servers="+s.Etcd)...), nil
}

// StartMigrator starts kube-controller-manager's migrator of stored objects beside the server. It
// logs every object that it migrates.
func (s *Server) StartMigrator() (*process.Process, error) {
	name := s.Name + "-migrator"
	kubeconfig, err := s.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	return s.cluster.Beside(name, process.Self(migratorRole,
		"--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--cert-dir="+s.cluster.Path(name),
		"--leader-elect=false", "--vmodule=storageversionmigrator=6", stock.MigratorFlag))
}

// StartControllers starts the program concord-controllers beside the server, with the memory limit
// of the manifests in deploy.
func (s *Server) StartControllers(program string, args ...string) (*process.Process, error) {
	name := s.Name + "-controllers"
	kubeconfig, err := s.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, append([]string{
		"--kubeconfig=" + kubeconfig, "--port=0", "--leader-elect=false",
		"--replica-address==" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port)),
	}, args...)...)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=56MiB")
	return s.cluster.Beside(name, cmd)
}

// kubeconfig writes the administrator's access to the server into a file of that name.
func (s *Server) kubeconfig(name string) (string, error) {
	config, err := s.Config()
	if err != nil {
		return "", err
	}
	file := s.cluster.Path(name + ".kubeconfig")
	return file, cluster.WriteKubeconfig(file, config)
}
