package sim

import (
	"context"
	"slices"
	"time"

	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/member/hosting"
	"github.com/concord-dev/concord/sim/invariant"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// A world with a host is that of an aggregated API server. Its servers are replicas, which store their objects in the
// world's own etcd, report there, and report to the host. That is a world, too, whose servers store no objects: they
// collect, agree, and migrate the replicas' objects through the replicas.

// newHost returns the host of a world.
func newHost(guest *World) *World {
	h := NewWorld(script.Config{Slots: guest.config.Host, Page: 1, Txn: 1, Under: 1, Lag: guest.config.Lag}, guest.trace)
	h.guest = guest
	h.checker = invariant.New(h.store, guest.store, h.api, func(v invariant.Violation) { guest.checker.Violate(v.Invariant, "%s", v.What) })
	return h
}

// replica is what a process that serves an aggregated API has in addition: its part in the host.
type replica struct {
	host *hosting.Host
	cut  bool // it does not reach the host
	// member reports to the host until running ends; nil: none does.
	member  *member.Member
	running context.Context
	// ends says that the process withdraws its reports to the host.
	ends bool

	// By the world's time; reportAt is negative for never.
	stepAt, sweepAt, renewAt, retryAt, reportAt time.Duration
	idle                                        bool // nothing has happened since a Step found nothing to report
}

const (
	hostRenewInterval = 10 * time.Second // hosting's least
	stepInterval      = 100 * time.Millisecond
	sweepInterval     = time.Second
)

// newReplica makes a process's part in the host.
func (p *Process) newReplica() {
	p.replica = &replica{}
	p.replica.host = hosting.New(hosting.Config{
		Objects: apiClient{p: p, to: p.w.host}, Serves: p.asks, Drive: p.report, Clock: &p.clock, Random: p.random, Workers: 1,
		Versions: member.Versions{Binary: p.Release.Emulates, Emulation: p.Release.Emulates, MinCompatibility: p.Release.Emulates},
	})
	p.replica.host.Follow(p.member, apiClient{p: p})
	p.replica.host.Reports = p.builtins()
}

// asks is the question whether the host serves StorageVersions, which it does.
func (p *Process) asks(ctx context.Context) (bool, error) {
	err := p.call(ctx, &request{to: p.w.host, asks: true, verb: "get", kind: registry.Kinds, name: "discovery", apply: func(*World, *request) error { return nil }})
	return err == nil, err
}

// report has another member report to the host.
func (p *Process) report(ctx context.Context, m *member.Member) {
	r, now := p.replica, p.w.now
	r.member, r.running, r.idle = m, ctx, false
	r.renewAt, r.retryAt, r.reportAt = now, now, -1
	p.cursors[script.SeeHostLeases], p.cursors[script.SeeHostVersions] = -1, -1
}

// reporting says whether there is a member that reports to the host.
func (r *replica) reporting() bool {
	return r != nil && r.member != nil && r.running.Err() == nil && !r.ends
}

// hosts says whether a replica would start a task of its part in the host now.
func (p *Process) hosts(role script.Role) bool {
	r, now := p.replica, p.w.now
	switch role {
	case script.Hosting:
		return !p.leaving && now >= r.stepAt
	case script.Sweeping:
		return !p.leaving && p.leads && now >= r.sweepAt
	case script.HostLeasing:
		waits := r.reporting() && (r.member.ID() == "" || r.member.AllReported() && !r.member.Announced())
		return r.reporting() && (now >= r.renewAt || waits && now >= r.retryAt)
	case script.HostReporting:
		return r.reporting() && r.member.ID() != "" && (!r.idle || r.reportAt >= 0 && now >= r.reportAt)
	default: // Patching: the host begins it
		return false
	}
}

func (p *Process) hostBody(ctx context.Context, role script.Role) func() error {
	r := p.replica
	m, running := r.member, r.running
	switch role {
	case script.Hosting:
		return func() error { r.host.Step(ctx); return nil }
	case script.Sweeping:
		return func() error { return r.host.Sweep(ctx) }
	case script.HostLeasing:
		return func() error {
			if m.ID() == "" {
				return m.Register(running)
			}
			return m.Renew(running)
		}
	default: // HostReporting
		return func() error {
			wait, err := m.Step(running)
			r.reportAt = -1
			if wait >= 0 {
				r.reportAt = p.w.now + wait + time.Microsecond // the clock's resolution
			}
			return err
		}
	}
}

// finished is called when a task of the part in the host has ended by itself.
func (r *replica) finished(t *Task, now time.Duration) {
	switch t.role {
	case script.Hosting:
		r.stepAt = now + stepInterval
	case script.Sweeping:
		r.sweepAt = now + sweepInterval
	case script.HostLeasing:
		r.renewAt, r.retryAt, r.idle = now+hostRenewInterval, now+stepInterval, false
		if t.failed != nil {
			r.renewAt = r.retryAt
		}
	case script.HostReporting:
		r.idle = t.calls == 0
	}
}

// depart takes the reports back. The member in the host begins nothing any more: its renewals would be waited for.
func (p *Process) depart(ctx context.Context) error {
	if p.replica == nil {
		return p.member.Depart(departing{ctx, p})
	}
	p.replica.ends = true
	p.await(func() bool { return p.tasks[script.HostLeasing] == nil })
	return p.replica.host.Depart(departing{ctx, p})
}

// deleteHostLease has an administrator delete the Lease in the host of a replica that has ended, none of whose writes is
// under way any more.
func (p *Process) deleteHostLease() bool {
	if !p.gone || p.replica.member == nil || slices.ContainsFunc(p.w.late, func(r *request) bool { return r.sender == p && r.to == p.w }) {
		return false
	}
	done := p.w.host.remove(registry.KeyOf(registry.Leases, string(p.replica.member.ID())))
	p.w.host.observe(nil)
	return done
}

// cutFrom says whether the process does not reach a world.
func (p *Process) cutFrom(w *World) bool {
	if w == p.w {
		return p.cut
	}
	return p.replica.cut
}

// hostedRest is Rest of a world with a host: there is agreement there, only on what replicas report that run, and every
// replica can write.
func (w *World) hostedRest() invariant.Reason {
	if why := w.host.checker.Rest(w.release().Stores); why != nil {
		return why
	}
	running := 0
	for _, p := range w.slots {
		if p == nil || p.gone {
			continue
		}
		running++
		if err := p.replica.host.Ready(); err != nil || p.member.Ready() != nil {
			return func() string { return p.String() + " cannot write: " + err.Error() }
		}
	}
	if sv := w.host.api.LookStorageVersion(object.Things); len(sv.Status.StorageVersions) != running {
		return func() string { return "reports are left of replicas that are gone: " + invariant.Describe(sv).String() }
	}
	return nil
}
