package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// seats are flags that limit the requests served at once to what two cores can do, as concord server
// does by default; the defaults of kube-apiserver are 400 and 200 on any machine. A request then
// shares the cores with fewer others.
var seats = []string{"--max-requests-inflight=16", "--max-mutating-requests-inflight=8"}

// bound gives ordinary users, as priority and fairness sees them, 4 of the 24 seats, two of their level's own and two
// that it borrows, and each user one queue in place of six: of a flood fewer requests are served, and only
// the next one of each user waits in front of another user's. Without the annotation the server takes the change back.
const bound = `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"false"}},
"spec":{"limited":{"borrowingLimitPercent":100,"limitResponse":{"queuing":{"handSize":1}}}}}`

// unbound is as Kubernetes has it.
const unbound = `{"metadata":{"annotations":{"apf.kubernetes.io/autoupdate-spec":"true"}},
"spec":{"limited":{"borrowingLimitPercent":null,"limitResponse":{"queuing":{"handSize":6}}}}}`

// floods are the settings with which a server is flooded.
var floods = []struct {
	setting     string // as the figures name it
	flags       []string
	environment []string
	level       string // a merge patch of PriorityLevelConfiguration global-default
}{
	{"", nil, nil, unbound},
	{", 24 requests served at once", seats, nil, unbound},
	{", 24 requests served at once, 4 of them for ordinary users, each in one queue, GOGC=400", seats, []string{"GOGC=400"}, bound},
}

// overload measures how much longer a client with normal needs waits while another user floods the
// server. The process of the flood runs only while no other process wants the processor, because real
// clients run on machines of their own.
//
// A round takes three minutes, so at most two rounds are measured.
func (b *bench) overload(ctx context.Context, s *side, round int) error {
	if round >= 2 {
		return nil
	}
	if err := b.normalClient(ctx, s, normal); err != nil {
		return err
	}
	for _, flood := range floods {
		if err := s.emptied(ctx, flood.environment, flood.flags...); err != nil {
			return err
		}
		if err := s.limit(ctx, flood.level); err != nil {
			return err
		}
		if err := load.Pause(ctx, b.settle); err != nil {
			return err
		}
		if err := b.flooded(ctx, s, flood.setting); err != nil {
			return err
		}
	}
	if err := s.limit(ctx, unbound); err != nil {
		return err
	}
	return s.emptied(ctx, nil)
}

// limit changes the priority level of ordinary users.
func (s *side) limit(ctx context.Context, patch string) error {
	_, err := s.admin.Do(ctx, "PATCH", ordinary, "application/merge-patch+json", []byte(patch))
	return err
}

// emptied starts the server anew without the ConfigMaps that it had: with those of a flood in its watch cache
// the next flood would meet a garbage collector that has more to mark.
func (s *side) emptied(ctx context.Context, environment []string, flags ...string) error {
	if err := s.stop(ctx); err != nil {
		return err
	}
	if _, err := s.Raw.Delete(ctx, "/registry/configmaps/", clientv3.WithPrefix()); err != nil {
		return fmt.Errorf("delete ConfigMaps: %w", err)
	}
	s.environment = environment
	return s.begin(ctx, flags...)
}

// flooded measures the normal client while the flood lasts, how much of the flood is refused, and the server's memory.
func (b *bench) flooded(ctx context.Context, s *side, setting string) error {
	p, err := process.Start(flooding, process.Self(flooding, s.server.URL()), s.Path("flood.log"))
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
	err = b.normalClient(ctx, s, pressed+setting)
	served, refusals, failed := counts(p)
	memory, unread := s.memory()
	if err := errors.Join(err, failed, unread, p.Kill()); err != nil {
		return err
	}
	b.add(s, refused+setting, 100*refusals/(served+refusals))
	b.add(s, flooded+setting, memory)
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
	ordinary = "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations/global-default"

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
	if err := onlyIdle(); err != nil {
		return err
	}
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
