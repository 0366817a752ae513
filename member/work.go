package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/workers"
)

const (
	backoffBase = 2 * time.Millisecond
	backoffCap  = 2 * time.Second
)

var (
	errStale = errors.New("the registration or the target changed meanwhile")
	errBusy  = errors.New("a report of the resource is under way")
)

// claim is the exclusive right to report one resource, and what to report.
type claim struct {
	gr     schema.GroupResource
	id     agree.ServerID
	target target
	seq    uint64
	verify bool
	gone   bool // a quorum read found no CRD
	// seen is the StorageVersion to report in, from the watch; nil if it has to be read.
	seen *v1alpha1.StorageVersion
	// ticket distinguishes this claim from later claims of the resource.
	ticket uint64
	// failures is how many attempts before this one failed in a row.
	failures int
}

// readFirst says whether the CRD has to be read before it is known what to report.
func (c claim) readFirst() bool { return c.verify || c.target.absent || !c.target.known }

// custom says whether the resource is defined by a CRD.
func (c claim) custom() bool { return c.target.resource.CRD != "" }

// result is the outcome of an attempt without an error.
type result int

const (
	done     result = iota
	reopened        // done, and open in another encoding than before: to be rebuilt
	placed          // the report stands, and the CRD is to be read before the resource opens
)

// Step makes one attempt for every resource that is due: it lists the StorageVersions, then the participants, then
// updates in parallel. It returns how long there will be nothing to do (negative if nothing is
// planned), and the first error of the attempts. An ErrLeaseGone precedes other errors: the server then has to
// register again. After an error the resource becomes due again by itself. The Step of a silent server deletes the
// StorageVersions.
func (m *Member) Step(ctx context.Context) (time.Duration, error) {
	if m.silent() {
		return -1, m.erase(ctx)
	}
	err := m.process(ctx, m.claimDue())
	return m.untilDue(), err
}

// claimDue claims the resources that are due. Mostly none is: readers, such as every write that asks
// for its permission, are not held up to find that out.
func (m *Member) claimDue() []claim {
	if m.untilDue() != 0 {
		return nil
	}
	now := m.cfg.Clock.Now()
	m.mu.Lock()
	defer m.mu.Unlock()
	var claims []claim
	for _, gr := range m.sorted(func(s *state) bool { return s.pending() && !now.Before(s.notBefore) }) {
		if c, err := m.claim(gr); err == nil {
			claims = append(claims, c)
		}
	}
	return claims
}

// claim takes a resource. The caller holds m.mu.
func (m *Member) claim(gr schema.GroupResource) (claim, error) {
	s := m.resources[gr]
	switch {
	case m.departed:
		return claim{}, errDeparted
	case m.registration.id == "":
		return claim{}, errUnregistered
	case s == nil:
		return claim{}, errUnknown
	case s.inflight:
		return claim{}, errBusy
	}
	s.inflight = true
	m.inflight++
	m.tickets++
	s.ticket = m.tickets
	return claim{ticket: s.ticket, gr: gr, id: m.registration.id, target: s.target, seq: s.seq, verify: s.verify, seen: s.newer(m.registration.id), failures: s.failures}, nil
}

// release gives claims back after an attempt. Those that failed together are due again
// together.
func (m *Member) release(claims []claim, err error) {
	if len(claims) == 0 {
		return // the last claim may have been given back, and this told, before
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	failures := 0
	for _, c := range claims {
		s := m.resources[c.gr]
		s.inflight = false
		m.inflight--
		if m.registration.id != c.id || errors.Is(err, errStale) {
			continue // due at once
		}
		if s.lastErr = err; err == nil {
			s.failures = 0
			continue
		}
		s.failures++
		failures = max(failures, s.failures)
	}
	if failures > 0 {
		at := m.cfg.Clock.Now().Add(m.backoffLocked(failures - 1))
		for _, c := range claims {
			if s := m.resources[c.gr]; s.failures > 0 {
				s.notBefore = at
			}
		}
	}
	again := false
	for _, c := range claims {
		s := m.resources[c.gr]
		if s.target.absent && s.done == s.seq {
			delete(m.resources, c.gr)
		}
		again = again || s.pending()
		s.notify()
	}
	if m.departed && m.inflight == 0 {
		close(m.landed)
	}
	if again {
		wake(m.wakeReports)
	}
}

// releaseHeld gives back those claims of an attempt that has panicked that it still held.
func (m *Member) releaseHeld(claims []claim, err error) {
	var held []claim
	m.mu.RLock()
	for _, c := range claims {
		if s := m.resources[c.gr]; s != nil && s.inflight && s.ticket == c.ticket {
			held = append(held, c)
		}
	}
	m.mu.RUnlock()
	m.release(held, err)
}

// untilDue returns the time until the next resource without a worker is due.
func (m *Member) untilDue() time.Duration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	next := time.Duration(-1)
	if m.departed || m.registration.id == "" {
		return next
	}
	now := m.cfg.Clock.Now()
	for _, s := range m.resources {
		if !s.inflight && s.pending() {
			if d := max(s.notBefore.Sub(now), 0); next < 0 || d < next {
				next = d
			}
		}
	}
	return next
}

