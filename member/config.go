// Package member is one API server's part of KEP-2339: it registers
// the server by an identity Lease, reports what the server encodes, and hands out and
// withdraws the permission to write that a standing report is.
//
// Every step is a synchronous method (Register, Renew, Step, Depart)
// with injected clock and randomness; Run drives them and the watches.
package member

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/member/timing"
)

const (
	// DefaultLeaseDuration is Config.LeaseDuration's default.
	DefaultLeaseDuration = 15 * time.Second
	// DefaultRenewInterval is Config.RenewInterval's default.
	DefaultRenewInterval = 5 * time.Second
	// DefaultWaitLimit is Config.WaitLimit's default.
	DefaultWaitLimit = 10 * time.Second
	// DefaultWorkers is Config.Workers' default.
	DefaultWorkers = 16
)

// Versions are the releases that a server puts on its identity Lease, as "1.37".
type Versions struct {
	Binary, Emulation, MinCompatibility string
	// Build names the build of Concord; empty if it is not known.
	Build string
}

// Config is the configuration that New needs.
type Config struct {
	// Client reaches the API uncached, over the loopback. Its scheme knows namespaces,
	// Leases, StorageVersions and CustomResourceDefinitions.
	Client client.WithWatch
	// Bury deletes a server's Lease and drops its reports; Depart calls it until it
	// returns nil. Package controller/collect has the implementation.
	Bury func(ctx context.Context, id agree.ServerID) error
	// Erase, if not nil, makes this the Member of a server whose feature gate StorageVersionAPI is off:
	// its identity Lease says so and it reports nothing. Erase deletes all StorageVersions, however many there are,
	// and is called for every registration. Until it has returned nil, Admit lets no write pass except those that
	// registering needs. Bury is not called.
	Erase func(ctx context.Context) error

	Versions Versions
	// Labels and Annotations are added to the identity Lease, besides those of every member. The Labels are also put
	// on StorageVersions that this member creates.
	Labels, Annotations map[string]string
	// LeaseDuration is how long the identity Lease lives without a renewal, in whole seconds.
	LeaseDuration time.Duration
	// RenewInterval is the time between renewals, at most half of LeaseDuration: if nobody renews for longer, the
	// collector assumes an outage (agree.Liveness).
	RenewInterval time.Duration
	// SameID makes Register repeat an attempt with unknown outcome under the same ID and take over the Lease that it
	// finds, instead of leaving it to the collector. It is meant for Leases that nobody judges by their renewals. An
	// ID is never used again once it was registered.
	SameID bool
	// WaitLimit bounds how long Revision waits for a custom resource to open. Negative
	// means that it never waits.
	WaitLimit time.Duration
	// Workers is how many resources are reported at once, over all callers. With 1
	// everything happens in the goroutine of the caller.
	Workers int

	// Storage returns an error while nothing can be written, and nil otherwise. The gate then refuses writes at once;
	// if the error wraps ErrDeletesOnly it lets deletes and requests that store nothing pass. A nil func means that
	// writing is always possible. Storage must not call the Member.
	Storage func() error
	// CustomResourcesKnown says whether ObserveCRD was called for every CRD that existed
	// at the start; before that the Lease does not say "reported", and CRDs that come
	// within a moment are reported together. Nil means always. It must not call the Member.
	CustomResourcesKnown func() bool
	// Rebuild is called, outside all locks, after a custom resource has opened in another
	// encoding than this server had open before, with a served group/version: the server
	// builds the new handler by a loopback list. Nil means nothing is done.
	Rebuild func(ctx context.Context, crd string, gr schema.GroupResource, served string)

	// Clock is the real one by default.
	Clock clock.Clock
	// Random makes IDs and jitter; seeded from the operating system by default.
	Random *rand.Rand
	// Metrics may be nil.
	Metrics *timing.Metrics
	// Logger is silent by default.
	Logger logr.Logger
}

func (c Config) withDefaults() Config {
	c.LeaseDuration = cmp.Or(c.LeaseDuration, DefaultLeaseDuration)
	c.RenewInterval = cmp.Or(c.RenewInterval, DefaultRenewInterval)
	c.WaitLimit = cmp.Or(c.WaitLimit, DefaultWaitLimit)
	c.Workers = cmp.Or(c.Workers, DefaultWorkers)
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Random == nil {
		var seed [32]byte
		// It never fails: the program ends instead.
		_, _ = crand.Read(seed[:])
		c.Random = rand.New(rand.NewChaCha8(seed))
	}
	return c
}

