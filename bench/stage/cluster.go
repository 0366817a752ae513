package stage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/testbed/controlplane"
	"github.com/concord-dev/concord/testbed/process"
)

const (
	etcdStartLimit = 30 * time.Second
	etcdPoll       = 20 * time.Millisecond
	// etcdGarbage lets an etcd's heap grow by 300 % of its live objects between two collections of
	// garbage, unless GOGC says it. With Go's own 100 an etcd of a million keys spends a tenth of two
	// processors on marking its index, no matter which client writes to it: the cost that grows with
	// the objects would be that.
	etcdGarbage = "GOGC=300"
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
		name := fmt.Sprintf("%s-%d", name, i+1)
		c.Servers = append(c.Servers, &Server{cluster: c, name: name, Server: controlplane.Server{
			Port: port, Dir: c.path(name), CertDir: c.path("pki"), Etcd: c.endpoint,
		}})
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
	var err error
	if c.endpoint, err = controlplane.Endpoint(dir); err != nil {
		return err
	}
	cmd, err := controlplane.EtcdCommand(dir)
	if err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		cmd.Env = append(cmd.Env, etcdGarbage)
	}
	if c.etcd, err = process.Start("the etcd of "+c.name, cmd, c.path("etcd.log")); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, etcdStartLimit)
	defer cancel()
	// A client that finds no socket complains.
	err = c.etcd.Await(ctx, etcdPoll, func(context.Context) error {
		_, err := os.Stat(strings.TrimPrefix(c.endpoint, "unix://"))
		return err
	})
	if err != nil {
		return err
	}
	if c.Raw, err = controlplane.Connect(c.endpoint); err != nil {
		return err
	}
	return c.etcd.Await(ctx, etcdPoll, func(ctx context.Context) error { return controlplane.Answers(ctx, c.Raw) })
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
		errs = append(errs, c.etcd.Kill(), controlplane.RemoveSocket(c.endpoint, c.stage.dir))
	}
	c.stage.mu.Lock()
	delete(c.stage.clusters, c)
	c.stage.mu.Unlock()
	return errors.Join(append(errs, os.RemoveAll(c.path()))...)
}
