package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/controller/migrate"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/rewrite"
)

// storeTimeout bounds the wait for a custom resource's store to be built.
const storeTimeout = 30 * time.Second

// newMigration makes the controllers that start migrations and do them.
func (p *protocol) newMigration(clients *clients) error {
	var err error
	p.trigger, err = trigger.New(trigger.Config{
		Client:   clients.objects,
		Kinds:    trigger.KindsOf(restMapper(clients.kube.Discovery())),
		Instance: p.identity,
		Logger:   klog.Background().WithName("trigger"),
	})
	if err != nil {
		return err
	}
	p.migrate, err = migrate.New(migrate.Config{
		Client:   clients.objects,
		ID:       p.member.ID,
		Rewriter: rewriter{p: p, engine: rewrite.New(rewrite.NewEtcd(p.etcd))},
		Logger:   klog.Background().WithName("migrate"),
	})
	return err
}

// restMapper answers from discovery, which it reads anew before it says that a resource
// is not served.
func restMapper(d discovery.DiscoveryInterface) meta.RESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(d))
}

// rewriter runs rewrites next to this server's stores.
type rewriter struct {
	p      *protocol
	engine *rewrite.Engine
}

var _ migrate.Rewriter = rewriter{}

// Rewrite implements migrate.Rewriter.
func (r rewriter) Rewrite(ctx context.Context, job migrate.Job, progress func(migrate.Progress)) (migrate.Result, error) {
	store, err := r.store(ctx, job)
	if err != nil {
		return migrate.Result{}, err
	}
	target := rewrite.Target{
		GroupResource: job.GroupResource, Encoding: job.Encoding,
		Prefix: store.Prefix, FenceKey: store.FenceKey, FenceRevision: job.FenceRevision,
		Codec: store.Codec, New: store.New, Transformer: store.Transformer,
		Refence: func(ctx context.Context) (int64, error) {
			revision, err := job.Refence(ctx)
			return revision, translate(err, migrate.ErrFenced, rewrite.ErrFenced)
		},
	}
	result, err := r.engine.Run(ctx, target, rewrite.Options{}, func(done rewrite.Progress) { progress(progressOf(done)) })
	return resultOf(result, store.Prefix), translate(err, rewrite.ErrFenced, migrate.ErrFenced)
}

// store returns the store that writes the job's encoding; a custom resource's is built
// by a list if it does not exist yet.
func (r rewriter) store(ctx context.Context, job migrate.Job) (fence.Store, error) {
	if store, ok := r.p.fence.Newest(job.GroupResource); ok && store.Encoding == job.Encoding && (store.ServedVersion == "" || store.ServedVersion == string(job.Encoding)) {
		return store, nil
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	r.p.rebuild(ctx, job.GroupResource.String(), job.GroupResource, string(job.Encoding))
	return r.p.fence.Await(ctx, job.GroupResource, job.Encoding)
}

// translate wraps an error that is one package's sentinel with the other's.
func translate(err, from, to error) error {
	if err != nil && errors.Is(err, from) && !errors.Is(err, to) {
		return fmt.Errorf("%w: %w", to, err)
	}
	return err
}

func progressOf(p rewrite.Progress) migrate.Progress {
	return migrate.Progress{Total: max(p.Expected, p.Total), Done: p.Rewritten + p.AlreadyCurrent + p.Gone, Failed: p.Failures}
}

func resultOf(r rewrite.Result, prefix string) migrate.Result {
	result := migrate.Result{Progress: progressOf(r.Progress)}
	result.Total = r.Total
	for _, f := range r.Failed {
		namespace, name, namespaced := strings.Cut(strings.TrimPrefix(f.Key, prefix), "/")
		if !namespaced {
			namespace, name = "", namespace
		}
		result.Failures = append(result.Failures, migrate.Failure{Namespace: namespace, Name: name, Message: fmt.Sprintf("%s: %s", f.Reason, f.Detail)})
	}
	return result
}
