package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/concord-dev/concord/testbed/load"
	"github.com/concord-dev/concord/testbed/process"
)

// crowd is how many clients make the flood, each with a connection of its own.
const crowd = 600

// overloadAll measures both sides on new servers: with 1,000 CRDs every collection of garbage would be longer.
func (b *bench) overloadAll(ctx context.Context) error {
	if err := b.anew(ctx); err != nil {
		return err
	}
	for _, s := range b.sides {
		if err := s.permit(ctx); err != nil {
			return err
		}
	}
	if err := load.Pause(ctx, b.settle); err != nil {
		return err
	}
	return b.turns(ctx, "overload", b.overload)
}

// overload measures how much longer a client with normal needs waits while another user floods the
// server. The process of the flood runs only while no other process wants the processor, because real
// clients run on machines of their own.
//
// A round takes two minutes of each side, so at most three rounds are measured.
func (b *bench) overload(ctx context.Context, s *side, round int) error {
	if round >= 3 {
		return nil
	}
	if err := b.normalClient(ctx, s, normal); err != nil {
		return err
	}
	if err := s.emptied(ctx); err != nil {
		return err
	}
	if err := load.Pause(ctx, b.settle); err != nil {
		return err
	}
	if err := b.flooded(ctx, s); err != nil {
		return err
	}
	return s.emptied(ctx)
}

// emptied starts the server anew without the ConfigMaps that it had: with those of a flood in its watch cache
// the next flood would meet a garbage collector that has more to mark.
func (s *side) emptied(ctx context.Context) error {
	if err := s.stop(ctx); err != nil {
		return err
	}
	if _, err := s.Raw.Delete(ctx, "/registry/configmaps/", clientv3.WithPrefix()); err != nil {
		return fmt.Errorf("delete ConfigMaps: %w", err)
	}
	return s.begin(ctx)
}

// flooded measures the normal client while the flood lasts, how much of the flood is refused, and the server's memory.
func (b *bench) flooded(ctx context.Context, s *side) error {
	flood := process.Self(flooding, s.server.URL())
	idle := exec.Command("chrt", append([]string{"--idle", "0", flood.Path}, flood.Args[1:]...)...) // of util-linux
	idle.Env = flood.Env
	p, err := process.Start(flooding, idle, s.Path("flood.log"))
	if err != nil {
		return err
	}
	// The flood says how many requests were served and refused, once a second.
	if err := await(ctx, p, func(context.Context) error {
		_, refused, err := counts(p)
		if err == nil && refused == 0 {
			err = fmt.Errorf("nothing of the flood was refused yet")
		}
		return err
	}); err != nil {
		return fmt.Errorf("flood: %w", errors.Join(err, p.Kill()))
	}
	err = b.normalClient(ctx, s, pressed)
	served, refusals, failed := counts(p)
	memory, unread := s.memory()
	if err := errors.Join(err, failed, unread, p.Kill()); err != nil {
		return err
	}
	b.add(s, refused, 100*refusals/(served+refusals))
	b.add(s, flooded, memory)
	return nil
}

// normalClient creates ten ConfigMaps a second, in all as many as writes of each kind are timed in a
// round. The latency counts from when a request was due, also if the one before has no answer yet.
func (b *bench) normalClient(ctx context.Context, s *side, figure string) error {
	const rate = 10
	begin, first := time.Now(), b.created
	b.created += b.writes
	all := load.Open(ctx, rate, b.writes, func(n int) error {
		name := fmt.Sprintf("o%d", first+n+1)
		// A connection that the server closes is no answer: the client asks again.
		return await(ctx, s.server.Run(), func(ctx context.Context) error {
			_, err := s.normal.Do(ctx, "POST", kinds[0].path, "application/json", []byte(kinds[0].body(name, "", 1)))
			return err
		})
	})
	b.pool(s, figure, all.Took(begin, time.Now()))
	return errors.Join(all.Err(), ctx.Err())
}

const (
	rbac = "/apis/rbac.authorization.k8s.io/v1"
	// Kubernetes' role edit is empty without the controller that aggregates ClusterRoles.
	role    = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"overload"},"rules":[{"apiGroups":[""],"resources":["configmaps"],"verbs":["list","create"]}]}`
	binding = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"overload"},
"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"overload"},
"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"flood"},{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"normal"}]}`
)

// permit lets the users flood and normal list and create ConfigMaps, and waits until the server knows it.
func (s *side) permit(ctx context.Context) error {
	for path, body := range map[string]string{rbac + "/clusterroles": role, rbac + "/clusterrolebindings": binding} {
		if _, err := s.do(ctx, "POST", path, body); err != nil {
			return err
		}
	}
	return await(ctx, s.server.Run(), func(ctx context.Context) error {
		_, err := s.normal.Do(ctx, "GET", kinds[0].path+"?limit=1", "", nil)
		return err
	})
}

// counts reads the last line that the flood wrote: how many of its requests were served and how
// many refused.
func counts(p *process.Process) (served, refused float64, err error) {
	output, err := p.Output()
	if err != nil {
		return 0, 0, err
	}
	lines := strings.Split(strings.TrimSpace(output), "\n")
	_, err = fmt.Sscanf(lines[len(lines)-1], "served %f refused %f", &served, &refused)
	return served, refused, err
}

// runFlood is the process of the flood: it creates ConfigMaps at the server in its argument until it
// is killed. A client that is refused waits for Retry-After, as client-go does; that grows the longer
// a priority level has to refuse requests.
func runFlood(ctx context.Context, args []string) error {
	var served, refused atomic.Int64
	began := time.Now().UnixNano()
	for client := range crowd {
		go func() {
			transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // a certificate that the server made for this run
			for n := 0; ctx.Err() == nil; n++ {
				body := kinds[0].body(fmt.Sprintf("flood-%d-%d-%d", began, client, n), "", 1)
				status, retryAfter := ask(ctx, transport, args[0]+kinds[0].path, body)
				switch status {
				case http.StatusCreated:
					served.Add(1)
				case http.StatusTooManyRequests:
					refused.Add(1)
					_ = load.Pause(ctx, retryAfter)
				default: // the server closes a connection now and then; never ask in a busy loop
					_ = load.Pause(ctx, time.Second)
				}
			}
		}()
	}
	for load.Pause(ctx, time.Second) == nil {
		fmt.Printf("served %d refused %d\n", served.Load(), refused.Load())
	}
	return nil
}

// ask returns the status of the answer, 0 if there is none, and how long to wait before the
// next request of a client that was refused.
func ask(ctx context.Context, transport http.RoundTripper, url, body string) (status int, retryAfter time.Duration) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, 0
	}
	request.Header.Set("Authorization", "Bearer flood")
	request.Header.Set("Content-Type", "application/json")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, 0
	}
	_, _ = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	seconds, err := strconv.Atoi(response.Header.Get("Retry-After"))
	if err != nil {
		seconds = 1
	}
	return response.StatusCode, time.Duration(seconds) * time.Second
}
