package stage

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"time"

	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/testbed/controlplane"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	startLimit = 5 * time.Minute
	// calmPoll is the time between two looks where nothing is timed.
	calmPoll    = 100 * time.Millisecond
	dialTimeout = 10 * time.Second
)

// Server is one API server. It keeps its name and port when it is started again.
type Server struct {
	controlplane.Server
	*process.Process // nil before the first start
	name             string
	cluster          *Cluster
	// stock says that it is Kubernetes' own, which may have migrators beside it.
	stock  bool
	beside []*process.Process
}

// Name is unique on the stage.
func (s *Server) Name() string { return s.name }

// Start starts the process. It does not wait until the server is ready.
func (s *Server) Start(args ...string) error {
	all := s.Args(args...)
	if s.stock {
		var err error
		if all, err = s.stockArgs(); err != nil {
			return err
		}
	}
	cmd := exec.Command(s.cluster.stage.program, all...)
	cmd.Env = os.Environ()
	var err error
	s.Process, err = process.Start(s.name, cmd, s.cluster.path(s.name+".log"))
	return err
}

// awaitReady asks /readyz again and again until it says ok.
func (s *Server) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var c *Client
	err := s.Await(ctx, calmPoll, func(ctx context.Context) (err error) {
		if c == nil {
			// The first server of a cluster makes the certificates.
			if c, err = s.Client(); err != nil {
				return err
			}
		}
		_, err = c.Do(ctx, "GET", "/readyz", "", nil)
		return err
	})
	if c != nil {
		c.Close()
	}
	return err
}

// Config is the administrator's access to the server, without limits, over connections
// that no other client shares.
func (s *Server) Config() (*rest.Config, error) {
	config := controlplane.WithToken(s.URL(), controlplane.AdminToken)
	if !s.stock {
		var err error
		if config, err = s.Access(); err != nil {
			return nil, err
		}
	}
	config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	return config, nil
}

// Client returns a client of the administrator's, with connections of its own.
func (s *Server) Client() (*Client, error) {
	config, err := s.Config()
	if err != nil {
		return nil, err
	}
	client, err := controlplane.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}

// kill ends the server and what is beside it at once.
func (s *Server) kill() error {
	var errs []error
	for _, p := range append(s.beside, s.Process) {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	return errors.Join(errs...)
}
