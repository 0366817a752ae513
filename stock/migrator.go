package stock

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/controller/throughapi"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
	"github.com/concord-dev/concord/stock/observed"
)

// migrator does migrations: every object is written anew, and then it is proven that none is
// stored in another way.
type migrator struct {
	engine       *migrateapi.Engine
	prover       *prover
	observer     *observer
	maxPerSecond int64
	maxAdded     *time.Duration
	maxParallel  int
	logger       logr.Logger
}

var _ claim.Rewriter = (*migrator)(nil)

// newMigrator patches through the status, where a definition has one: less stands in the way.
func newMigrator(config *rest.Config, o *observer, c Config) (*migrator, error) {
	api, err := migrateapi.NewClient(config)
	if err != nil {
		return nil, err
	}
	return &migrator{
		engine: migrateapi.New(api.Through(o.definitions.statusOf)), prover: newProver(api, o, c), observer: o,
		maxPerSecond: c.MaxObjectsPerSecond, maxAdded: c.MaxAddedLatency, maxParallel: c.MaxParallel, logger: c.Logger.WithName("migrate"),
	}, nil
}

// statusOf is the subresource through which objects are patched.
func (d *definitions) statusOf(gvr schema.GroupVersionResource) string {
	crd := d.of(gvr.GroupResource())
	if crd == nil {
		return ""
	}
	for _, v := range crd.Spec.Versions {
		if v.Name == gvr.Version && v.Subresources != nil && v.Subresources.Status != nil {
			return "status"
		}
	}
	return ""
}

// options say how a job gives way to clients, whose requests are not seen from outside: as its
// migration says or the controllers' flag, and else so that hardly any of its own waits at a
// kube-apiserver.
func (m *migrator) options(job claim.Job) migrateapi.Options {
	o := migrateapi.Options{MaxParallel: m.maxParallel, PageSize: pageSize, Gentle: true}
	added := m.maxAdded
	if job.MaxAddedLatency != nil {
		added = job.MaxAddedLatency
	}
	if added != nil {
		o.Gentle, o.MaxAdded = *added > 0, *added
	}
	return o
}

// Rewrite implements claim.Rewriter.
func (m *migrator) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	pacer, stop := pace.New(pace.Bounds{MaxPerSecond: int(ptr.Deref(job.MaxPerSecond, m.maxPerSecond))}, nil, clock.RealClock{})
	defer stop()
	options := m.options(job)
	options.Pacer = pacer
	began := time.Now()
	var last claim.Progress
	result, err := throughapi.Run(ctx, m.engine, job, options, func(p claim.Progress) {
		last = p
		progress(p)
	})
	if err != nil || result.Failed > 0 {
		return result, err
	}
	progress(proving(result.Progress, last))
	m.logger.Info("Written", "resource", job.GroupResource.String(), "encoding", string(job.Encoding), "objects", result.Total, "took", time.Since(began).String())
	before, began := processes(m.observer.replicas()), time.Now()
	proof, err := m.prover.prove(ctx, job, migrateapi.Turns(options))
	if err != nil {
		return result, fmt.Errorf("prove what is stored: %w", err)
	}
	if err := m.observer.round(ctx, job.GroupResource); err != nil {
		return result, err
	}
	if after := processes(m.observer.replicas()); !slices.Equal(before, after) {
		return result, fmt.Errorf("%w: kube-apiservers came, went or were restarted during the proof", claim.ErrUnproven)
	}
	m.logger.Info("Proof", "resource", job.GroupResource.String(), "encoding", string(job.Encoding), "holds", proof.Holds(), "verdict", proof.String(), "replicas", len(before), "took", time.Since(began).String())
	if !proof.Holds() {
		return result, fmt.Errorf("%w: %s", claim.ErrUnproven, proof)
	}
	return result, nil
}

// proving is the progress of a rewrite that is complete. Another process begins it where the last one
// reported.
func proving(complete, last claim.Progress) claim.Progress {
	complete.Checkpoint, complete.Proving = last.Checkpoint, true
	return complete
}

func processes(replicas []observed.Replica) []observed.Process {
	all := make([]observed.Process, 0, len(replicas))
	for _, r := range replicas {
		all = append(all, r.Process)
	}
	return all
}
