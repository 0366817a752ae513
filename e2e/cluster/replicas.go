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

	clientv3 "go.etcd.io/etcd/client/v3"
	certutil "k8s.io/client-go/util/cert"

	testbed "github.com/concord-dev/concord/testbed/cluster"
	"github.com/concord-dev/concord/testbed/process"
)

// NewReplicated starts an etcd of several members, each a process of its own, and its audit.
func NewReplicated(t testing.TB, members int) *Cluster {
	t.Helper()
	c := newCluster(t)
	var clients, peers []string
	for i := range members {
		dir := c.Path(memberName(i))
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		clients, peers = append(clients, Endpoint(t, dir)), append(peers, "http://"+FreeAddress(t))
	}
	c.Members = startMembers(t, c.Dir, clients, peers, nil)
	for _, e := range c.Members {
		e.WaitReady()
	}
	c.connect(clients...)
	return c
}

func memberName(i int) string { return fmt.Sprint("etcd", i) }

// startMembers starts an etcd whose members have these URLs for clients and peers, and further flags. Their files are in
// dir. trusting is for clients of an etcd with TLS.
func startMembers(t testing.TB, dir string, clients, peers []string, trusting *tls.Config, flags ...string) (members []*Etcd) {
	t.Helper()
	var initial []string
	for i, peer := range peers {
		initial = append(initial, memberName(i)+"="+peer)
	}
	for i, client := range clients {
		name := memberName(i)
		own := slices.Concat(testbed.EtcdFlags(filepath.Join(dir, name, "etcd"), client, peers[i]),
			[]string{"--name=" + name, "--initial-cluster=" + strings.Join(initial, ","), noFsync}, flags)
		program := &process.Program{Name: name, Log: filepath.Join(dir, name+".log"), Command: func() (*exec.Cmd, error) {
			// A member that was killed has left its socket behind.
			if err := os.Remove(strings.TrimPrefix(client, "unix://")); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, err
			}
			return process.Self(EtcdProgram, own...), nil
		}}
		e := &Etcd{Process: adopt(t, program), Etcd: &testbed.Etcd{Program: program, Endpoint: client, Raw: connect(t, trusting, client)}}
		e.Start()
		members = append(members, e)
	}
	return members
}

// Leader waits until the replicated etcd has a leader that is not one of these members, and
// returns its index in Members.
func (c *Cluster) Leader(but ...*Etcd) int {
	c.T.Helper()
	return leaderOf(c.T, c.Members, but...)
}

func leaderOf(t testing.TB, members []*Etcd, but ...*Etcd) (leader int) {
	t.Helper()
	Eventually(t, etcdStartTimeout, "etcd has a leader", func(ctx context.Context) error {
		var errs []error
		for i, e := range members {
			if e.Ended() || slices.Contains(but, e) {
				continue
			}
			leads, err := e.leads(ctx)
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

// leads asks a member of an etcd whether it leads the others.
func (e *Etcd) leads(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, leaderTimeout)
	defer cancel()
	status, err := e.Raw.Status(ctx, e.Endpoint)
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
	members []*Etcd
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
	pool, err := certutil.NewPool(cert)
	if err != nil {
		t.Fatal(err)
	}
	var clients, peers []string
	for range 3 {
		clients, peers = append(clients, "https://"+FreeAddress(t)), append(peers, "https://"+FreeAddress(t))
	}
	trusting := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	e := &ReplicatedEtcd{t: t, Flags: []string{"--etcd-servers=" + strings.Join(clients, ","), "--etcd-cafile=" + cert}}
	e.members = startMembers(t, dir, clients, peers, trusting, "--cert-file="+cert, "--key-file="+private, "--peer-auto-tls")
	e.Raw = connect(t, trusting, clients...)
	Eventually(t, etcdStartTimeout, "etcd answers", func(ctx context.Context) error { return testbed.Answers(ctx, e.Raw) })
	return e
}

// KillLeader kills the member that leads the others, and so has them elect another one.
func (e *ReplicatedEtcd) KillLeader() {
	e.t.Helper()
	e.members[leaderOf(e.t, e.members)].Kill()
}
