package cluster

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	certutil "k8s.io/client-go/util/cert"

	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// NewReplicated starts an etcd of several members, each a process of its own, and its audit.
func NewReplicated(t testing.TB, members int) *Cluster {
	t.Helper()
	c := newCluster(t)
	var initial, endpoints []string
	described := make([]member, members)
	for i := range described {
		m := member{name: fmt.Sprintf("etcd%d", i), peer: "http://" + FreeAddress(t)}
		m.dir = c.Path(m.name)
		if err := os.MkdirAll(m.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m.client = Endpoint(t, m.dir)
		initial, endpoints, described[i] = append(initial, m.name+"="+m.peer), append(endpoints, m.client), m
	}
	for _, m := range described {
		c.Members = append(c.Members, m.start(t, c.Dir, strings.Join(initial, ",")))
	}
	for _, e := range c.Members {
		e.WaitReady()
	}
	c.connect(endpoints...)
	return c
}

// member is one of several etcds that replicate each other. client and peer are URLs.
type member struct{ name, dir, client, peer string }

func (m member) start(t testing.TB, logDir, initial string) *Etcd {
	t.Helper()
	flags := append(testbed.EtcdFlags(filepath.Join(m.dir, "etcd"), m.client, m.peer), "--name="+m.name, "--initial-cluster="+initial, noFsync)
	program := &process.Program{Name: m.name, Log: filepath.Join(logDir, m.name+".log"), Command: func() (*exec.Cmd, error) {
		// A member that was killed has left its socket behind.
		if err := os.Remove(strings.TrimPrefix(m.client, "unix://")); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		return process.Self(EtcdProgram, flags...), nil
	}}
	e := &Etcd{Process: adopt(t, program), Etcd: &testbed.Etcd{Program: program, Endpoint: m.client, Raw: Connect(t, m.client)}}
	e.Start()
	return e
}

// Leader waits until the replicated etcd has a leader that is not one of these members, and
// returns its index in Members.
func (c *Cluster) Leader(but ...*Etcd) (leader int) {
	c.T.Helper()
	Eventually(c.T, etcdStartTimeout, "etcd has a leader", func(ctx context.Context) error {
		var errs []error
		for i, e := range c.Members {
			if e.Ended() || slices.Contains(but, e) {
				continue
			}
			leads, err := leading(ctx, e.Raw, e.Endpoint)
			if leads {
				leader = i
				return nil
			}
			errs = append(errs, err)
		}
		return fmt.Errorf("no member is it: %w", errors.Join(errs...))
	})
	return leader
}

// leading asks a member of etcd whether it leads the others.
func leading(ctx context.Context, raw *clientv3.Client, endpoint string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	status, err := raw.Status(ctx, endpoint)
	return err == nil && status.Leader == status.Header.MemberId, err
}

// MoveLeader makes the leader hand over to another member.
func (c *Cluster) MoveLeader() {
	c.T.Helper()
	leader := c.Members[c.Leader()]
	Eventually(c.T, etcdStartTimeout, "the leader hands over", func(ctx context.Context) error {
		next := c.Members[(c.Leader()+1)%len(c.Members)]
		status, err := next.Raw.Status(ctx, next.Endpoint)
		if err != nil {
			return err
		}
		_, err = leader.Raw.MoveLeader(ctx, status.Header.MemberId)
		return err
	})
}

// ReplicatedEtcd is an etcd of three members over TLS, each a process of its own.
type ReplicatedEtcd struct {
	// Raw is a client of all members.
	Raw *clientv3.Client
	// Flags are those by which kube-apiservers reach them.
	Flags []string

	t       testing.TB
	members map[string]*Process // by endpoint
}

// StartReplicatedEtcd starts an etcd, with its files in dir, and waits until it answers.
func StartReplicatedEtcd(t testing.TB, dir string) *ReplicatedEtcd {
	t.Helper()
	certificate, key, err := certutil.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	cert, private := filepath.Join(dir, "etcd.crt"), filepath.Join(dir, "etcd.key")
	if err := errors.Join(os.WriteFile(cert, certificate, 0o600), os.WriteFile(private, key, 0o600)); err != nil {
		t.Fatal(err)
	}
	var clients, peers, initial []string
	for i := range 3 {
		clients, peers = append(clients, "https://"+FreeAddress(t)), append(peers, "https://"+FreeAddress(t))
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	e := &ReplicatedEtcd{t: t, members: map[string]*Process{}, Flags: []string{"--etcd-servers=" + strings.Join(clients, ","), "--etcd-cafile=" + cert}}
	for i, client := range clients {
		name := fmt.Sprintf("m%d", i)
		flags := append(testbed.EtcdFlags(filepath.Join(dir, name), client, peers[i]), noFsync, "--name="+name,
			"--initial-cluster="+strings.Join(initial, ","), "--cert-file="+cert, "--key-file="+private, "--peer-auto-tls")
		e.members[client] = NewProcess(t, name, dir, func() *exec.Cmd { return process.Self(EtcdProgram, flags...) })
		e.members[client].Start()
	}
	pool, err := certutil.NewPool(cert)
	if err != nil {
		t.Fatal(err)
	}
	e.Raw, err = clientv3.New(clientv3.Config{
		Endpoints: clients, TLS: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, Logger: zap.NewNop(),
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 3 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	closeLater(t, e.Raw)
	Eventually(t, etcdStartTimeout, "etcd answers", func(ctx context.Context) error { return testbed.Answers(ctx, e.Raw) })
	return e
}

// KillLeader kills the member that leads the others, and so has them elect another one.
func (e *ReplicatedEtcd) KillLeader() {
	e.t.Helper()
	Eventually(e.t, etcdStartTimeout, "etcd has a leader", func(ctx context.Context) error {
		for client, member := range e.members {
			leads, err := leading(ctx, e.Raw, client)
			if err != nil {
				return err
			}
			if leads {
				member.Kill()
				return nil
			}
		}
		return errors.New("no member is it")
	})
}
