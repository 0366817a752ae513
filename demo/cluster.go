package demo

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/concord-dev/concord/demo/workload"
	"github.com/concord-dev/concord/join"
	storedsets "github.com/concord-dev/concord/stored"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/ledger"
)

const (
	// startLimit bounds how long a server may take from its start to ready.
	startLimit = 60 * time.Second
	// stopLimit bounds how long a server may take to end after SIGTERM.
	stopLimit = 45 * time.Second
	// readyPause is the time between two checks whether a server is ready.
	readyPause = 100 * time.Millisecond
)

// condition is the state in which the demo has put a server.
type condition string

const (
	planned  condition = "not started yet"
	starting condition = "starting"
	ready    condition = "ready"
	stopping condition = "stopping"
	dead     condition = "killed"
	stopped  condition = "paused"
)

// serverProcess is one API server of the demo. It keeps its name and port through restarts.
type serverProcess struct {
	*testbed.Server
	release  string             // that it emulates in its next run
	endpoint *workload.Endpoint // for writers
	control  *workload.Endpoint // for the demo itself
	patient  *workload.Endpoint // for clients that wait for a paused server

	mu        sync.Mutex
	condition condition
}

func (s *serverProcess) set(c condition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.condition = c
}

func (s *serverProcess) get() condition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.condition
}

// cluster is an embedded etcd, which is watched, and the servers on it.
type cluster struct {
	*testbed.Cluster
	watch      *ledger.Watch[*world]
	servers    []*serverProcess
	kubeconfig string
	crashed    chan error // receives the first server that ends although it should not
}

// newCluster makes the directory of a cluster that is not running. The caller must close it.
func newCluster(cfg Config) (*cluster, error) {
	at, err := testbed.New("concord-demo")
	if err != nil {
		return nil, err
	}
	w := newWorld()
	c := &cluster{Cluster: at, watch: ledger.NewWatch(w, w.apply), crashed: make(chan error, 1)}
	for i := range serverCount {
		s := &serverProcess{condition: planned, release: oldRelease}
		s.Server, err = at.Add(fmt.Sprintf("server-%d", i+1), func(at *testbed.Server) (*exec.Cmd, error) {
			return exec.Command(cfg.Executable, at.Args(
				"--emulation-version", s.release,
				"--identity-lease-duration", cfg.LeaseDuration.String(),
				"--identity-lease-renew-interval", (cfg.LeaseDuration/leaseRenewals).String(),
			)...), nil
		})
		if err != nil {
			return nil, errors.Join(err, c.close())
		}
		c.servers = append(c.servers, s)
	}
	return c, nil
}

// begin starts the etcd and watches it.
func (c *cluster) begin(ctx context.Context) error {
	if err := c.EmbedEtcd(ctx); err != nil {
		return err
	}
	c.watch.Start(c.Raw, storedsets.DefaultPrefix, 1)
	return nil
}

// start starts servers one after the other, so that their registrations can be told apart, and waits until all are ready.
func (c *cluster) start(ctx context.Context, servers []*serverProcess) error {
	for _, s := range servers {
		s.Etcd = c.Endpoint
		if err := c.launch(ctx, s); err != nil {
			return err
		}
		if err := c.connect(s); err != nil {
			return err
		}
	}
	for _, s := range servers {
		if err := c.awaitReady(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a server's process and waits for its registration.
func (c *cluster) launch(ctx context.Context, s *serverProcess) error {
	c.watch.With(func(w *world) { w.expect(s.Name) })
	if err := s.Start(); err != nil {
		return err
	}
	s.set(starting)
	p := s.Run()
	go func() { // notices a server that ends although nobody asked it to
		<-p.Done()
		if err := p.Crashed(); err != nil {
			select {
			case c.crashed <- err:
			default:
			}
		}
	}()
	return c.await(ctx, startLimit, s.Name+" registers", func(w *world) string {
		if _, ok := w.registered(s.Name); !ok {
			return "it has no identity Lease; " + p.Tail()
		}
		return ""
	})
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
		if *into, err = workload.NewEndpoint(s.Name, config, patient); err != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the server says that it is ready and has reported every resource.
func (c *cluster) awaitReady(ctx context.Context, s *serverProcess) error {
	if err := s.AwaitReady(ctx, startLimit); err != nil {
		return err
	}
	err := c.await(ctx, startLimit, s.Name+" reports every resource", func(w *world) string { return w.unreported(s.Name) })
	if errors.Is(err, errTooLate) {
		return fmt.Errorf("%w; %s", err, s.Run().Tail())
	}
	if err != nil {
		return err
	}
	s.set(ready)
	return nil
}

// await waits until missing returns "". It fails when a server crashes or the time is up, and the error says what is
// missing.
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
		case err := <-c.Embedded.Err():
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

func endpoints(servers []*serverProcess) []*workload.Endpoint {
	var all []*workload.Endpoint
	for _, s := range servers {
		all = append(all, s.endpoint)
	}
	return all
}

// close ends every process and removes every file of the cluster.
func (c *cluster) close() error {
	for _, s := range c.servers {
		for _, e := range []*workload.Endpoint{s.endpoint, s.control, s.patient} {
			if e != nil {
				e.HTTP.CloseIdleConnections()
			}
		}
	}
	c.watch.Stop()
	return c.Close()
}
