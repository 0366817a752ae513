package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/migrate/claim"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
)

// rewriter runs rewrites next to a process's stores, as package server wires it.
type rewriter struct{ p *Process }

var _ claim.Rewriter = rewriter{}

// Rewrite implements claim.Rewriter. Pages are small, so that much can happen between them.
func (r rewriter) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	target, err := r.target(ctx, job)
	if err != nil {
		return claim.Result{}, err
	}
	options := migratestore.Options{UnderWay: 1, PageKeys: r.p.w.config.Page, PieceKeys: r.p.w.config.Txn, Patience: 1}
	if r.p.w.config.Under > 1 {
		options.Threads = threads(r)
	}
	// A cursor that cannot be read is the beginning.
	if json.Unmarshal([]byte(job.Resume), &options.Resume) != nil {
		options.Resume = migratestore.Cursor{}
	}
	result, err := migratestore.New(migratestore.NewEtcd(r.p.kv())).Run(ctx, *target, options, func(done migratestore.Report) {
		report := progressOf(done.Progress)
		if position, err := json.Marshal(done.Cursor); err == nil && done.Cursor.After != "" {
			report.Checkpoint.Position = string(position)
		}
		progress(report)
	})
	answer := claim.Result{Progress: progressOf(result.Progress)}
	for _, f := range result.Failed {
		answer.Failures = append(answer.Failures, claim.Failure{Name: f.Key, Message: f.Detail})
	}
	return answer, err
}

func (r rewriter) target(ctx context.Context, job claim.Job) (*migratestore.Target, error) {
	target := &migratestore.Target{
		GroupResource: job.GroupResource, Encoding: job.Encoding,
		FenceKey: registry.KeyOf(registry.StorageVersions, storageversion.Name(job.GroupResource)), FenceRevision: job.FenceRevision,
		Refence: job.Refence,
		New:     func() runtime.Object { return &object.Object{} },
		Codec:   object.Codec{Encoding: job.Encoding, Knows: r.p.Release.Knows},
		Prefix:  object.Things.Prefix,
	}
	if job.Encoding.Seal() != r.p.seal {
		return nil, fmt.Errorf("this server does not encrypt with %q", job.Encoding.Seal())
	}
	if job.CRD.UID == "" {
		if job.GroupResource == object.Things.GroupResource && job.Encoding.Plain() != object.Things.Encoding(r.p.Release.Stores) {
			return nil, fmt.Errorf("this server does not store %s in %s", job.GroupResource, job.Encoding)
		}
		if job.GroupResource == object.Things.GroupResource {
			return target, nil
		}
		target.Prefix = "/registry/" + job.GroupResource.Resource + "/"
		if job.GroupResource == object.Widgets.GroupResource {
			return nil, errors.New("this server has no storage of widgets")
		}
		return target, nil
	}
	// A custom resource is converted without a schema, so nothing is dropped.
	target.Prefix, target.Codec = object.Widgets.Prefix, object.Codec{Encoding: job.Encoding, Knows: true}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := (apiClient{p: r.p}).Get(ctx, client.ObjectKey{Name: job.GroupResource.String()}, crd); err != nil {
		return nil, fmt.Errorf("read the CustomResourceDefinition: %w", err)
	}
	if string(crd.UID) != job.CRD.UID || crd.Generation != job.CRD.Generation {
		return nil, fmt.Errorf("%w: the CustomResourceDefinition has changed", claim.ErrFenced)
	}
	return target, nil
}

func progressOf(p migratestore.Progress) claim.Progress {
	return claim.Progress{Total: max(p.Expected, p.Total), Done: p.Rewritten + p.AlreadyCurrent + p.Gone, Failed: p.Failures}
}
