package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/concord-dev/concord/server/stock"
	"github.com/concord-dev/concord/testbed/process"
)

// The programs that a child may be besides a server of ours and an etcd.
const (
	stockArgument    = "stock"
	migratorArgument = "migrator"
	adminToken       = "admin"
)

// Stock makes the cluster's servers Kubernetes' own kube-apiserver. It is called before they are
// started.
func (c *Cluster) Stock() {
	for _, s := range c.Servers {
		s.stock = true
	}
}

// stockArgs writes the files that kube-apiserver wants and returns its flags.
func (s *Server) stockArgs() ([]string, error) {
	dir := s.cluster.path(s.name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := APIServerFiles(dir, adminToken+",admin,1,system:masters"); err != nil {
		return nil, err
	}
	return append([]string{stockArgument}, APIServerFlags(dir, s.cluster.endpoint, s.port)...), nil
}

const keyFile, tokenFile = "sa.key", "tokens.csv"

// APIServerFiles writes the files that a kube-apiserver with APIServerFlags reads: the key of service account
// tokens, and users, each a line "token,name,uid,group".
func APIServerFiles(dir string, users ...string) error {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, keyFile), key, 0o600),
		os.WriteFile(filepath.Join(dir, tokenFile), []byte(strings.Join(users, "\n")+"\n"), 0o600))
}

// APIServerFlags are the flags of a kube-apiserver, stock or ours, on a port of the loopback.
func APIServerFlags(dir, etcd string, port int) []string {
	return []string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + filepath.Join(dir, "certificates"),
		"--etcd-servers=" + etcd, "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + filepath.Join(dir, keyFile), "--service-account-signing-key-file=" + filepath.Join(dir, keyFile),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + filepath.Join(dir, tokenFile),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s",
	}
}

// stockConfig is access as an administrator.
func stockConfig(host string) *rest.Config {
	return &rest.Config{Host: host, BearerToken: adminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}} // a certificate that the server made for this run
}

// StartMigrator starts kube-controller-manager's migrator of stored objects beside the server. It
// logs every object that it migrates.
func (s *Server) StartMigrator() (*process.Process, error) {
	name := s.name + "-migrator"
	kubeconfig, err := s.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	return s.startBeside(name, exec.Command(s.cluster.stage.program, migratorArgument,
		"--kubeconfig="+kubeconfig, "--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(port), "--cert-dir="+s.cluster.path(name),
		"--leader-elect=false", "--vmodule=storageversionmigrator=6", stock.MigratorFlag))
}

// StartControllers starts the program concord-controllers beside the server, with the memory limit
// of the manifests in deploy.
func (s *Server) StartControllers(program string, args ...string) (*process.Process, error) {
	name := s.name + "-controllers"
	kubeconfig, err := s.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, append([]string{
		"--kubeconfig=" + kubeconfig, "--port=0", "--leader-elect=false",
		"--replica-address==" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
	}, args...)...)
	cmd.Env = append(os.Environ(), "GOMEMLIMIT=56MiB")
	return s.startBeside(name, cmd)
}

func (s *Server) startBeside(name string, cmd *exec.Cmd) (*process.Process, error) {
	p, err := process.Start(name, cmd, s.cluster.path(name+".log"))
	if err != nil {
		return nil, err
	}
	s.beside = append(s.beside, p)
	return p, nil
}

// kubeconfig writes the administrator's access to the server into a file of that name.
func (s *Server) kubeconfig(name string) (string, error) {
	config, err := s.Config()
	if err != nil {
		return "", err
	}
	file := s.cluster.path(name + ".kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:  map[string]*clientcmdapi.Cluster{s.name: {Server: config.Host, InsecureSkipTLSVerify: config.Insecure}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{s.name: {Token: config.BearerToken}},
		Contexts:  map[string]*clientcmdapi.Context{s.name: {Cluster: s.name, AuthInfo: s.name}}, CurrentContext: s.name,
	}, file); err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return file, nil
}

func runStock(ctx context.Context, args []string) error {
	return execute(ctx, stock.Command(), args)
}

func runMigrator(ctx context.Context, args []string) error {
	return execute(ctx, stock.ControllerManagerCommand(), args)
}

func execute(ctx context.Context, cmd *cobra.Command, args []string) error {
	cmd.SetArgs(args)
	return cmd.ExecuteContext(ctx)
}
