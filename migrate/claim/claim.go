// Package claim does StorageVersionMigrations: every server looks at them, one claims
// each, rewrites the stored objects and says how it ended (section 3.6). Whether that counts
// is decided by package evolve. The rewriting itself is behind Rewriter, next to the store.
package claim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// Rewriter brings the stored objects of a resource to one encoding, in the store or through the API.
type Rewriter interface {
	// Rewrite returns when every object is in the encoding, but for those that the result
	// names, or with an error. It may be called again after an error and then passes over
	// what is done. An error for which errors.Is(err, ErrFenced) holds says that the
	// StorageVersion has moved and that nothing was written since, and one that wraps
	// ErrUnproven that no position counts. progress is called from time to time, one call at
	// a time and none after the return. Counts include the objects before Job.Resume.
	Rewrite(ctx context.Context, job Job, progress func(Progress)) (Result, error)
}

// Job says what to rewrite, and under which permission.
type Job struct {
	GroupResource schema.GroupResource
	Encoding      agree.Encoding
	// CRD is the definition under which the rewrite is permitted, zero for a built-in
	// resource. It stores the encoding, and a rewrite that ends under another one does not
	// count; the decoder and the encoder must have been made from one at least this new.
	CRD CRD
	// FenceRevision is the revision of the StorageVersion that permits the rewrite. It was
	// read before Rewrite is called, so that the first page is newer.
	FenceRevision int64
	// Refence can be asked, by any goroutine, when the StorageVersion has moved: it reads it
	// again and returns the revision at which it still permits the rewrite (a server has
	// only joined or left), or an error that wraps ErrFenced if it does not.
	Refence func(ctx context.Context) (int64, error)
	// Resume is the Position of a Checkpoint from an earlier rewrite to the same encoding, under the same
	// StorageVersion at the same epoch and the same CRD; empty for the beginning. A Position that cannot be read also
	// means the beginning.
	Resume string
	// MaxAddedLatency and MaxPerSecond are the bounds that the migration sets for its speed; nil
	// for the server's defaults.
	MaxAddedLatency *time.Duration
	MaxPerSecond    *int64
	// Versions are the versions in which the resource may be served; patches use the first.
	Versions []string
	// Failed is called for every object that cannot be migrated, by any goroutine.
	Failed func(Failure)
}

// CRD identifies a CustomResourceDefinition at one generation. Generations of different UIDs cannot be compared.
type CRD struct {
	UID        string
	Generation int64
}

// Progress counts objects. Done are known to be in the encoding. Conflicts counts the times
// an object was found changed when it was to be written.
type Progress struct {
	Total, Done, Failed, Conflicts int64
	// Written are those of Done that were written; 0 for Rewriters that write every object.
	Written int64
	// FailedByReason divides Failed; nil if none failed, or if the Rewriter does not know reasons.
	FailedByReason map[migrationv1alpha1.MigrationFailureReason]int64
	Checkpoint     Checkpoint
	// Proving says that every object was written, and that the result is being proven.
	Proving bool
	// Hindered is the error that keeps the rewrite from making progress; empty while it makes some, and for
	// Rewriters that do not report it. Overloaded says that the error affects other migrations as well.
	Hindered   string
	Overloaded bool
}

// Checkpoint is a place where a rewrite can go on, by any server.
type Checkpoint struct {
	// Position is for Rewriters to read. It stands also for how many objects before it are
	// done and how many failed.
	Position string
	// Failures names those before it, of this call.
	Failures []Failure
}

// Failure names an object that cannot be migrated.
type Failure = migrationv1alpha1.MigrationFailure

// Result is how a rewrite ended. Failures may name fewer objects than Failed counts.
type Result struct {
	Progress
	Failures []Failure
}

// ErrFenced says that the StorageVersion no longer permits the rewrite as it was begun.
var ErrFenced = agree.ErrFenced

