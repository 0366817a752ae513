package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// serviceRange is the range that Services get their addresses from.
const serviceRange = "10.0.0.0/16"

// advertised is an address that no machine has (RFC 5737): the servers listen on the loopback, which Kubernetes
// refuses to publish as their endpoint.
const advertised = "192.0.2.1"

// controlPlane is an API server with everything that a control plane needs, but without nodes.
type controlPlane struct {
	*cluster.Cluster
	name     string
	release  release
	programs programs
	server   *cluster.Server
}

// test runs a control plane and the suite against it.
func (p programs) test(ctx context.Context, plane string, o options, only []string, stderr io.Writer) (err error) {
	c := &controlPlane{Cluster: cluster.In(filepath.Join(o.dir, plane)), name: plane, release: o.release, programs: p}
	if err := os.RemoveAll(c.Dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.start(ctx); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s is ready\n", plane)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c.whileAllRun(ctx, cancel)
	list := c.Path("only.txt")
	if err := os.WriteFile(list, []byte(strings.Join(only, "\n")), 0o600); err != nil {
		return err
	}
	if plane == stock {
		return p.suite(ctx, c, o.procs, list, stderr)
	}
	config, err := c.server.Access()
	if err != nil {
		return err
	}
	flipping, err := startFlips(ctx, config)
	if err != nil {
		return fmt.Errorf("flips of the storage version: %w", err)
	}
	err = p.suite(ctx, c, o.procs, list, stderr)
	done, flipErr := flipping.stop()
	fmt.Fprintf(stderr, "%s: %s\n", plane, done)
	return errors.Join(err, flipErr)
}

// whileAllRun cancels when a process has ended: each spec would wait in vain for what it does. stop tells which it was.
func (c *controlPlane) whileAllRun(ctx context.Context, cancel context.CancelFunc) {
	for _, p := range c.Runs() {
		go func() {
			select {
			case <-p.Done():
				cancel()
			case <-ctx.Done():
			}
		}()
	}
}

// start starts the control plane and waits until it is ready.
func (c *controlPlane) start(ctx context.Context) error {
	if c.name == alone {
		if err := c.serve(ctx, "server", func(s *cluster.Server) (*exec.Cmd, error) {
			return exec.Command(c.programs.path("concord"), s.Args(c.release.flags()...)...), nil
		}); err != nil {
			return err
		}
		return c.createOwnService(ctx)
	}
	if err := c.StartEtcd(ctx); err != nil {
		return err
	}
	var certificates *pki.Certificates
	if err := c.serve(ctx, "kube-apiserver", func(s *cluster.Server) (cmd *exec.Cmd, err error) {
		if certificates, err = pki.Ensure(pki.Config{Dir: s.CertDir, Port: s.Port}); err != nil {
			return nil, err
		}
		return c.kube(s, certificates), nil
	}); err != nil {
		return err
	}
	return c.startControllers(certificates)
}

// serve starts the API server and waits until it is ready, for at most three minutes.
func (c *controlPlane) serve(ctx context.Context, name string, command func(*cluster.Server) (*exec.Cmd, error)) (err error) {
	if c.server, err = c.Add(name, command); err != nil {
		return err
	}
	if err := c.server.Start(); err != nil {
		return err
	}
	return c.server.AwaitReady(ctx, 3*time.Minute)
}

// kube returns the command of the stock kube-apiserver, or of ours with the same flags.
func (c *controlPlane) kube(s *cluster.Server, certificates *pki.Certificates) *exec.Cmd {
	args := append(cluster.CertificateFlags(certificates),
		"--bind-address=127.0.0.1", "--secure-port="+strconv.Itoa(s.Port), "--advertise-address="+advertised,
		"--etcd-servers="+s.Etcd, "--service-cluster-ip-range="+serviceRange, "--authorization-mode=Node,RBAC", "--allow-privileged",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+certificates.SigningKeyFile,
		"--service-account-signing-key-file="+certificates.SigningKeyFile, "--shutdown-delay-duration=0s",
	)
	args = append(args, c.release.flags()...)
	if c.name == stock {
		return exec.Command(c.programs.path("kube-apiserver"), args...)
	}
	return exec.Command(c.programs.path("concord"), append([]string{"kube-apiserver"}, args...)...)
}

// startControllers starts kube-controller-manager.
func (c *controlPlane) startControllers(certificates *pki.Certificates) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	const name = "kube-controller-manager"
	_, err = c.Beside(name, exec.Command(c.programs.path(name), append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--kubeconfig=" + c.server.Kubeconfig(), "--leader-elect=false",
		"--controllers=*,bootstrapsigner,tokencleaner", "--use-service-account-credentials", "--service-account-private-key-file=" + certificates.SigningKeyFile,
		"--root-ca-file=" + certificates.CAFile, "--cluster-signing-cert-file=" + certificates.CAFile, "--cluster-signing-key-file=" + filepath.Join(c.CertDir, pki.CAKeyName),
		"--service-cluster-ip-range=" + serviceRange, "--allocate-node-cidrs=false",
	}, c.release.flags()...)...))
	return err
}

// createOwnService creates the Service that the suite asks for the IP family of the cluster. A
// control plane without pods has none.
func (c *controlPlane) createOwnService(ctx context.Context) error {
	config, err := c.server.Access()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Ports: []corev1.ServicePort{{Port: 443}}}}
	_, err = client.CoreV1().Services(metav1.NamespaceDefault).Create(ctx, service, metav1.CreateOptions{})
	return err
}

// stop ends all processes. It is an error if one of them has ended before.
func (c *controlPlane) stop() error {
	var errs []error
	for _, p := range c.Runs() {
		errs = append(errs, p.Failed())
	}
	return errors.Join(append(errs, c.Stop())...)
}
