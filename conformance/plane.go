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
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/keyutil"

	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// serviceRange is the range that Services get their addresses from.
const serviceRange = "10.0.0.0/16"

// advertised is an address that nobody has (RFC 5737): the servers listen on the loopback, and
// Kubernetes refuses to publish that as their endpoint.
const advertised = "192.0.2.1"

// controlPlane is an API server with all that it needs to be whole, but nodes.
type controlPlane struct {
	name, dir  string
	release    release
	programs   programs
	kubeconfig string
	running    []*process.Process // in the order in which they were started
}

// test runs a control plane and the suite against it.
func (p programs) test(ctx context.Context, plane string, o options, only []string, stderr io.Writer) (err error) {
	c := &controlPlane{name: plane, dir: filepath.Join(o.dir, plane), release: o.release, programs: p}
	if err := os.RemoveAll(c.dir); err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.start(ctx); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%s is ready\n", plane)
	list := filepath.Join(c.dir, "only.txt")
	if err := os.WriteFile(list, []byte(strings.Join(only, "\n")), 0o600); err != nil {
		return err
	}
	if plane == stock {
		return p.suite(ctx, c, o.procs, list, stderr)
	}
	config, err := c.config()
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

func (c *controlPlane) path(name string) string { return filepath.Join(c.dir, name) }

// config is the administrator's access, without limits.
func (c *controlPlane) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.kubeconfig)
	if err == nil {
		config.QPS = -1
	}
	return config, err
}

// run starts a program, whose output goes to name.log.
func (c *controlPlane) run(name, program string, args ...string) error {
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+name)
	p, err := process.Start(name, cmd, c.path(name+".log"))
	if err == nil {
		c.running = append(c.running, p)
	}
	return err
}

// start starts the control plane and waits until it is ready.
func (c *controlPlane) start(ctx context.Context) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	if c.name == alone {
		c.kubeconfig = filepath.Join(c.path("pki"), pki.AdminKubeconfigName)
		if err := c.run("server", c.programs.path("concord"), append([]string{"server", "--data-dir=" + c.dir, "--cert-dir=" + c.path("pki"), "--secure-port=" + strconv.Itoa(port)}, c.release.flags()...)...); err != nil {
			return err
		}
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
		return c.createOwnService(ctx)
	}
	etcd, err := c.startEtcd()
	if err != nil {
		return err
	}
	certificates, err := pki.Ensure(pki.Config{Dir: c.path("pki"), Port: port})
	if err != nil {
		return err
	}
	c.kubeconfig = certificates.AdminKubeconfig
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("sa.key"), key, 0o600); err != nil {
		return err
	}
	if err := c.startKube(port, etcd, certificates); err != nil {
		return err
	}
	if err := c.awaitReady(ctx); err != nil {
		return err
	}
	return c.startControllers(certificates)
}

// startEtcd starts an etcd of one member and returns where it listens.
func (c *controlPlane) startEtcd() (string, error) {
	var urls [2]string
	for i := range urls {
		port, err := process.FreePort()
		if err != nil {
			return "", err
		}
		urls[i] = "http://127.0.0.1:" + strconv.Itoa(port)
	}
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	client, peer := urls[0], urls[1]
	return client, c.run("etcd", self, cluster.EtcdFlags(c.path("etcd"), client, peer)...)
}

// startKube starts the stock kube-apiserver, or ours with the same flags.
func (c *controlPlane) startKube(port int, etcd string, certificates *pki.Certificates) error {
	args := []string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--advertise-address=" + advertised,
		"--etcd-servers=" + etcd, "--service-cluster-ip-range=" + serviceRange, "--authorization-mode=Node,RBAC", "--allow-privileged",
		"--tls-cert-file=" + certificates.CertFile, "--tls-private-key-file=" + certificates.KeyFile, "--client-ca-file=" + certificates.CAFile,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + c.path("sa.key"), "--service-account-signing-key-file=" + c.path("sa.key"),
		"--requestheader-client-ca-file=" + certificates.FrontProxy.CAFile, "--requestheader-allowed-names=" + pki.FrontProxyUser,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + certificates.FrontProxy.CertFile, "--proxy-client-key-file=" + certificates.FrontProxy.KeyFile,
		"--shutdown-delay-duration=0s",
	}
	args = append(args, c.release.flags()...)
	if c.name == stock {
		return c.run("kube-apiserver", c.programs.path("kube-apiserver"), args...)
	}
	return c.run("kube-apiserver", c.programs.path("concord"), append([]string{"kube-apiserver"}, args...)...)
}

// startControllers starts kube-controller-manager.
func (c *controlPlane) startControllers(certificates *pki.Certificates) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	return c.run("kube-controller-manager", c.programs.path("kube-controller-manager"), append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--kubeconfig=" + c.kubeconfig, "--leader-elect=false",
		"--controllers=*,bootstrapsigner,tokencleaner", "--use-service-account-credentials", "--service-account-private-key-file=" + c.path("sa.key"),
		"--root-ca-file=" + certificates.CAFile, "--cluster-signing-cert-file=" + certificates.CAFile, "--cluster-signing-key-file=" + filepath.Join(c.path("pki"), pki.CAKeyName),
		"--service-cluster-ip-range=" + serviceRange, "--allocate-node-cidrs=false",
	}, c.release.flags()...)...)
}

// createOwnService creates the Service that the suite asks for the IP family of the cluster. A
// control plane without pods has none.
func (c *controlPlane) createOwnService(ctx context.Context) error {
	config, err := c.config()
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

// awaitReady waits until the server that was started last is ready, for at most three minutes.
func (c *controlPlane) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	if err := c.running[len(c.running)-1].Await(ctx, 200*time.Millisecond, c.ready); err != nil {
		return fmt.Errorf("%s is not ready: %w", c.name, err)
	}
	return nil
}

func (c *controlPlane) ready(ctx context.Context) error {
	config, err := c.config()
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
}

// stop ends all processes. Those that have ended before were not meant to.
func (c *controlPlane) stop() error {
	var errs []error
	for _, p := range c.running {
		errs = append(errs, p.Failed())
	}
	for i := len(c.running) - 1; i >= 0; i-- {
		errs = append(errs, c.running[i].Kill())
	}
	return errors.Join(errs...)
}
