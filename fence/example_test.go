package fence

import (
	"context"
	"encoding/json"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// A store may write widgets in v1 as long as the StorageVersion has its server's report of v1. When the server reports v2
// instead, the next put of the store writes nothing.
func ExampleNewClient() {
	ctx := context.Background()
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	const prefix = "/example/storageversions/"
	// report writes the StorageVersion as the server does, and returns its revision in etcd.
	report := func(encoding agree.Encoding) int64 {
		sv := &v1alpha1.StorageVersion{TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "StorageVersion"}}
		storageversion.SetReports(sv, []agree.Report{by(self, encoding)}, metav1.Time{})
		value, err := json.Marshal(sv)
		if err != nil {
			panic(err)
		}
		put, err := testEtcd.Put(ctx, prefix+storageversion.Name(widgets), string(value))
		if err != nil {
			panic(err)
		}
		return put.Header.Revision
	}
	permits := &permits{open: map[schema.GroupResource]permit{}}
	permits.grant(widgets, "example.com/v1", report("example.com/v1"))
	store := NewClient(nil, ClientConfig{
		KV: testEtcd, Permits: permits, Resource: widgets, Encoding: "example.com/v1",
		Prefix: prefix, Decoder: storageVersionDecoder,
	})
	write := func(name string) {
		key := "/example/widgets/" + name
		_, err := store.OptimisticPut(ctx, key, []byte(`{"apiVersion":"example.com/v1"}`), 0, kubernetes.PutOptions{})
		stored, readErr := testEtcd.Get(ctx, key, clientv3.WithCountOnly())
		fmt.Printf("%s: %d stored, %v %v\n", name, stored.Count, err, readErr)
	}
	write("before")
	report("example.com/v2")
	write("after")
	// Output:
	// before: 1 stored, <nil> <nil>
	// after: 0 stored, widgets.example.com in example.com/v1: the store's encoding is no longer the one this server reports <nil>
}
