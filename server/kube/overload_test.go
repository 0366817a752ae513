package kube_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A flood of 600 clients of one user is refused in part, with 429, and does not keep another user
// from working: priority and fairness hold with the protocol's handlers in the chain.
func TestOverload(t *testing.T) {
	skipUnlessSlow(t)
	c := newControl(t)
	c.write("tokens.csv", adminToken+",admin,1,system:masters\nflood,flood,2\nnormal,normal,3\n")
	s := c.ready(ours, "one")
	s.migrated(time.Minute)
	if _, err := s.kube().RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "overload"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"create"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.kube().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "overload"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "overload"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "flood"}, {APIGroup: rbacv1.GroupName, Kind: "User", Name: "normal"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	normal := s.caller("normal")
	eventually(t, 30*time.Second, "the user may write", func(ctx context.Context) error {
		return expect(normal(ctx, "allowed"))
	})
	const requests = 300
	idle := p99(t, normal, "idle", requests)

	ctx, stop := context.WithCancel(t.Context())
	var refused, served atomic.Int64
	var clients sync.WaitGroup
	for i := range 600 {
		call := s.caller("flood")
		clients.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				status, _ := call(ctx, fmt.Sprintf("flood-%d-%d", i, n))
				switch status {
				case http.StatusTooManyRequests: // come back after the second of Retry-After, as client-go does
					refused.Add(1)
					select {
					case <-time.After(time.Second):
					case <-ctx.Done():
					}
				case http.StatusCreated:
					served.Add(1)
				}
			}
		})
	}
	defer clients.Wait()
	defer stop()
	eventually(t, time.Minute, "the flood is refused in part", func(context.Context) error {
		if refused.Load() == 0 || served.Load() == 0 {
			return fmt.Errorf("%d served, %d refused", served.Load(), refused.Load())
		}
		return nil
	})
	busy := p99(t, normal, "busy", requests)
	t.Logf("p99 %v idle, %v beside the flood: ratio %.2f; of the flood %d were served, %d refused", idle, busy, float64(busy)/float64(idle), served.Load(), refused.Load())
	if busy > 5*idle {
		t.Errorf("p99 is %v beside a flood, more than 5 times the %v without", busy, idle)
	}
}

// caller creates a ConfigMap as a user, over a connection of its own.
func (s *apiserver) caller(token string) func(ctx context.Context, name string) (status int, err error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the server's own certificate
	s.t.Cleanup(transport.CloseIdleConnections)
	return func(ctx context.Context, name string) (int, error) {
		body := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"` + name + `"}}`
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/api/v1/namespaces/default/configmaps", strings.NewReader(body))
		if err != nil {
			return 0, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		request.Header.Set("Content-Type", "application/json")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return 0, err
		}
		defer func() { _ = response.Body.Close() }()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, err
	}
}

func expect(status int, err error) error {
	if err == nil && status != http.StatusCreated {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// p99 is the latency that 99 of 100 requests do not exceed; none of them may be refused.
func p99(t *testing.T, call func(context.Context, string) (int, error), prefix string, requests int) time.Duration {
	t.Helper()
	took := make([]time.Duration, requests)
	for i := range took {
		begin := time.Now()
		if err := expect(call(t.Context(), fmt.Sprintf("%s-%d", prefix, i))); err != nil {
			t.Fatal(err)
		}
		took[i] = time.Since(begin)
	}
	slices.Sort(took)
	return took[requests*99/100-1]
}
