package fence

import (
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// attempt is the result of one transaction.
type attempt struct {
	succeeded bool
	revision  int64            // etcd's after the transaction
	fence     *mvccpb.KeyValue // the StorageVersion; nil if there is none, or if succeeded
	object    *mvccpb.KeyValue // nil if there is none, or if it was not asked for
}

// outcome is the meaning of an attempt for its put.
type outcome int

const (
	committed  outcome = iota
	moved              // the StorageVersion is not at the revision compared; nothing is known about the object
	conflicted         // the permission stands and the object changed
)

// judge looks at the fence first: as long as it does not stand, nothing that was found of the
// object may reach the caller.
func (a attempt) judge(fenceRevision int64) outcome {
	switch {
	case a.succeeded:
		return committed
	case a.fence == nil || a.fence.ModRevision != fenceRevision:
		return moved
	default:
		return conflicted
	}
}

// readAttempt takes a transaction's response apart; reads is the number of gets in its Else
// branch: the StorageVersion and, if asked for, the object.
func readAttempt(resp *clientv3.TxnResponse, reads int) (attempt, error) {
	a := attempt{succeeded: resp.Succeeded, revision: resp.Header.Revision}
	if resp.Succeeded {
		return a, nil
	}
	found := make([]*mvccpb.KeyValue, reads)
	if len(resp.Responses) != reads {
		return a, fmt.Errorf("etcd answered %d of the transaction's %d reads", len(resp.Responses), reads)
	}
	for i, r := range resp.Responses {
		if kvs := r.GetResponseRange().GetKvs(); len(kvs) == 1 {
			found[i] = kvs[0]
		}
	}
	a.fence = found[0]
	if reads > 1 {
		a.object = found[1]
	}
	return a, nil
}