// ErrUnproven says that a rewrite finished, but that its result is not proven: objects were found that are not stored as
// they should be, or the proof was disturbed, for example by a kube-apiserver that started.
var ErrUnproven = errors.New("a census after the rewrite found what is not as it should be")

// ErrChangedByAdmission says the same, for a reason that no other try helps against until somebody acts on it.
var ErrChangedByAdmission = errors.New("a mutating webhook or policy changes objects at every write, so that nothing is proven: exclude the user that migrates from it (matchConditions), or suspend it")

const (
	// poll is how often a migration that this server does not do is looked at again, to take
	// it over from a server that is gone.
	poll = 5 * time.Second
	// attempts is how often a rewrite may end in an error in a row, without getting on, before
	// the migration is Failed, so that it is made again and another server can try.
	attempts = 5
)

// Config is what a Controller needs.
type Config struct {
	// Client reads and writes API objects, uncached. Its scheme must hold StorageVersions,
	// StorageVersionMigrations, CustomResourceDefinitions, Leases and Events.
	Client client.WithWatch
	// ID returns this server's ID, which changes when it registers again; "" before it has one.
	ID       func() agree.ServerID
	Rewriter Rewriter
	// API is the Rewriter for objects that Rewriter cannot reach, or where a migration asks for it.
	// Its Jobs are under the same permission, though it cannot fence its writes: what counts
	// is that the StorageVersion has the same uid and epoch before its first read and after
	// its last write, and so every write between was in the encoding. Nil: there is none.
	API Rewriter
	// Elsewhere says which service serves a resource that this server does not store, and returns
	// "" if none does. Nil: none does.
	Elsewhere func(context.Context, schema.GroupVersionResource) (string, error)
	// Clock defaults to the real one.
	Clock clock.WithTicker
	// Workers is how many migrations Run does at a time, besides those that are Hindered for a reason of their own, or
	// very slow. Default: 2.
	Workers int
	// Later says of a migration that all others are done before it is begun. Nil: of none.
	Later func(*migrationv1alpha1.StorageVersionMigration) bool
	// ProgressPeriod is the shortest time between two updates of a migration's progress.
	// Run makes them at most a third later also while the Rewriter reports nothing. Default:
	// 3 s.
	ProgressPeriod time.Duration
	// Metrics may be nil.
	Metrics *Metrics
	// Logger defaults to none.
	Logger logr.Logger
}

// definition is a CustomResourceDefinition as it was observed, and the encoding that it stores.
type definition struct {
	CRD
	stores agree.Encoding
}

// Controller claims migrations and does them.
type Controller struct {
	cfg Config

	mu sync.Mutex
	// running are the migrations being done, with the functions that interrupt them.
	running map[*work]context.CancelCauseFunc
	// definitions were observed since a rewrite of their resource began last, which may have read them before.
	definitions map[schema.GroupResource]definition
	// errors counts the errors in a row of migrations this server has claimed.
	errors map[types.UID]int
}

// New returns a Controller; it does nothing by itself.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	cfg.Workers = cmp.Or(cfg.Workers, 2)
	cfg.ProgressPeriod = cmp.Or(cfg.ProgressPeriod, 3*time.Second)
	return &Controller{cfg: cfg, running: map[*work]context.CancelCauseFunc{}, definitions: map[schema.GroupResource]definition{}, errors: map[types.UID]int{}}
}

// get reads a migration; nil if it does not exist, which an error that says no more than
// "not found" does not prove.
func (c *Controller) get(ctx context.Context, name string) (*migrationv1alpha1.StorageVersionMigration, error) {
	m := &migrationv1alpha1.StorageVersionMigration{}
	switch err := c.cfg.Client.Get(ctx, client.ObjectKey{Name: name}, m); {
	case storageversion.IsGone(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get migration %s: %w", name, err)
	}
	return m, nil
}

// failed counts an error of a migration and says whether there were too many.
func (c *Controller) failed(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errors[uid]++
	return c.errors[uid] >= attempts
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.errors, uid)
}