// process works on claims and gives them all back.
func (m *Member) process(ctx context.Context, claims []claim) error {
	if m.worthLists(len(claims)) {
		return summary(m.reportMany(ctx, claims))
	}
	_, failed := m.each(ctx, claims, m.reportOne)
	return summary(failed)
}

// each makes one attempt per claim. It returns the claims that were placed, and gives back all others.
func (m *Member) each(ctx context.Context, claims []claim, attempt func(context.Context, claim) (result, error)) (kept []claim, failed []error) {
	outcomes := make([]outcome, len(claims))
	var wg sync.WaitGroup
	for i, c := range claims {
		// Fewer than Config.Workers attempts are under way, over all callers.
		if err := m.slots.Acquire(ctx, 1); err != nil {
			outcomes[i] = m.abandon(c, err)
			continue
		}
		if m.cfg.Workers == 1 || len(claims) == 1 {
			outcomes[i] = m.one(ctx, c, attempt)
			continue
		}
		wg.Go(func() { outcomes[i] = m.one(ctx, c, attempt) })
	}
	wg.Wait()
	for i, o := range outcomes {
		switch {
		case o.err != nil:
			failed = append(failed, o.err)
		case o.result == placed:
			kept = append(kept, claims[i])
		}
	}
	return kept, failed
}

type outcome struct {
	result result
	err    error
}

// one makes an attempt, with a slot that it gives back, as it does the claim unless it
// was placed.
func (m *Member) one(ctx context.Context, c claim, attempt func(context.Context, claim) (result, error)) outcome {
	var result result
	err := workers.Do(ctx, "member-report", func() error {
		return m.within(ctx, m.limit(c), func(ctx context.Context) (err error) {
			result, err = attempt(ctx, c)
			return err
		})
	})
	m.slots.Release(1)
	if err != nil {
		return m.abandon(c, err)
	}
	if result == placed {
		return outcome{result: placed}
	}
	m.release([]claim{c}, nil)
	if result == reopened {
		_ = workers.Do(ctx, "member-rebuild", func() error {
			return m.within(ctx, m.limit(c), func(ctx context.Context) error { m.rebuild(ctx, c); return nil })
		})
	}
	return outcome{}
}

func (m *Member) abandon(c claim, err error) outcome {
	m.release([]claim{c}, err)
	return outcome{err: fmt.Errorf("report %s: %w", c.gr, err)}
}

// summary returns the most important error and says how many more there were.
func summary(failed []error) error {
	if len(failed) == 0 {
		return nil
	}
	first := max(0, slices.IndexFunc(failed, func(err error) bool { return errors.Is(err, ErrLeaseGone) }))
	if len(failed) > 1 {
		return fmt.Errorf("%w, and %d more", failed[first], len(failed)-1)
	}
	return failed[first]
}

func (m *Member) rebuild(ctx context.Context, c claim) {
	r := c.target.resource
	if served := r.listable(); m.cfg.Rebuild != nil && served != "" {
		m.cfg.Rebuild(ctx, r.CRD, r.GroupResource, served)
	}
}

// backoff returns the delay after this number of failures: it doubles, with jitter, so that servers that start
// together do not conflict for ever.
func (m *Member) backoff(failures int) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.backoffLocked(failures)
}

func (m *Member) backoffLocked(failures int) time.Duration {
	const doublings = 10
	d := min(backoffBase<<min(failures, doublings), backoffCap)
	return d/2 + time.Duration(m.cfg.Random.Int64N(int64(d)))
}

// pause waits until d has passed, something is noted in the channel, or ctx ends. A
// negative d never passes.
func (m *Member) pause(ctx context.Context, d time.Duration, note <-chan struct{}) {
	var passed <-chan time.Time
	if d >= 0 {
		timer := m.cfg.Clock.NewTimer(d)
		defer timer.Stop()
		passed = timer.C()
	}
	select {
	case <-passed:
	case <-note:
	case <-ctx.Done():
	}
}
