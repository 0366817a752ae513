package invariant

import (
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// judgeLease keeps account of renewals and checks which process deletes a Lease.
func (c *Checker) judgeLease(r *Write, e etcd.Event) {
	if e.KV != nil {
		lease := c.api.View(e.KV).(*coordinationv1.Lease)
		id := agree.ServerID(lease.Name)
		c.renewed[id] = renewal{c.Available, c.Outages}
		if r != nil && (c.Owner[id] == nil || r.By.Stock) {
			c.Owner[id] = r.By
		}
		return
	}
	// I6 The report of a server that renewed its Lease within the duration is never
	// collected: so neither is its Lease, which would have its reports dropped. Time in which
	// etcd took no renewals does not count.
	id := agree.ServerID(c.api.View(e.Prev).GetName())
	if r != nil && r.By.Stock {
		c.linger(r.By)
	}
	if r != nil && r.Role == script.Collecting && c.alive(id, r.By) {
		c.Violate("I6", "%s deleted the Lease of %s, who is %s and renewed it %s before", r.By, id, c.Owner[id], c.Available-c.renewed[id].available)
	}
}

// alive reports whether a server renewed its Lease within its duration, less the time by which the collector may be
// wrong: the drift of two clocks, two intervals for each time that the collector's clock was set forward and, by design,
// a third of the Lease's duration for each outage of etcd, because a put that was seen proves for that long that puts
// work.
func (c *Checker) alive(id agree.ServerID, by *Server) bool {
	renewed, known := c.renewed[id]
	outages, duration := c.Outages-renewed.outages, LeaseDuration
	if isStock(id) {
		duration = StockDuration
	}
	allowance := time.Duration(float64(duration)*2*MaxDrift) +
		time.Duration(by.Jumped)*2*CollectInterval + time.Duration(outages)*duration/3
	return known && c.Available-renewed.available < duration-allowance
}

// judgeReports checks which reports a write of a StorageVersion drops.
func (c *Checker) judgeReports(r *Write, e etcd.Event) {
	c.noteEnd(r, e)
	if e.Prev == nil {
		return
	}
	before := c.api.View(e.Prev).(*v1alpha1.StorageVersion)
	if crd := c.api.LookDefinition(); e.KV == nil && r.Role == script.Reporting && (crd == nil || crd.UID != storageversion.MadeFor(before) || r.By.Silent) {
		return // a definition's end takes all reports with it, and so does a server whose gate is off
	}
	var kept []agree.Report
	if e.KV != nil {
		after := c.api.View(e.KV).(*v1alpha1.StorageVersion)
		kept = c.read(after).reports
		if crd := c.api.LookDefinition(); storageversion.MadeFor(after) == "" || crd != nil && crd.UID == storageversion.MadeFor(after) {
			c.judgeSilence(r, after.Name, after)
		}
	}
	for _, report := range c.read(before).reports {
		if e.KV == nil && report.Encoding == agree.Unknown {
			continue // others made it, and do so again in the next StorageVersion
		}
		if lease := c.store.Lookup(registry.KeyOf(registry.Leases, string(report.Server))); lease != nil && isStock(report.Server) && lease.CreateRevision > r.Began {
			continue // this Lease was made after the task began: the one before, of the same name, was gone
		}
		_, stays := agree.Of(kept, report.Server)
		owner := c.Owner[report.Server]
		// I6 The report of a server that renewed its Lease within the duration is never collected.
		if !stays && owner != r.By && c.api.Look(registry.Leases, string(report.Server)) != nil && c.alive(report.Server, r.By) {
			c.Violate("I6", "%s dropped the report of %s, who is %s and has a Lease", r.By, report, owner)
		}
	}
}

// noteEnd notes a write of a StorageVersion by a server that knows that its definition
// has come to its end.
func (c *Checker) noteEnd(r *Write, e etcd.Event) {
	if e.KV == nil || r.Role != script.Reporting {
		return
	}
	if sv := c.api.View(e.KV).(*v1alpha1.StorageVersion); r.Ended != "" && storageversion.MadeFor(sv) == r.Ended {
		c.ended[sv.UID] = true
	}
}
