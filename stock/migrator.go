package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/controller/throughapi"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/evolve"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
	"github.com/concord-dev/concord/stock/observed"
)

// migrator does migrations: it rewrites every object, and then proves that no object is stored in another version.
type migrator struct {
	api          *migrateapi.Client
	prover       *prover
	observer     *observer
	maxPerSecond int64
	maxAdded     *time.Duration
	maxParallel  int
	// pacer, if not nil, bounds all jobs together; otherwise each has a bound of its own.
	pacer  *pace.Pacer
	logger logr.Logger

	mu sync.Mutex
	// proven has the last proof of each resource that held.
	proven map[schema.GroupResource]provenAt
}

// provenAt says since when later writes may be in another version than they should be.
type provenAt struct {
	encoding        agree.Encoding
	resourceVersion string
}

var _ claim.Rewriter = (*migrator)(nil)

// newMigrator patches through the status, where a definition has one: less stands in the way. It knows the
// observer's definitions once it works.
func newMigrator(o *observer, c Config) (*migrator, error) {
	api, err := migrateapi.NewClient(c.Rest)
	if err != nil {
		return nil, err
	}
	return &migrator{
		api: api.Through(func(gvr schema.GroupVersionResource) string { return o.definitions.statusOf(gvr) }), proven: map[schema.GroupResource]provenAt{}, prover: newProver(api, o, c), observer: o,
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

// options are those of a job within its bound of patches per second. They say how it gives way to clients, whose
// requests are not seen from outside: as its migration says or the controllers' flag, and else so that hardly any of its
// own waits at a kube-apiserver.
func (m *migrator) options(job claim.Job) migrateapi.Options {
	o := migrateapi.Options{MaxParallel: m.maxParallel, PageSize: pageSize, Gentle: true}
	added := m.maxAdded
	if job.MaxAddedLatency != nil {
		added = job.MaxAddedLatency
	}
	if added != nil {
		o.Gentle, o.MaxAdded = *added > 0, *added
	}
	if o.Pacer = m.pacer; o.Pacer == nil {
		o.Pacer = m.newPacer(ptr.Deref(job.MaxPerSecond, m.maxPerSecond))
	}
	return o
}

// newPacer returns one that watches no clients, so that nothing is left to be stopped.
func (m *migrator) newPacer(maxPerSecond int64) *pace.Pacer {
	p, _ := pace.New(pace.Bounds{MaxPerSecond: int(maxPerSecond)}, nil, clock.RealClock{})
	return p
}

// Rewrite implements claim.Rewriter.
func (m *migrator) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	options := m.options(job)
	m.setProven(job.GroupResource, provenAt{})
	began := time.Now()
	own := observed.NewOwnWrites(m.since(ctx, job))
	var last claim.Progress
	result, err := throughapi.Run(ctx, migrateapi.New(m.api.Telling(own.Add)), job, options, func(p claim.Progress) {
		last = p
		progress(p)
	})
	if err != nil || result.Failed > 0 {
		return result, err
	}
	progress(proving(result.Progress, last))
	m.logger.Info("Written", "resource", job.GroupResource.String(), "encoding", string(job.Encoding), "objects", result.Total, "took", time.Since(began).String())
	before, began := m.observer.replicas(), time.Now()
	proof, listed, err := m.prover.prove(ctx, job, exam{replicas: before, turn: migrateapi.Turns(options), later: own.Later})
	if err != nil {
		return result, fmt.Errorf("prove what is stored: %w", err)
	}
	if err := m.observer.round(ctx, job.GroupResource); err != nil {
		return result, err
	}
	if !slices.Equal(processes(before), processes(m.observer.replicas())) {
		return result, fmt.Errorf("%w: kube-apiservers came, went or were restarted during the proof", claim.ErrUnproven)
	}
	m.logger.Info("Proof", "resource", job.GroupResource.String(), "encoding", string(job.Encoding), "holds", proof.Holds(), "verdict", proof.String(), "replicas", len(before), "took", time.Since(began).String())
	switch {
	case proof.Unsteady > 0:
		return result, fmt.Errorf("%w: %s", claim.ErrChangedByAdmission, proof)
	case !proof.Holds():
		return result, fmt.Errorf("%w: %s", claim.ErrUnproven, proof)
	}
	m.setProven(job.GroupResource, provenAt{job.Encoding, listed})
	return result, nil
}

// since returns a resourceVersion from before a rewrite; "" if it is not known, for example when a rewrite resumes the
// work of another process.
func (m *migrator) since(ctx context.Context, job claim.Job) string {
	if job.Resume != "" {
		return ""
	}
	_, since, _ := m.prover.listable(ctx, job) // the rewrite tells an error
	return since
}

// lastLook examines, directly before storedVersions are pruned, what was written since the proof or, after a restart
// of this process, everything. If etcd does not answer, a kube-apiserver gives up a create, and etcd may execute it
// much later: then the object is stored in the version of that earlier time. An error keeps storedVersions; if such an
// object was found, everything is migrated and proven again.
func (m *migrator) lastLook(ctx context.Context, job claim.Job) error {
	m.mu.Lock()
	proven := m.proven[job.GroupResource]
	m.mu.Unlock()
	if proven.encoding != job.Encoding {
		proven = provenAt{encoding: job.Encoding}
	}
	options := m.options(job)
	proof, listed, err := m.prover.prove(ctx, job, exam{
		replicas: m.observer.replicas(), turn: migrateapi.Turns(options), last: true, later: observed.NewOwnWrites(proven.resourceVersion).Later,
	})
	if err != nil {
		return fmt.Errorf("look at what was written since the proof: %w", err)
	}
	if !proof.Holds() {
		why := migrationv1alpha1.SinceProof + proof.String()
		if proof.Moved == 0 {
			return trigger.RefusedLook(why)
		}
		m.observer.found(job.GroupResource) // a patch that is refused shows nothing of what is stored
		return errors.New(why)
	}
	m.setProven(job.GroupResource, provenAt{job.Encoding, listed})
	return nil
}

// lastLookAt is a trigger's LastLook.
func (m *migrator) lastLookAt(ctx context.Context, gr schema.GroupResource, target evolve.Target) error {
	crd := m.observer.definitions.of(gr)
	if crd == nil {
		return fmt.Errorf("the definition of %s is gone", gr)
	}
	return m.lastLook(ctx, jobOf(crd, target.Encoding))
}

// jobOf returns a job for a definition's objects. Its first version is the stored one, served or not.
func jobOf(crd *apiextensionsv1.CustomResourceDefinition, encoding agree.Encoding) claim.Job {
	versions, _ := served(crd)
	if !slices.Contains(versions, encoding.Version()) {
		versions = append(versions, encoding.Version())
	}
	slices.SortStableFunc(versions, func(a, b string) int { return strings.Compare(rank(a, encoding), rank(b, encoding)) })
	return claim.Job{GroupResource: migrationv1alpha1.ResourceOf(crd), Encoding: encoding, Versions: versions}
}

func (m *migrator) setProven(gr schema.GroupResource, at provenAt) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proven[gr] = at
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