// Validate names the first field with which New cannot work. Zero values that have a
// default are valid.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Client == nil:
		return errors.New("member: Config.Client is missing")
	case c.Bury == nil && c.Erase == nil:
		return errors.New("member: Config.Bury is missing")
	case c.LeaseDuration < time.Second || c.LeaseDuration%time.Second != 0:
		return fmt.Errorf("member: the identity Lease's duration must be whole seconds, at least 1s, not %s", c.LeaseDuration)
	case c.RenewInterval <= 0 || c.RenewInterval > c.LeaseDuration/2:
		return fmt.Errorf("member: the identity Lease's renew interval must be positive and at most half of its duration of %s, not %s", c.LeaseDuration, c.RenewInterval)
	case c.Workers < 0:
		return fmt.Errorf("member: Config.Workers is negative: %d", c.Workers)
	}
	return nil
}

// Resource is one resource as this server reports it.
type Resource struct {
	GroupResource schema.GroupResource
	// Encoding is the group/version in which the server writes. SetEncryption sets its encryption.
	Encoding agree.Encoding
	// Decodable and Served are group/versions. Invariant: that of agree.Report.
	Decodable, Served []string
	// CRD is the name of the CustomResourceDefinition, empty for built-in resources.
	CRD string
}

func (r Resource) report(id agree.ServerID) agree.Report {
	return agree.Report{Server: id, Encoding: r.Encoding, Decodable: r.Decodable, Served: r.Served}
}

// Member is one server's registration, reports and permits. All methods may be called
// concurrently.
type Member struct {
	cfg   Config
	slots *semaphore.Weighted // of the attempts under way
	// limits says that attempts are cancelled after a time limit; see within.
	limits atomic.Bool

	// leaseMu serialises the writers of the identity Lease: Register, Renew and Depart.
	leaseMu sync.Mutex
	// unsure is the ID with which Register does not know whether it was registered.
	unsure string

	// mu guards the fields below and is never held during an API call.
	mu           sync.RWMutex
	registration registration
	departed     bool
	stop         context.CancelFunc // ends Run; nil while it does not run
	resources    map[schema.GroupResource]*state
	builtinsSet  bool
	inflight     int
	tickets      uint64        // of claims so far
	landed       chan struct{} // closed when departed and inflight is 0
	encryption   Encryption
	began        time.Time // when this registration was first wanted
	timed        bool      // its reports have been observed in Metrics
	agreement    *timing.Agreements
	gathered     time.Time // until when CRDs that come now are gathered; see gather

	unreported unreported // of the loop that renews

	wakeReports chan struct{} // capacity 1: something may be due
	wakeLease   chan struct{} // capacity 1: the Lease is to be written now
}

// New returns a Member that is not registered. It does nothing before it is asked to.
func New(cfg Config) (*Member, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return &Member{
		cfg:         cfg,
		slots:       semaphore.NewWeighted(int64(cfg.Workers)),
		resources:   map[schema.GroupResource]*state{},
		landed:      make(chan struct{}),
		began:       cfg.Clock.Now(),
		agreement:   timing.NewAgreements(),
		wakeReports: make(chan struct{}, 1),
		wakeLease:   make(chan struct{}, 1),
	}, nil
}

// SetBuiltins sets the persisted built-in resources. Call it once, before Run and before the server serves.
func (m *Member) SetBuiltins(rs []Resource) error {
	for _, r := range rs {
		if err := r.report("self").Validate(); err != nil {
			return fmt.Errorf("resource %s: %w", r.GroupResource, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range rs {
		r.Encoding = r.Encoding.Sealed(m.seal(r.GroupResource))
		s := newState(true)
		s.aim(target{resource: r, known: true})
		m.resources[r.GroupResource] = s
	}
	m.builtinsSet = true
	wake(m.wakeReports)
	return nil
}

// ID returns the ID of the current registration, empty while there is none.
func (m *Member) ID() agree.ServerID {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.registration.id
}

// wake leaves a note in a channel of capacity 1.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
