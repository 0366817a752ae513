// Package collect removes what servers leave behind (KEP-2339, "Garbage collection"):
// identity Leases that are not renewed, reports whose server has no Lease,
// and StorageVersions without reports. It reports Unknown for servers that do not report
// where the others have not done so. Every server observes the Leases, so that a new
// leader need not start counting; only the leader acts.
package collect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

const (
	// DefaultInterval is Config.Interval's default.
	DefaultInterval = time.Second
	// DefaultWorkers is Config.Workers' default.
	DefaultWorkers = 8

	// resync is how often everything is looked through although nothing seems to have changed.
	resync = time.Minute
	// keepVacant is how long a StorageVersion of an aggregated server is kept without reports: for
	// as long as such a server may take to be replaced on another node.
	keepVacant = 10 * time.Minute
	// unstatedDuration is taken for a Lease that states none: that of kube-apiserver.
	unstatedDuration = time.Hour
)

// Config configures a Collector.
type Config struct {
	// Client reaches the API uncached. Its scheme knows Leases and StorageVersions.
	Client client.WithWatch
	// Interval is the time between two observations.
	Interval time.Duration
	// Workers is how many StorageVersions are written at once. With 1 everything happens
	// in the goroutine of the caller.
	Workers int
	// Clock is the real one by default.
	Clock clock.Clock
	// Logger is silent by default.
	Logger logr.Logger
}

// Collector observes and collects. Bury may be called concurrently with everything else;
// the other methods belong to one goroutine.
type Collector struct {
	cfg      Config
	liveness agree.Liveness
	// observed is when the last observation was begun, zero if it failed, and answered
	// when it had its answer.
	observed, answered time.Time

	// The fields below save looking through all StorageVersions when nothing changed.
	watched atomic.Bool // the watch has listed all StorageVersions
	touched atomic.Bool // some StorageVersion changed since the last sweep
	swept   time.Time   // when the last sweep left nothing to do; zero: it did not
	seen    string      // the Leases at that time

	vacant map[string]vacancy // see keep
}

// New returns a Collector that has observed nothing.
func New(cfg Config) *Collector {
	cfg.Interval = cmp.Or(cfg.Interval, DefaultInterval)
	cfg.Workers = cmp.Or(cfg.Workers, DefaultWorkers)
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Collector{cfg: cfg}
}

// Step observes the Leases once and, for a leader, collects. If the Leases cannot be
// read nothing is done: an error means unknown, never gone.
func (c *Collector) Step(ctx context.Context, leader bool) error {
	leases, err := c.observe(ctx)
	if err != nil {
		return err
	}
	if !leader {
		c.swept = time.Time{}
		return nil
	}
	err = c.expire(ctx)
	if !c.sweepDue(leases) {
		return err
	}
	return errors.Join(err, c.sweepAll(ctx, leases))
}

// observe lists the Leases and counts the time since the answer to the last observation, but at most two intervals of
// it, because a Lease may have been renewed while that answer was on its way. Leases of aggregated servers are not
// judged here; Leases of upstream's code in Concord processes are, since nobody else deletes them after a crash. After
// a failure, a pause of this process or a slow answer, in which renewals may have been impossible, all counts restart.
func (c *Collector) observe(ctx context.Context) ([]coordinationv1.Lease, error) {
	begun := c.cfg.Clock.Now()
	previous := c.observed
	c.observed = time.Time{}
	leases, err := c.identities(ctx)
	if err != nil {
		c.liveness.Forget()
		return nil, err
	}
	beats := make([]agree.Beat, 0, len(leases))
	for i := range leases {
		if !storageversion.IsAggregated(&leases[i]) {
			beats = append(beats, beat(&leases[i]))
		}
	}
	var gap, silent time.Duration
	if !previous.IsZero() {
		gap = begun.Sub(previous)
		silent = min(gap, begun.Sub(c.answered)) // the clock may have been set back before the answer
	}
	if gap < 0 || gap > c.longestGap(beats) {
		c.liveness.Forget()
	}
	c.liveness.Observe(min(silent, 2*c.cfg.Interval), beats)
	c.observed, c.answered = begun, c.cfg.Clock.Now()
	return storageversion.Servers(leases), nil
}

// longestGap is how far two observations may lie apart to be contiguous: a third of the
// shortest Lease's duration. The work of a leader between them takes time, too.
func (c *Collector) longestGap(beats []agree.Beat) time.Duration {
	shortest := time.Duration(0)
	for i, b := range beats {
		if i == 0 || b.Duration < shortest {
			shortest = b.Duration
		}
	}
	return max(2*c.cfg.Interval, shortest/3)
}

