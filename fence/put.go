package fence

import (
	"context"
	"fmt"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

const (
	// maxAttempts bounds how often one put is tried while other servers keep joining
	// and leaving.
	maxAttempts = 32
)

// fencedClient is a kubernetes.Interface whose puts compare the StorageVersion's
// revision. Everything that writes an object's value passes through OptimisticPut.
type fencedClient struct {
	kubernetes.Interface
	kv       clientv3.KV
	permits  Permits
	versions *storageVersions
	gr       schema.GroupResource
	enc      agree.Encoding
	// stamped says that the values carry the Seal of the key with which they are encrypted.
	stamped bool
}

// ClientConfig configures a client of NewClient.
type ClientConfig struct {
	// KV runs the transactions.
	KV clientv3.KV
	// Permits answers for this server's reports.
	Permits Permits
	// Resource is the resource of the objects that are written, and Encoding theirs, with its
	// Seal.
	Resource schema.GroupResource
	Encoding agree.Encoding
	// Prefix is the etcd prefix of the stored StorageVersions, with a trailing slash, and
	// Decoder decodes their values, which are not encrypted.
	Prefix  string
	Decoder runtime.Decoder
}

// NewClient returns a client whose puts are fenced, for a store that no Fence built. All
// its other methods are inner's.
func NewClient(inner kubernetes.Interface, c ClientConfig) kubernetes.Interface {
	versions := &storageVersions{decoder: c.Decoder}
	versions.locate(c.Prefix, identity.NewEncryptCheckTransformer())
	return &fencedClient{Interface: inner, kv: c.KV, permits: c.Permits, versions: versions, gr: c.Resource, enc: c.Encoding}
}

// OptimisticPut is kubernetes.Interface's, with one more compare. A lost permission is
// an error and never Succeeded=false, which callers take for a conflict on the object:
// a create would answer 409, an update 404 or try for ever.
func (c *fencedClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	enc := c.enc
	if c.stamped {
		unstamped, seal, err := unstamp(value)
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		value, enc = unstamped, c.enc.Sealed(seal)
	}
	for range maxAttempts {
		rev, err := c.permits.Revision(ctx, c.gr, enc)
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		fenceKey, ok := c.versions.key(c.gr)
		// A compare with revision 0 would hold exactly when there is no StorageVersion.
		if !ok || rev <= 0 {
			return kubernetes.PutResponse{}, storageversion.Unavailable(c.gr, "storage version of %s in %s is not registered yet", c.gr, enc)
		}
		tried, err := c.try(ctx, key, value, expectedRevision, opts, fenceKey, rev)
		if err != nil {
			return kubernetes.PutResponse{}, err
		}
		if tried.counts(rev) {
			return tried.PutResponse, nil
		}
		if err := c.moved(ctx, enc, fenceKey, tried); err != nil {
			return kubernetes.PutResponse{}, err
		}
	}
	return kubernetes.PutResponse{}, storageversion.Unavailable(c.gr, "storage version of %s changed %d times during one write", c.gr, maxAttempts)
}

// attempt is the result of one transaction: of the object and, if one of its compares failed, of the StorageVersion (nil
// if there is none).
type attempt struct {
	kubernetes.PutResponse
	fence *mvccpb.KeyValue
}

// counts reports whether the object was written, or had changed while the permission to write stood. If the permission
// did not stand, nothing that the transaction found about the object may reach the caller.
func (a attempt) counts(fenceRevision int64) bool {
	return a.Succeeded || a.fence != nil && a.fence.ModRevision == fenceRevision
}

// try makes one attempt.
func (c *fencedClient) try(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions, fenceKey string, fenceRevision int64) (attempt, error) {
	txn := c.kv.Txn(ctx).If(
		clientv3.Compare(clientv3.ModRevision(key), "=", expectedRevision),
		clientv3.Compare(clientv3.ModRevision(fenceKey), "=", fenceRevision),
	)
	txn = txn.Then(clientv3.OpPut(key, string(value), clientv3.WithLease(opts.LeaseID)))
	reads := []clientv3.Op{clientv3.OpGet(fenceKey)}
	if opts.GetOnFailure {
		reads = append(reads, clientv3.OpGet(key))
	}
	resp, err := txn.Else(reads...).Commit()
	if err != nil {
		return attempt{}, err
	}
	tried := attempt{PutResponse: kubernetes.PutResponse{Succeeded: resp.Succeeded, Revision: resp.Header.Revision}}
	if resp.Succeeded {
		return tried, nil
	}
	if len(resp.Responses) != len(reads) {
		return attempt{}, fmt.Errorf("etcd answered %d of the transaction's %d reads", len(resp.Responses), len(reads))
	}
	for i, into := range []**mvccpb.KeyValue{&tried.fence, &tried.KV}[:len(reads)] {
		if found := resp.Responses[i].GetResponseRange().GetKvs(); len(found) == 1 {
			*into = found[0]
		}
	}
	return tried, nil
}

// moved asks whether the write may be tried again after the StorageVersion changed.
func (c *fencedClient) moved(ctx context.Context, enc agree.Encoding, fenceKey string, tried attempt) error {
	countMismatch(c.gr)
	var mod int64
	var reports []agree.Report
	if fence := tried.fence; fence != nil {
		var err error
		if reports, err = c.versions.reports(ctx, fenceKey, fence.Value); err != nil {
			return storageversion.Unavailable(c.gr, "nothing was written: the storage version of %s is damaged: %v: etcdctl del %s, then the servers report it again by themselves", c.gr, err, fenceKey)
		}
		mod = fence.ModRevision
	}
	if err := c.permits.Moved(ctx, c.gr, enc, tried.Revision, mod, reports); err != nil {
		return err
	}
	retries.WithLabelValues(c.gr.Group, c.gr.Resource).Inc()
	return nil
}
