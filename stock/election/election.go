// Package election elects one process of concord controllers, in one namespace of all in which they run.
package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

const (
	// lock is the Lease by which one process is elected. It is not that of Concord
	// servers, whose controllers it must not keep from working.
	lock = "concord-controllers-stock"
	// The usual times of an election.
	lasts         = 15 * time.Second
	renewDeadline = 10 * time.Second
	retry         = 2 * time.Second
)

// errDeposed says that this process is not elected any more. Another one may be.
var errDeposed = errors.New("the election was lost: its Lease could not be renewed in time, or another process has it; start this one again")

// Config is what an Election needs.
type Config struct {
	Kube kubernetes.Interface
	// Namespace has the Lease of the election, and Instance is the holder identity of this process.
	Namespace, Instance string
	Clock               clock.PassiveClock
	// Await repeats try until it succeeds, logs why it does not, and returns ctx's error.
	Await func(ctx context.Context, try func(context.Context) error) error
	// Lead works until ctx ends.
	Lead func(ctx context.Context) error
}

// Election is one process's part in it.
type Election struct {
	config Config
	ballot ballot
}

// New returns an Election that has not begun.
func New(config Config) *Election { return &Election{config: config} }

// Campaign runs for election once no process is elected in another namespace, and leads once. It returns when
// until ends or, with an error, when the election is lost; then the process should end.
func (e *Election) Campaign(until context.Context) error {
	ctx, cancel := context.WithCancel(until)
	defer cancel()
	others := e.newRivals()
	if e.config.Await(ctx, func(ctx context.Context) error { return others.none(ctx, false) }) != nil {
		return nil // ctx has ended
	}
	e.ballot.Interface = &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.config.Namespace, Name: lock},
		Client:     e.config.Kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: e.config.Instance},
	}
	led := make(chan error, 1)
	var leading, lost atomic.Bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &e.ballot, LeaseDuration: lasts, RenewDeadline: renewDeadline, RetryPeriod: retry,
		ReleaseOnCancel: true, Name: lock,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				leading.Store(true)
				err := e.leadAlone(ctx, others)
				lost.Store(ctx.Err() != nil) // before it ended by itself
				led <- err
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("election: %w", err)
	}
	elector.Run(ctx)
	if !leading.Load() {
		return nil // ctx has ended
	}
	if err = <-led; lost.Load() && until.Err() == nil {
		return errors.Join(errDeposed, err)
	}
	return err
}

// ballot is the Lease of the election. It records missing rights on the Lease and refused tokens: with these this
// process cannot be elected.
type ballot struct {
	resourcelock.Interface

	mu sync.Mutex
	// unread and unwritten are why the last read and the last write were refused, because a right is missing or the
	// token is not valid; nil if they were not.
	unread, unwritten error
}

// Get implements resourcelock.Interface. While another process has the Lease this one writes nothing: what it
// was forbidden before may be allowed by now.
func (b *ballot) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := b.Interface.Get(ctx)
	if err == nil && record.HolderIdentity != "" && record.HolderIdentity != b.Identity() {
		_ = b.note(&b.unwritten, nil)
	}
	return record, raw, b.note(&b.unread, err)
}

// Create implements resourcelock.Interface.
func (b *ballot) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return b.note(&b.unwritten, b.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (b *ballot) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return b.note(&b.unwritten, b.Interface.Update(ctx, record))
}

func (b *ballot) note(last *error, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *last = nil; apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		*last = err
	}
	return err
}

// Forbidden is why this process cannot be elected; nil if it is not known to be refused the Lease.
func (e *Election) Forbidden() error { return e.ballot.forbidden() }

func (b *ballot) forbidden() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.unread, b.unwritten)
}
