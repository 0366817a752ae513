package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/concord-dev/concord/embedded"
)

// memberVariable makes the test binary run the etcd member that it describes.
const memberVariable = "CONCORD_E2E_ETCD_MEMBER"

// member is one of several etcds that replicate each other.
type member struct {
	Name, Dir    string
	Client, Peer string // URLs
	Initial      string // all members, as etcd's --initial-cluster
}

// NewReplicated starts an etcd of several members, each a process of its own, and its audit.
func NewReplicated(t testing.TB, members int) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := &Cluster{T: t, Dir: dir, CertDir: filepath.Join(dir, "pki")}
	var initial, endpoints []string
	described := make([]member, members)
	for i := range described {
		m := &described[i]
		m.Name = fmt.Sprintf("etcd%d", i)
		m.Dir = filepath.Join(dir, m.Name)
		if err := os.MkdirAll(m.Dir, 0o700); err != nil {
			t.Fatal(err)
		}
		m.Client, m.Peer = Endpoint(t, m.Dir), fmt.Sprintf("http://127.0.0.1:%d", FreePort(t))
		initial, endpoints = append(initial, m.Name+"="+m.Peer), append(endpoints, m.Client)
	}
	for _, m := range described {
		m.Initial = strings.Join(initial, ",")
		c.Members = append(c.Members, startMember(t, m, dir))
	}
	for _, e := range c.Members {
		e.WaitReady()
	}
	c.Endpoint, c.Raw = strings.Join(endpoints, ","), Connect(t, endpoints...)
	c.watch()
	return c
}

func startMember(t testing.TB, m member, logDir string) *Etcd {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	description, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	p := NewProcess(t, m.Name, logDir, func() *exec.Cmd {
		cmd := exec.Command(program)
		cmd.Env = append(os.Environ(), memberVariable+"="+string(description))
		return cmd
	})
	e := &Etcd{Process: p, Endpoint: m.Client}
	p.Start()
	e.Raw = Connect(t, e.Endpoint)
	return e
}

// Leader waits until the replicated etcd has a leader other than these and returns its
// place in Members.
func (c *Cluster) Leader(but ...*Etcd) (leader int) {
	c.T.Helper()
	Eventually(c.T, etcdStartTimeout, "etcd has a leader", func(ctx context.Context) error {
		var errs []error
		for i, e := range c.Members {
			if e.Ended() || slices.Contains(but, e) {
				continue
			}
			asking, cancel := context.WithTimeout(ctx, leaderTimeout)
			status, err := e.Raw.Status(asking, e.Endpoint)
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				leader = i
				return nil
			}
			errs = append(errs, err)
		}
		return fmt.Errorf("no member is it: %w", errors.Join(errs...))
	})
	return leader
}

// MoveLeader has the leader hand over to another member.
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

func runMember(description string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var m member
	if err := json.Unmarshal([]byte(description), &m); err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.InitialCluster = m.Name, filepath.Join(m.Dir, "etcd"), m.Initial
	for _, u := range []struct {
		text string
		into []*[]url.URL
	}{
		{m.Client, []*[]url.URL{&cfg.ListenClientUrls, &cfg.AdvertiseClientUrls}},
		{m.Peer, []*[]url.URL{&cfg.ListenPeerUrls, &cfg.AdvertisePeerUrls}},
	} {
		parsed, err := url.Parse(u.text)
		if err != nil {
			return err
		}
		for _, list := range u.into {
			*list = []url.URL{*parsed}
		}
	}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(embedded.EtcdLogger())
	// A killed one has left its socket behind.
	if err := os.Remove(strings.TrimPrefix(m.Client, "unix://")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer etcd.Close()
	fmt.Println("serving on", m.Client)
	select {
	case <-ctx.Done():
		return nil
	case err := <-etcd.Err():
		return err
	}
}
