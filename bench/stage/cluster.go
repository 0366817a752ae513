package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	etcdStartLimit = 30 * time.Second
	etcdPoll       = 20 * time.Millisecond
)

// Cluster is an etcd and the servers on it.
type Cluster struct {
	// Servers are in the order in which they were made.
	Servers []*Server
	// Raw is a client of the etcd.
	Raw *clientv3.Client

	stage    *Stage
	name     string
	endpoint string
	etcd     *process.Process
}

// Cluster starts an etcd, of a name that no other cluster of the stage has, and makes
// servers for it that are not started yet.
func (s *Stage) Cluster(ctx context.Context, name string, servers int) (*Cluster, error) {
	c := &Cluster{stage: s, name: name}
	s.mu.Lock()
	s.clusters[c] = true
	s.mu.Unlock()
	if err := c.startEtcd(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	for i := range servers {
		port, err := process.FreePort()
		if err != nil {
			return nil, errors.Join(err, c.Close())
		}
		c.Servers = append(c.Servers, &Server{cluster: c, name: fmt.Sprintf("%s-%d", name, i+1), port: port})
	}
	return c, nil
}

func (c *Cluster) path(names ...string) string {
	return c.stage.path(append([]string{c.name}, names...)...)
}

func (c *Cluster) startEtcd(ctx context.Context) error {
	dir := c.path("etcd")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("directory of the etcd: %w", err)
	}
	socket, err := embedded.SocketPath(dir)
	if err != nil {
		return err
	}
	c.endpoint = "unix://" + socket
	c.etcd, err = process.Start("the etcd of "+c.name, exec.Command(c.stage.program, etcdArgument, dir), c.path("etcd.log"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, etcdStartLimit)
	defer cancel()
	// A client that finds no socket complains.
	err = c.etcd.Await(ctx, etcdPoll, func(context.Context) error {
		_, err := os.Stat(socket)
		return err
	})
	if err != nil {
		return err
	}
	c.Raw, err = clientv3.New(clientv3.Config{Endpoints: []string{c.endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return fmt.Errorf("connect to the etcd: %w", err)
	}
	return c.etcd.Await(ctx, etcdPoll, func(ctx context.Context) error {
		_, err := c.Raw.Get(ctx, "health")
		return err
	})
}

// Start starts all servers at once and waits until they are ready.
func (c *Cluster) Start(ctx context.Context, args ...string) error {
	for _, s := range c.Servers {
		if err := s.Start(args...); err != nil {
			return err
		}
	}
	for _, s := range c.Servers {
		if err := s.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Compact has the etcd forget the earlier revisions of values, and waits until it has. API servers do
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

// Close kills the running processes and removes the cluster's files.
func (c *Cluster) Close() error {
	var errs []error
	for _, s := range c.Servers {
		errs = append(errs, s.kill())
	}
	if c.Raw != nil {
		errs = append(errs, c.Raw.Close())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.Kill())
		if socket := strings.TrimPrefix(c.endpoint, "unix://"); !strings.HasPrefix(socket, c.stage.dir) {
			errs = append(errs, os.RemoveAll(filepath.Dir(socket)))
		}
	}
	c.stage.mu.Lock()
	delete(c.stage.clusters, c)
	c.stage.mu.Unlock()
	return errors.Join(append(errs, os.RemoveAll(c.path()))...)
}
