package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// side is one of the two servers with its etcd.
type side struct {
	role, dir    string
	etcd, server *process.Process
	etcdPort     int
	base         string
	http         *http.Client
}

// newSide starts the etcd of a server.
func newSide(ctx context.Context, dir, role string) (*side, error) {
	s := &side{role: role, dir: filepath.Join(dir, role), http: &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // a certificate that the server made for this run
		MaxIdleConns:    256, MaxIdleConnsPerHost: 256, ForceAttemptHTTP2: false,
	}}}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, err
	}
	if err := cluster.WriteFiles(s.dir, cluster.Admin, "flood,flood,2", "normal,normal,3"); err != nil {
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
	if s.etcd, err = s.run(etcd, cluster.EtcdFlags(s.path("etcd"), client, peer)...); err != nil {
		return nil, err
	}
	return s, await(ctx, s.etcd, func(ctx context.Context) error { return s.ask(ctx, client+"/health") })
}

func (s *side) path(name string) string { return filepath.Join(s.dir, name) }

// run starts this program in a role.
func (s *side) run(role string, args ...string) (*process.Process, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	return process.Start(s.role+" "+role, cmd, s.path(role+".log"))
}

// start starts the server, and returns how long it took to become ready.
func (s *side) start(ctx context.Context, flags ...string) (time.Duration, error) {
	port, err := process.FreePort()
	if err != nil {
		return 0, err
	}
	s.base = cluster.LoopbackURL(port)
	flags = append(flags, cluster.Flags(s.dir, port, "--etcd-servers=http://127.0.0.1:"+strconv.Itoa(s.etcdPort))...)
	begin := time.Now()
	if s.server, err = s.run(s.role, flags...); err != nil {
		return 0, err
	}
	err = await(ctx, s.server, func(ctx context.Context) error { return s.ask(ctx, s.base+"/readyz") })
	return time.Since(begin), err
}

// begin starts the server and does not say how long that took.
func (s *side) begin(ctx context.Context, flags ...string) error {
	_, err := s.start(ctx, flags...)
	return err
}

func (s *side) stop(ctx context.Context) error {
	s.http.CloseIdleConnections()
	return s.server.Terminate(ctx, time.Minute)
}

func (s *side) close() error {
	var errs []error
	for _, p := range []*process.Process{s.server, s.etcd} {
		if p != nil {
			errs = append(errs, p.Kill())
		}
	}
	return errors.Join(errs...)
}

// await looks every 20 ms until look returns nil, for at most two minutes.
func await(ctx context.Context, p *process.Process, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return p.Await(ctx, 20*time.Millisecond, look)
}

func (s *side) ask(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	_, err = s.send(request, "admin")
	return err
}

// do sends a request as the administrator; any answer but 2xx is an error.
func (s *side) do(ctx context.Context, method, path, body string) ([]byte, error) {
	return s.as(ctx, "admin", method, path, body)
}

// as sends a request with a user's token.
func (s *side) as(ctx context.Context, token, method, path, body string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, s.base+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return s.send(request, token)
}

func (s *side) send(request *http.Request, token string) ([]byte, error) {
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := s.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s of %s: %d: %s", request.Method, request.URL.Path, request.URL.Host, response.StatusCode, answer)
	}
	return answer, err
}

// memory is the server's resident memory in MiB.
func (s *side) memory() (float64, error) {
	bytes, err := s.server.Resident()
	return float64(bytes) / (1 << 20), err
}

func (s *side) proc(name string) string {
	return filepath.Join("/proc", strconv.Itoa(s.server.PID()), name)
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
