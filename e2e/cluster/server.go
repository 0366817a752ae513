package cluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/concord-dev/concord/agree"
	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// Durations with which the tests' servers are started, instead of the defaults of 15 s, 5 s and 75 s.
const (
	LeaseDuration = 4 * time.Second
	RenewInterval = time.Second
	Settle        = 2 * time.Second
)

// readyTimeout is how long a server may take to start beside others.
const readyTimeout = 3 * time.Minute

// Options say how a server differs from the others.
type Options struct {
	// Release is the older release whose program is run, see Release; empty for the newest.
	Release string
	// Earlier runs the program of Concord's release before this one, see Earlier.
	Earlier bool
	// Emulation is --emulation-version, and MinCompatibility --min-compatibility-version.
	Emulation, MinCompatibility string
	// Args are further arguments, separated by spaces.
	Args string
}

func (o Options) program(t testing.TB) string {
	t.Helper()
	if o.Earlier {
		return Earlier(t)
	}
	return Release(t, o.Release)
}

// APIServer is one API server process. It keeps its name, port and directory when it is
// started again.
type APIServer struct {
	*Process
	*testbed.Server
}

// NewAPIServer makes a server a process of the test. It is not started yet.
func NewAPIServer(t testing.TB, at *testbed.Server) *APIServer {
	return &APIServer{Process: adopt(t, at.Program), Server: at}
}

// Server is a concord server.
type Server struct {
	*APIServer
	options Options
	program string
}

// NewServer returns a server of the cluster that is not started. Names are unique.
func (c *Cluster) NewServer(name string, o Options) *Server {
	c.T.Helper()
	s := &Server{options: o, program: o.program(c.T)}
	at, err := c.Add(name, func(*testbed.Server) (*exec.Cmd, error) { return exec.Command(s.program, s.args()...), nil })
	if err != nil {
		c.T.Fatal(err)
	}
	if c.embedded && name == embedding {
		at.Etcd = ""
	}
	s.APIServer = NewAPIServer(c.T, at)
	c.servers = append(c.servers, s)
	return s
}

func (s *Server) args() []string {
	args := s.Args(
		"--identity-lease-duration", LeaseDuration.String(),
		"--identity-lease-renew-interval", RenewInterval.String(),
		"--controller-lease-duration", LeaseDuration.String(),
		"--allow-loopback-services", // everything is on this host
	)
	if !s.options.Earlier {
		args = append(args, "--migration-settle", Settle.String())
	}
	if s.options.Emulation != "" {
		args = append(args, "--emulation-version", s.options.Emulation)
	}
	if s.options.MinCompatibility != "" {
		args = append(args, "--min-compatibility-version", s.options.MinCompatibility)
	}
	return append(args, strings.Fields(s.options.Args)...)
}

// Options returns the options that the server was started with last.
func (s *Server) Options() Options { return s.options }

// Restart ends the server in an orderly way and starts it with other options.
func (s *Server) Restart(o Options) {
	s.t.Helper()
	s.Terminate()
	s.StartAs(o)
	s.WaitReady()
}

// StartAs starts the server, which does not run, with other options.
func (s *Server) StartAs(o Options) {
	s.t.Helper()
	s.options, s.program = o, o.program(s.t)
	s.Start()
}

// Get asks the server for a path as the administrator.
func (s *APIServer) Get(ctx context.Context, path string) (status int, body string, err error) {
	return testbed.Get(ctx, s.Config(), path, nil)
}

// WaitReady waits until the server is ready and returns how long that took. The test fails if the server ends before
// that.
func (s *APIServer) WaitReady() time.Duration {
	s.t.Helper()
	began := time.Now()
	if err := s.AwaitReady(context.Background(), readyTimeout); err != nil {
		s.t.Fatal(err)
	}
	return time.Since(began)
}

// WaitUnready waits until the server says that it is not ready, or does not answer.
func (s *APIServer) WaitUnready(timeout time.Duration) time.Duration {
	s.t.Helper()
	return Eventually(s.t, timeout, s.Name+" becomes unready", func(ctx context.Context) error {
		if s.Ready(ctx) == nil {
			return errors.New("it is still ready")
		}
		return nil
	})
}

// ID returns the ID under which the server has registered last.
func (s *Server) ID() (agree.ServerID, bool) {
	ids := s.IDs()
	if len(ids) == 0 {
		return "", false
	}
	return ids[len(ids)-1], true
}

// FreePort returns a port on which nobody listens, a different one each time.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := process.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// FreeAddress returns an address on which nobody listens, a different one each time.
func FreeAddress(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("127.0.0.1:%d", FreePort(t))
}
