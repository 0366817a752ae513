package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// side is one of the two servers that are compared, with its etcd.
type side struct {
	*cluster.Cluster
	role     string
	etcdPort int
	server   *cluster.Server
	// admin and normal are clients over the same connections.
	admin, normal *cluster.Client
}

// newSide starts the etcd of a server as a program of its own, to which servers have TCP
// connections, and makes the server.
func newSide(ctx context.Context, dir, role string) (*side, error) {
	s := &side{Cluster: cluster.In(filepath.Join(dir, role)), role: role}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := cluster.WriteFiles(s.Dir, cluster.Admin, "flood,flood,2", "normal,normal,3"); err != nil {
		return nil, err
	}
	var err error
	if s.etcdPort, err = process.FreePort(); err != nil {
		return nil, err
	}
	peers, err := process.FreePort()
	if err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", s.etcdPort), fmt.Sprintf("http://127.0.0.1:%d", peers)
	if err := s.Connect(client); err != nil {
		return nil, err
	}
	started, err := s.Beside(etcd, process.Self(etcd, cluster.EtcdFlags(s.Path("etcd"), client, peer)...))
	if err != nil {
		return s, err
	}
	if s.server, err = s.Add(role, func(at *cluster.Server) (*exec.Cmd, error) {
		return process.Self(role, cluster.Flags(s.Dir, at.Port, "--etcd-servers="+at.Etcd)...), nil
	}); err != nil {
		return s, err
	}
	connections := &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // a certificate that the server made for this run
		MaxIdleConns:    256, MaxIdleConnsPerHost: 256, ForceAttemptHTTP2: false,
	}
	for token, c := range map[string]**cluster.Client{cluster.AdminToken: &s.admin, "normal": &s.normal} {
		config := &rest.Config{Host: s.server.URL(), BearerToken: token, Timeout: time.Minute, Transport: connections}
		if *c, err = cluster.NewClient(config); err != nil {
			return s, err
		}
	}
	return s, await(ctx, started, func(ctx context.Context) error { return cluster.Answers(ctx, s.Raw) })
}

// start starts the server, and returns how long it took to become ready.
func (s *side) start(ctx context.Context) (time.Duration, error) {
	begin := time.Now()
	if err := s.server.Start(); err != nil {
		return 0, err
	}
	err := s.served(ctx, "/readyz")
	return time.Since(begin), err
}

// begin is start for callers that do not need the time.
func (s *side) begin(ctx context.Context) error {
	_, err := s.start(ctx)
	return err
}

func (s *side) stop(ctx context.Context) error {
	s.admin.Close()
	return s.server.Run().Terminate(ctx, time.Minute)
}

// await calls look every 20 ms until it returns nil, for at most two minutes.
func await(ctx context.Context, p *process.Process, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return p.Await(ctx, 20*time.Millisecond, look)
}

// served waits until the server answers the administrator's GET of the path with 2xx.
func (s *side) served(ctx context.Context, path string) error {
	return await(ctx, s.server.Run(), func(ctx context.Context) error {
		_, err := s.do(ctx, "GET", path, "")
		return err
	})
}

// do sends a request as the administrator; any answer but 2xx is an error.
func (s *side) do(ctx context.Context, method, path, body string) ([]byte, error) {
	return s.admin.Do(ctx, method, path, "application/json", []byte(body))
}

// memory is the server's resident memory in MiB.
func (s *side) memory() (float64, error) {
	bytes, err := s.server.Run().Resident()
	return float64(bytes) / (1 << 20), err
}

func (s *side) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.server.Run().PID()), name)
}

// descriptors counts the server's open files and, among them, the connections to its etcd.
func (s *side) descriptors() (open, connections int, err error) {
	entries, err := os.ReadDir(s.proc("fd"))
	if err != nil {
		return 0, 0, err
	}
	table, err := os.ReadFile(s.proc("net/tcp"))
	if err != nil {
		return 0, 0, err
	}
	remote, toEtcd := fmt.Sprintf(":%04X", s.etcdPort), map[string]bool{}
	for line := range strings.Lines(string(table)) { // sl local remote st queues timer retries uid timeout inode
		if f := strings.Fields(line); len(f) > 9 && strings.HasSuffix(f[2], remote) && f[3] == "01" {
			toEtcd["socket:["+f[9]+"]"] = true
		}
	}
	for _, entry := range entries {
		if target, err := os.Readlink(filepath.Join(s.proc("fd"), entry.Name())); err == nil && toEtcd[target] {
			connections++
		}
	}
	return len(entries), connections, nil
}
