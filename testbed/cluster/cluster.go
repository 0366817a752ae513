// Package cluster runs an etcd and API servers on this host, each as a process of its own; the etcd may also run
// in this process or in a server. Callers decide whether the end of such a process is a failure.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/testbed/process"
)

// Cluster is an etcd and the servers on it.
type Cluster struct {
	// Dir is the directory of all files, CertDir that of the certificates, which all servers share.
	Dir, CertDir string
	// Endpoint is the address of etcd, or the addresses of its members, comma-separated; Raw is a client of it.
	Endpoint string
	Raw      *clientv3.Client
	// Embedded is the etcd if it is in this process.
	Embedded *embedded.Etcd
	// Members are the processes of etcd, if it runs in its own; none if a server embeds it, or if something else
	// than this Cluster has started it.
	Members []*Etcd
	// Servers are in the order in which they were added.
	Servers []*Server

	beside []*process.Process
}

// Etcd is an etcd in a process of its own.
type Etcd struct {
	*process.Program
	Endpoint string
	// Raw is a client of this etcd, past all API servers.
	Raw *clientv3.Client
}

// New returns a cluster in a temporary directory, in which nothing runs yet. It has to be closed.
func New(name string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return nil, fmt.Errorf("temporary directory (set TMPDIR to one that can be written): %w", err)
	}
	return In(dir), nil
}

// In returns a cluster in a directory, in which nothing runs yet.
func In(dir string) *Cluster { return &Cluster{Dir: dir, CertDir: filepath.Join(dir, "pki")} }

// Path returns the path of a file in the cluster's directory.
func (c *Cluster) Path(name string) string { return filepath.Join(c.Dir, name) }

// Connect sets the addresses of etcd and makes the client Raw. The etcd need not run yet.
func (c *Cluster) Connect(endpoints ...string) (err error) {
	c.Endpoint = strings.Join(endpoints, ",")
	c.Raw, err = Connect(nil, endpoints...)
	return err
}

// EmbedEtcd runs the etcd in this process.
func (c *Cluster) EmbedEtcd(ctx context.Context) (err error) {
	if c.Embedded, err = embedded.StartEtcd(ctx, c.Path("etcd")); err != nil {
		return err
	}
	return c.Connect(c.Embedded.Endpoint)
}

// etcdLimit is how long an etcd may take to start.
const etcdLimit = time.Minute

// StartEtcd runs etcd as a process of its own: this same program, which has to call ServeEtcd at its start.
func (c *Cluster) StartEtcd(ctx context.Context, environment ...string) error {
	e, err := NewEtcd("etcd", c.Path("etcd"), c.Path("etcd.log"), environment...)
	if err != nil {
		return err
	}
	if err := e.Start(); err != nil {
		return err
	}
	c.Members, c.Endpoint, c.Raw = []*Etcd{e}, e.Endpoint, e.Raw
	return e.Await(ctx)
}

// NewEtcd returns an etcd on a directory, as StartEtcd starts it.
func NewEtcd(name, dir, log string, environment ...string) (*Etcd, error) {
	e := &Etcd{Program: &process.Program{Name: name, Log: log, Command: func() (*exec.Cmd, error) {
		cmd := process.Self(embeddedEtcd, dir)
		cmd.Env = append(cmd.Env, environment...)
		return cmd, nil
	}}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	if e.Endpoint, err = Endpoint(dir); err != nil {
		return nil, err
	}
	e.Raw, err = Connect(nil, e.Endpoint)
	return e, err
}

// Await waits until the etcd answers.
func (e *Etcd) Await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
	defer cancel()
	return e.Run().Await(ctx, readyPoll, func(ctx context.Context) error {
		// etcd's client would complain as long as etcd has not made its socket.
		if _, err := os.Stat(strings.TrimPrefix(e.Endpoint, "unix://")); err != nil {
			return err
		}
		return Answers(ctx, e.Raw)
	})
}

// Add adds a server to the cluster, but does not start it. Names are unique. command makes the command line of
// each run.
func (c *Cluster) Add(name string, command func(*Server) (*exec.Cmd, error)) (*Server, error) {
	port, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	s := &Server{Port: port, Dir: c.Path(name), CertDir: c.CertDir, Etcd: c.Endpoint}
	s.Program = &process.Program{Name: name, Log: c.Path(name + ".log"), Command: func() (*exec.Cmd, error) { return command(s) }}
	c.Servers = append(c.Servers, s)
	return s, nil
}

// Beside starts another program of the cluster, for example a webhook or a client. It ends with the cluster.
func (c *Cluster) Beside(name string, cmd *exec.Cmd) (*process.Process, error) {
	p, err := process.Start(name, cmd, c.Path(name+".log"))
	if err == nil {
		c.beside = append(c.beside, p)
	}
	return p, err
}

// Runs returns the current or last process of every program that was started.
func (c *Cluster) Runs() []*process.Process {
	all := slices.Clone(c.beside)
	for _, s := range c.Servers {
		all = append(all, s.Run())
	}
	for _, e := range c.Members {
		all = append(all, e.Run())
	}
	return slices.DeleteFunc(all, func(p *process.Process) bool { return p == nil })
}

// Stop kills all processes and keeps the files.
func (c *Cluster) Stop() error {
	var errs []error
	if c.Raw != nil {
		errs = append(errs, c.Raw.Close())
	}
	for _, p := range c.Runs() {
		errs = append(errs, p.Kill())
	}
	if c.Embedded != nil {
		errs = append(errs, c.Embedded.Close())
	}
	return errors.Join(append(errs, removeSocket(c.Endpoint, c.Dir))...)
}

// Close kills all processes and removes every file.
func (c *Cluster) Close() error { return errors.Join(c.Stop(), os.RemoveAll(c.Dir)) }
