package stage

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	startLimit  = 5 * time.Minute
	dialTimeout = 10 * time.Second
	// etcdGarbage lets the heap of an etcd grow by 300 % of its live objects between two collections
	// of garbage, unless the environment sets GOGC. With Go's default of 100 % an etcd with a million
	// keys spends a tenth of two processors on marking its index, whichever client writes; that would
	// look like a cost of migrations that grows with the number of objects.
	etcdGarbage = "GOGC=300"
)

// Cluster is an etcd and the servers on it.
type Cluster struct {
	*cluster.Cluster
	// Servers are in the order in which they were made.
	Servers []*Server
}

// Server is one API server. It keeps its name and port when it is started again.
type Server struct {
	*cluster.Server
	cluster *Cluster
	args    []string
	// stock says that it is Kubernetes' own server, which may have migrators beside it.
	stock bool
}

// New starts an etcd and makes servers for it that are not started yet. It has to be closed.
func New(ctx context.Context, name string, servers int) (*Cluster, error) {
	at, err := cluster.New("concord-bench-" + name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Cluster: at}
	var environment []string
	if os.Getenv("GOGC") == "" {
		environment = []string{etcdGarbage}
	}
	err = c.StartEtcd(ctx, environment...)
	for i := 0; i < servers && err == nil; i++ {
		s := &Server{cluster: c}
		s.Server, err = c.Add(fmt.Sprintf("%s-%d", name, i+1), func(*cluster.Server) (*exec.Cmd, error) { return s.command() })
		c.Servers = append(c.Servers, s)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (s *Server) command() (*exec.Cmd, error) {
	if s.stock {
		return s.stockCommand()
	}
	return process.Self(serverRole, s.Args(s.args...)[1:]...), nil
}

// Start starts all servers at once and waits until they are ready.
func (c *Cluster) Start(ctx context.Context, args ...string) error {
	for _, s := range c.Servers {
		s.args = args
		if err := s.Start(); err != nil {
			return err
		}
	}
	for _, s := range c.Servers {
		if err := s.AwaitReady(ctx, startLimit); err != nil {
			return err
		}
	}
	return nil
}

// Compact makes etcd forget the earlier revisions of values, and waits until it has. API servers do
// so every few minutes.
func (c *Cluster) Compact(ctx context.Context) error {
	newest, err := c.Raw.Get(ctx, "health")
	if err != nil {
		return fmt.Errorf("read the newest revision: %w", err)
	}
	if _, err := c.Raw.Compact(ctx, newest.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

// Config is the administrator's access to the server, without a client-side rate limit, over
// connections that no other client shares.
func (s *Server) Config() (*rest.Config, error) {
	config, err := s.Access()
	if err != nil {
		return nil, err
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
	client, err := cluster.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &Client{client}, nil
}
