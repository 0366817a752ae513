package invariant

import (
	"errors"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/sim/etcd"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// judgeObject checks a put of a user's object.
func (c *Checker) judgeObject(r *Write, res *object.Resource, e etcd.Event) {
	delete(c.madeFor, e.Key)
	delete(c.stray, e.Key)
	delete(c.unnoticed, e.Key)
	if e.KV == nil {
		return
	}
	if r.Role == script.Writing1 || r.Role == script.Writing2 {
		c.committed[object.Unmarshal(e.KV.Value).Data] = true
	}
	encoding := c.encodingOf(e.KV)
	sv := c.api.LookStorageVersion(res)
	c.unreported[e.Key] = r.By.Stock || r.By.Silent
	switch {
	case r.By.Stock:
		c.judgeStock(r, res, e.Key)
		return
	case r.By.Silent:
		c.judgeUnfenced(r, e.Key, encoding, sv)
		return
	}

	// I2 A put commits only while the StorageVersion holds the writer's report for the
	// encoding written. The writer is a registration: a process can have had several.
	if sv == nil || !slices.ContainsFunc(c.read(sv).reports, func(report agree.Report) bool {
		return report.Server == r.ID && report.Encoding == encoding
	}) {
		c.Violate("I2", "%s wrote %s in %s without a report for it; %s", r.By, e.Key, encoding, Describe(sv))
		return
	}

	// I3 While commonEncodingVersion = v, every put that commits is in v.
	if says := c.read(sv); says.agreed && says.common != encoding {
		c.Violate("I3", "%s wrote %s in %s; %s", r.By, e.Key, encoding, Describe(sv))
	}

	// I5 Migration never changes an object's content, and never undoes a concurrent write.
	if r.Role.Rewrites() {
		c.judgeRewrite(r, e, encoding)
	}
	if res.Custom {
		c.madeFor[e.Key] = storageversion.MadeFor(sv)
		if crd := c.api.LookDefinition(); crd != nil && c.ended[sv.UID] {
			c.madeFor[e.Key] = crd.UID
		}
	}
}

// JudgeHosted checks a put of an object by a replica of an aggregated API server against what its host says.
func (c *Checker) JudgeHosted(r *Write, e etcd.Event) {
	i := slices.IndexFunc(object.All[:], func(res *object.Resource) bool { return strings.HasPrefix(e.Key, res.Prefix) })
	if i < 0 || e.KV == nil {
		return
	}
	sv := c.api.LookStorageVersion(object.All[i])
	if sv == nil || len(c.read(sv).reports) == 0 {
		return // nobody agrees
	}
	encoding, says := c.encodingOf(e.KV), c.read(sv)
	// I3 While commonEncodingVersion = v, every put that commits is in v.
	if says.agreed && says.common != encoding {
		c.Violate("I3", "%s wrote %s in %s; in the host: %s", r.By, e.Key, encoding, Describe(sv))
	}
	// I2 A put commits only while some report has its encoding, or an unknown one.
	if !slices.ContainsFunc(says.reports, func(report agree.Report) bool { return report.Encoding == encoding || report.Encoding == agree.Unknown }) {
		c.Violate("I2", "%s wrote %s in %s, which nobody reports; in the host: %s", r.By, e.Key, encoding, Describe(sv))
	}
}

// Answered checks the answer to a client's write:
// I9 An acknowledged write was written, and a committed write is not answered as one that found another object, or none.
func (c *Checker) Answered(what, data string, err error) {
	switch committed := c.committed[data]; {
	case err == nil && !committed:
		c.Violate("I9", "%s is acknowledged and was not written", what)
	case committed && (errors.Is(err, object.ErrExists) || errors.Is(err, object.ErrNotFound) || errors.Is(err, object.ErrBusy)):
		c.Violate("I9", "%s was written and is answered: %v", what, err)
	}
}

// judgeUnfenced checks a put of a server whose gate is off. Such a server has no report (I2), and storedVersions are
// not kept for it (I8). There is no agreement as long as its Lease exists.
func (c *Checker) judgeUnfenced(r *Write, key string, encoding agree.Encoding, sv *v1alpha1.StorageVersion) {
	if declared, once := c.declared(r.By); !declared && once {
		c.stray[key] = true
		return
	}
	// I3 While commonEncodingVersion = v, every put that commits is in v.
	if sv == nil {
		return
	}
	if says := c.read(sv); says.agreed && says.common != encoding {
		c.Violate("I3", "%s, whose gate is off, wrote %s in %s; %s", r.By, key, encoding, Describe(sv))
	}
}

// declared says whether everybody can know that a process's gate is off: a Lease of its
// exists for which the StorageVersions were deleted. once says whether that was so before.
func (c *Checker) declared(s *Server) (declared, once bool) {
	for id := range c.erasures {
		if c.Owner[id] == s {
			once = true
			declared = declared || c.api.Look(registry.Leases, string(id)) != nil
		}
	}
	return declared, once
}

// older reports whether a server is older than one that took part before its task began.
func (c *Checker) older(r *Write) bool {
	found := false
	c.store.Scan(registry.Leases.Prefix(), func(kv *mvccpb.KeyValue) {
		owner := c.Owner[agree.ServerID(strings.TrimPrefix(string(kv.Key), registry.Leases.Prefix()))]
		found = found || owner != nil && owner.Release.Emulates > r.By.Release.Emulates && kv.CreateRevision <= r.Began
	})
	return found
}

// judgeRewrite compares the value that a migrator wrote with the one before it. The content of
// a value that already is in the encoding is not touched at all; a field that the
// release does not know may be lost with another encoding only, and not while a newer
// server takes part.
func (c *Checker) judgeRewrite(r *Write, e etcd.Event, encoding agree.Encoding) {
	if e.Prev == nil {
		c.Violate("I5", "a rewrite by %s brought back %s, which was deleted", r.By, e.Key)
		return
	}
	before, after := object.Unmarshal(e.Prev.Value), object.Unmarshal(e.KV.Value)
	switch {
	case before.Data != after.Data:
		c.Violate("I5", "a rewrite by %s changed %s from write %s to write %s", r.By, e.Key, before.Data, after.Data)
	case before.Broken:
		c.Violate("I5", "a rewrite by %s wrote %s, which it cannot decode", r.By, e.Key)
	case before.Future != after.Future && (c.encodingOf(e.Prev) == encoding || r.By.Release.Knows || strings.HasPrefix(e.Key, object.Widgets.Prefix) || c.older(r)):
		c.Violate("I5", "a rewrite by %s lost a field of %s", r.By, e.Key)
	}
}