func beat(lease *coordinationv1.Lease) agree.Beat {
	b := agree.Beat{
		Server:          agree.ServerID(lease.Name),
		UID:             string(lease.UID),
		ResourceVersion: lease.ResourceVersion,
		Duration:        duration(lease),
	}
	if renewed := lease.Spec.RenewTime; renewed != nil {
		b.Renewed = strconv.FormatInt(renewed.UnixMicro(), 10)
	} else {
		b.Renewed = "untold " + lease.ResourceVersion // any write may be the renewal
	}
	return b
}

func duration(lease *coordinationv1.Lease) time.Duration {
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil && *seconds > 0 {
		return time.Duration(*seconds) * time.Second
	}
	return unstatedDuration
}

// leases lists the identity Leases that stand for servers.
func (c *Collector) leases(ctx context.Context) ([]coordinationv1.Lease, error) {
	identities, err := c.identities(ctx)
	return storageversion.Servers(identities), err
}

// identities lists all identity Leases.
func (c *Collector) identities(ctx context.Context) ([]coordinationv1.Lease, error) {
	var list coordinationv1.LeaseList
	if err := c.cfg.Client.List(ctx, &list, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities}); err != nil {
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	return list.Items, nil
}

// expire deletes the Leases that were not renewed, each only as it was observed. The
// sweep that follows buries their owners.
func (c *Collector) expire(ctx context.Context) error {
	var failed []error
	for _, b := range c.liveness.Expired() {
		uid, resourceVersion := types.UID(b.UID), b.ResourceVersion
		err := c.deleteLease(ctx, b.Server, client.Preconditions{UID: &uid, ResourceVersion: &resourceVersion})
		switch {
		case err == nil:
			c.swept = time.Time{} // its reports are garbage now
			c.cfg.Logger.Info("Deleted an identity Lease that was not renewed", "server", b.Server, "duration", b.Duration)
		case apierrors.IsConflict(err): // renewed after all
		default:
			failed = append(failed, err)
		}
	}
	return errors.Join(failed...)
}

// deleteLease returns nil if the Lease does not exist afterwards.
func (c *Collector) deleteLease(ctx context.Context, id agree.ServerID, options ...client.DeleteOption) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: string(id), Namespace: storageversion.IdentityNamespace}}
	if err := c.cfg.Client.Delete(ctx, lease, options...); err != nil && !storageversion.IsGone(err) {
		return fmt.Errorf("delete identity Lease %s: %w", id, err)
	}
	return nil
}

// sweepDue says whether there may be something to collect.
func (c *Collector) sweepDue(leases []coordinationv1.Lease) bool {
	return !c.watched.Load() || c.touched.Load() || c.swept.IsZero() ||
		c.seen != c.fingerprint(leases) || c.cfg.Clock.Since(c.swept) >= resync
}

func (c *Collector) sweepAll(ctx context.Context, leases []coordinationv1.Lease) error {
	c.swept = time.Time{}
	c.touched.Store(false)
	begun := c.cfg.Clock.Now()
	if err := c.sweep(ctx, sweeping{removeEmpty: true}); err != nil {
		return err
	}
	c.swept, c.seen = begun, c.fingerprint(leases)
	return nil
}

// fingerprint holds the facts about the Leases that a sweep depends on.
func (c *Collector) fingerprint(leases []coordinationv1.Lease) string {
	lines := make([]string, 0, len(leases))
	for i := range leases {
		line := leases[i].Name
		if c.starting(&leases[i]) {
			line += " starting"
		}
		if storageversion.Holds(&leases[i]) {
			line += " holds"
		}
		if why := storageversion.SilenceOf(&leases[i]); why != "" {
			line += " silent: " + string(why)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// starting reports whether a server of the control plane may be about to report; a silent server never is. A server
// that does not say that it has reported everything, long after it was registered, is not waited for: its later
// reports need no help.
func (c *Collector) starting(lease *coordinationv1.Lease) bool {
	return lease.Annotations[storageversion.ReportedAnnotation] != "true" && storageversion.SilenceOf(lease) == "" && !storageversion.IsAggregated(lease) &&
		c.cfg.Clock.Since(lease.CreationTimestamp.Time) <= duration(lease)
}
