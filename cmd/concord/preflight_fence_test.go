package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/embedded"
	"github.com/concord-dev/concord/server/planning"
)

// sending is a stream of a client, whose messages are seen before they are sent.
type sending struct {
	grpc.ClientStream
	see func(any)
}

func (s sending) SendMsg(m any) error {
	s.see(m)
	return s.ClientStream.SendMsg(m)
}

// clientSeen is a client of an etcd whose requests are seen before they are sent.
func clientSeen(t *testing.T, endpoint string, see func(any)) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop(), DialOptions: []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			see(req)
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithChainStreamInterceptor(func(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, stream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			s, err := stream(ctx, desc, cc, method, opts...)
			return sending{s, see}, err
		}),
	}})
	requireNoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestPreflightInEtcdIsFenced: a server that reports another encoding while preflight counts may
// have written it behind the count, so the verdict takes it for written.
func TestPreflightInEtcdIsFenced(t *testing.T) {
	etcd, err := embedded.StartEtcd(t.Context(), t.TempDir())
	requireNoError(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	writer, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Endpoint}, Logger: zap.NewNop()})
	requireNoError(t, err)
	t.Cleanup(func() { _ = writer.Close() })
	for name, test := range map[string]struct {
		// reports is the encoding that servers report while policies are counted; empty: nothing new.
		reports agree.Encoding
		want    compat.Safety
	}{
		"nothing new": {"", compat.Safe},
		"another":     {admission + "/v1", compat.Unsafe},
	} {
		t.Run(name, func(t *testing.T) {
			prefix := "/" + strings.ReplaceAll(name, " ", "-")
			c := newCluster(t)
			for key, value := range c.values(t) {
				_, err := writer.Put(t.Context(), prefix+"/"+key, value)
				requireNoError(t, err)
			}
			storageversion.SetHistory(c.versions[policies], agree.History{Epoch: 2, Last: map[agree.Encoding]int64{admission + "/v1beta1": 1, test.reports: 2}})
			report := asJSON(t, c.versions[policies])
			counted := sync.OnceFunc(func() {
				if test.reports != "" {
					_, err := writer.Put(t.Context(), prefix+"/storageversions/"+storageversion.Name(policies), report)
					requireNoError(t, err)
				}
			})
			seen := 0
			client := clientSeen(t, etcd.Endpoint, func(request any) {
				r, ok := request.(*etcdserverpb.RangeRequest)
				if ok && string(r.Key) == prefix+"/mutatingadmissionpolicies/" && string(r.RangeEnd) == clientv3.GetPrefixRangeEnd(string(r.Key)) {
					seen++
					counted()
				}
			})
			world, err := storedInEtcd(t.Context(), client, prefix, []schema.GroupResource{policies})
			requireNoError(t, err)
			target := compat.ReleaseTarget(planning.Lifecycles(), version.MustParseMajorMinor("1.35"))
			i := slices.IndexFunc(world.Stored, func(s compat.Stored) bool { return s.Resource == policies })
			if got := target.Judge(world.Stored[i]); got.Verdict != test.want || seen == 0 {
				t.Errorf("read %d times: %+v, judged from %+v", seen, got, world.Stored[i])
			}
		})
	}
}
