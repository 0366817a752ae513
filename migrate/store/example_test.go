package store_test

import (
	"bytes"
	"context"
	"fmt"
	"os"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/testbed/etcdtest"
)

// Two widgets are stored in v1 and one in v2. A rewrite to v2 writes the two, each in a transaction
// of its own, and leaves the third as it is.
func Example() {
	ctx := context.Background()
	etcd, stop := startEtcd()
	defer stop()
	const prefix, storageVersion = "/registry/example.com/widgets/", "/registry/storageversions/example.com.widgets"
	for name, version := range map[string]string{"one": "v1", "two": "v1", "three": "v2"} {
		value := fmt.Sprintf(`{"apiVersion":"example.com/%s","kind":"Widget","metadata":{"name":%q}}`, version, name)
		if _, err := etcd.Put(ctx, prefix+name, value); err != nil {
			panic(err)
		}
	}
	permission, err := etcd.Put(ctx, storageVersion, "all servers report example.com/v2")
	if err != nil {
		panic(err)
	}
	result, err := migratestore.New(migratestore.NewEtcd(etcd)).Run(ctx, migratestore.Target{
		GroupResource: schema.GroupResource{Group: "example.com", Resource: "widgets"},
		Encoding:      "example.com/v2",
		Prefix:        prefix,
		// No transaction succeeds once the StorageVersion has another revision.
		FenceKey: storageVersion, FenceRevision: permission.Header.Revision,
		Convert: func(_ context.Context, plains [][]byte, _ func(error)) (converted []migratestore.Converted) {
			for _, plain := range plains {
				converted = append(converted, migratestore.Converted{Plain: bytes.Replace(plain, []byte("/v1"), []byte("/v2"), 1)})
			}
			return converted
		},
	}, migratestore.Options{}, nil)
	fmt.Printf("%d rewritten, %d as they were, %d failed, %v\n", result.Rewritten, result.AlreadyCurrent, result.Failures, err)
	stored, err := etcd.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		panic(err)
	}
	for _, kv := range stored.Kvs {
		encoding, kind, _ := migratestore.Envelope(kv.Value)
		fmt.Printf("%s: %s in %s\n", kv.Key[len(prefix):], kind, encoding)
	}
	// Output:
	// 2 rewritten, 1 as they were, 0 failed, <nil>
	// one: Widget in example.com/v2
	// three: Widget in example.com/v2
	// two: Widget in example.com/v2
}

// startEtcd runs an etcd on free loopback ports.
func startEtcd() (client *clientv3.Client, stop func()) {
	dir, err := os.MkdirTemp("", "rewrite")
	if err != nil {
		panic(err)
	}
	server, err := etcdtest.Start(etcdtest.Config(dir))
	if err != nil {
		panic(err)
	}
	client, err = clientv3.New(clientv3.Config{Endpoints: []string{etcdtest.Endpoint(server)}, Logger: zap.NewNop()})
	if err != nil {
		panic(err)
	}
	return client, func() {
		_ = client.Close()
		server.Close()
		_ = os.RemoveAll(dir)
	}
}
