package fence

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/concord-dev/concord/coalesce"
)

// maxGets is how many objects are read at once; etcd takes 128 operations.
const maxGets = 64

// gets reads single objects, each read as consistent as one of its own.
type gets = coalesce.Calls[string, kubernetes.GetResponse]

func newGets(kv clientv3.KV) *gets {
	return &gets{
		Fits: func(batch []string, _ string) bool { return len(batch) < maxGets },
		Make: func(ctx context.Context, keys []string) ([]kubernetes.GetResponse, error) {
			ops := make([]clientv3.Op, len(keys))
			for i, key := range keys {
				ops[i] = clientv3.OpGet(key)
			}
			resp, err := kv.Txn(ctx).Then(ops...).Commit()
			if err != nil {
				return nil, err
			}
			found := make([]kubernetes.GetResponse, len(resp.Responses))
			for i, r := range resp.Responses {
				found[i].Revision = resp.Header.Revision
				if kvs := r.GetResponseRange().GetKvs(); len(kvs) == 1 {
					found[i].KV = kvs[0]
				}
			}
			return found, nil
		},
	}
}
