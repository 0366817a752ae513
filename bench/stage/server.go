package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/process"
)

const (
	startLimit = 5 * time.Minute
	// calmPoll is the time between two looks where nothing is timed.
	calmPoll    = 100 * time.Millisecond
	dialTimeout = 10 * time.Second
)

// Server is one API server. It keeps its name and port when it is started again.
type Server struct {
	Program
	cluster *Cluster
	port    int
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
	s.process, err = process.Start(s.name, cmd, s.cluster.path(s.name+".log"))
	return err
}

// Started is when the process was started.
func (s *Server) Started() time.Time { return s.process.Started() }

// AwaitReady asks /readyz again and again until it says ok, and returns when that was.
func (s *Server) AwaitReady(ctx context.Context, every time.Duration) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var c *Client
	err := await(ctx, s.process, every, func(ctx context.Context) error {
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
	at := time.Now()
	if c != nil {
		c.Close()
	}
	return at, err
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

// stopLimit bounds how long a process may take to end after SIGTERM: a server drains.
const stopLimit = 60 * time.Second

// Kill ends the server at once, if it runs, and returns when it was told to.
func (s *Server) Kill() time.Time {
	at := time.Now()
	for _, p := range append(s.beside, s.process) {
		if p != nil {
			_ = p.Kill() // it fails only for a process that has ended
		}
	}
	return at
}

var (
	registered = regexp.MustCompile(`"Registered".* server="(apiserver-[^"]+)"`)
	elected    = regexp.MustCompile(`"Successfully acquired lease".*concord-controllers"`)
)

// ID returns the identity under which the running process has last registered.
func (s *Server) ID() (agree.ServerID, error) {
	output, err := s.process.Output()
	if err != nil {
		return "", err
	}
	all := registered.FindAllStringSubmatch(output, -1)
	if len(all) == 0 {
		return "", errors.New(s.name + " has not registered")
	}
	return agree.ServerID(all[len(all)-1][1]), nil
}

// Elected says whether the running process was elected to run the controllers. It may
// have lost that office since.
func (s *Server) Elected() (bool, error) {
	output, err := s.process.Output()
	return elected.MatchString(output), err
}
