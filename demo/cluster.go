package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/join"
	storedsets "github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/testbed/controlplane"
	"github.com/concord-dev/concord/testbed/ledger"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	// startLimit bounds how long a server may take from its start to ready.
	startLimit = 60 * time.Second
	// stopLimit bounds how long a server may take to end after SIGTERM.
	stopLimit = 45 * time.Second
	// readyPause is the time between two questions whether a server is ready.
	readyPause = 100 * time.Millisecond
)

// condition is the state in which the demo has put a server.
type condition string

const (
	starting condition = "starting"
	ready    condition = "ready"
	stopping condition = "stopping"
	dead     condition = "killed"
	stopped  condition = "paused"
)

// serverProcess is one API server of the demo. It keeps its name and port through restarts.
type serverProcess struct {
	controlplane.Server
	name     string
	endpoint *workload.Endpoint // for writers
	control  *workload.Endpoint // for the demo itself
	patient  *workload.Endpoint // for clients that wait for a paused server

	mu        sync.Mutex
	process   *process.Process
	condition condition
}

func (s *serverProcess) set(c condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condition = c
}

func (s *serverProcess) get() (condition, *process.Process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.condition, s.process
}

// cluster is an embedded etcd and the servers on it, in one temporary directory.
type cluster struct {
	cfg        Config
	dir        string
	etcd       *embedded.Etcd
	store      *clientv3.Client
	watch      *ledger.Watch[*world]
	servers    []*serverProcess
	kubeconfig string
	crashed    chan error // receives the first server that ends although it should not
}

// newCluster makes the directory of a cluster that is not running. The caller must close it.
func newCluster(cfg Config) (*cluster, error) {
	dir, err := os.MkdirTemp("", "concord-demo-")
	if err != nil {
		return nil, fmt.Errorf("temporary directory (set TMPDIR to one that can be written): %w", err)
	}
	w := newWorld()
	c := &cluster{cfg: cfg, dir: dir, watch: ledger.NewWatch(w, w.apply), crashed: make(chan error, 1)}
	for i := range serverCount {
		name := fmt.Sprintf("server-%d", i+1)
		at := controlplane.Server{Dir: filepath.Join(dir, name), CertDir: filepath.Join(dir, "pki")}
		c.servers = append(c.servers, &serverProcess{Server: at, name: name, condition: starting})
	}
	return c, nil
}

// start starts the etcd, watches it, and starts the servers one after the other, so that
// each registration can be told from the others, until all are ready.
func (c *cluster) start(ctx context.Context) error {
	var err error
	if c.etcd, err = embedded.StartEtcd(ctx, filepath.Join(c.dir, "etcd")); err != nil {
		return err
	}
	if c.store, err = controlplane.Connect(c.etcd.Endpoint); err != nil {
		return err
	}
	c.watch.Start(c.store, storedsets.DefaultPrefix, 1)
	for _, s := range c.servers {
		s.Etcd = c.etcd.Endpoint
		if s.Port, err = process.FreePort(); err != nil {
			return err
		}
		if err := c.launch(ctx, s, oldRelease); err != nil {
			return err
		}
		if err := c.connect(s); err != nil {
			return err
		}
	}
	for _, s := range c.servers {
		if err := c.awaitReady(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a server's process and waits for its registration.
func (c *cluster) launch(ctx context.Context, s *serverProcess, release string) error {
	args := s.Args(
		"--emulation-version", release,
		"--identity-lease-duration", c.cfg.LeaseDuration.String(),
		"--identity-lease-renew-interval", (c.cfg.LeaseDuration / leaseRenewals).String(),
	)
	c.watch.With(func(w *world) { w.expect(s.name) })
	p, err := process.Start(s.name, exec.Command(c.cfg.Executable, args...), filepath.Join(c.dir, s.name+".log"))
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.process, s.condition = p, starting
	s.mu.Unlock()
	go c.watchProcess(s, p)
	return c.await(ctx, startLimit, s.name+" registers", func(w *world) string {
		if _, ok := w.registered(s.name); !ok {
			return "it has no identity Lease; " + p.Tail()
		}
		return ""
	})
}

// watchProcess notices a server that ends although nobody asked it to.
func (c *cluster) watchProcess(s *serverProcess, p *process.Process) {
	<-p.Done()
	if condition, current := s.get(); current == p && (condition == starting || condition == ready) {
		select {
		case c.crashed <- p.Failure():
		default:
		}
	}
}

// connect makes the clients of a server, with the certificates of the first one's kubeconfig.
func (c *cluster) connect(s *serverProcess) error {
	config, err := s.Access()
	if err != nil {
		return err
	}
	c.kubeconfig = s.Kubeconfig()
	config = join.AsCommand(config)
	for into, patient := range map[**workload.Endpoint]bool{&s.endpoint: false, &s.control: false, &s.patient: true} {
		if *into, err = workload.NewEndpoint(s.name, config, patient); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the server says that it is ready and has reported every
// resource that there is.
func (c *cluster) awaitReady(ctx context.Context, s *serverProcess) error {
	_, p := s.get()
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	if err := p.Await(limited, readyPause, s.control.Ready); err != nil {
		return fmt.Errorf("%s is not ready: %w", s.name, err)
	}
	err := c.await(ctx, startLimit, s.name+" reports every resource", func(w *world) string { return w.unreported(s.name) })
	if errors.Is(err, errTooLate) {
		return fmt.Errorf("%w; %s", err, p.Tail())
	}
	if err != nil {
		return err
	}
	s.set(ready)
	return nil
}

// await waits until missing returns "". It fails when a server crashes or the time is up,
// and then says what is missing.
func (c *cluster) await(ctx context.Context, limit time.Duration, what string, missing func(*world) string) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		var lack string
		changed := c.watch.With(func(w *world) { lack = missing(w) })
		if lack == "" {
			return nil
		}
		select {
		case <-changed:
		case err := <-c.crashed:
			return err
		case <-c.watch.Done():
			return c.watch.Err()
		case err := <-c.etcd.Err():
			return fmt.Errorf("the embedded etcd stopped: %w", err)
		case <-timer.C:
			return fmt.Errorf("%w %s: %s: %s", errTooLate, limit, what, lack)
		case <-ctx.Done():
			return fmt.Errorf("%s: %s: %w", what, lack, context.Cause(ctx))
		}
	}
}

// errTooLate is the error of await when the change that it waits for does not happen in time.
var errTooLate = errors.New("not within")

func (c *cluster) endpoints() []*workload.Endpoint {
	var all []*workload.Endpoint
	for _, s := range c.servers {
		all = append(all, s.endpoint)
	}
	return all
}

// close ends every process and removes every file of the cluster.
func (c *cluster) close() error {
	var errs []error
	for _, s := range c.servers {
		if _, p := s.get(); p != nil {
			s.set(stopping)
			errs = append(errs, p.Signal(syscall.SIGKILL))
		}
	}
	for _, s := range c.servers {
		if _, p := s.get(); p != nil {
			errs = append(errs, p.Kill())
		}
		for _, e := range []*workload.Endpoint{s.endpoint, s.control, s.patient} {
			if e != nil {
				e.HTTP.CloseIdleConnections()
			}
		}
	}
	c.watch.Stop()
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.Close(), controlplane.RemoveSocket(c.etcd.Endpoint, c.dir))
	}
	if err := os.RemoveAll(c.dir); err != nil {
		errs = append(errs, fmt.Errorf("remove the demo's files: %w", err))
	}
	return errors.Join(errs...)
}
