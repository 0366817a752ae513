package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/pki"
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
	*process.Process // nil before the first start
	name             string
	cluster          *Cluster
	port             int
	// stock says that it is Kubernetes' own, which may have migrators beside it.
	stock  bool
	beside []*process.Process
}

// Name is unique on the stage.
func (s *Server) Name() string { return s.name }

// Start starts the process. It does not wait until the server is ready.
func (s *Server) Start(args ...string) error {
	all := append([]string{
		serverArgument,
		"--data-dir", s.cluster.path(s.name),
		"--cert-dir", s.cluster.path("pki"),
		"--etcd-servers", s.cluster.endpoint,
		"--secure-port", strconv.Itoa(s.port),
	}, args...)
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
	err := s.Await(ctx, calmPoll, func(ctx context.Context) error {
		var err error
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
	host := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	config := stockConfig(host)
	if !s.stock {
		var err error
		if config, err = clientcmd.BuildConfigFromFlags("", s.cluster.path("pki", pki.AdminKubeconfigName)); err != nil {
			return nil, fmt.Errorf("administrator's kubeconfig: %w", err)
		}
	}
	config.Host = host
	config.QPS = -1
	config.Dial = (&net.Dialer{Timeout: dialTimeout}).DialContext
	return config, nil
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
