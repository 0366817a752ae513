package invariant

import (
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/sim/object"
	"github.com/concord-dev/concord/sim/registry"
	"github.com/concord-dev/concord/sim/script"
)

// StockDuration is for how long the Lease of a stock server lasts.
const StockDuration = time.Hour

// StockLingers is for how long after a stock server has deleted its Lease its writes still land, and
// for how long triggers wait for them.
const StockLingers = 10 * time.Second

const stockPrefix = "apiserver-stock"

// StockID is the ID of a stock server in a slot: made of its host's name, so always the same.
func StockID(slot int) agree.ServerID {
	return agree.ServerID(stockPrefix + strings.TrimPrefix(script.SlotName(slot), "s"))
}

func isStock(id agree.ServerID) bool { return strings.HasPrefix(string(id), stockPrefix) }

// StockLeases are the servers that have a Lease and do not report.
func (c *Checker) StockLeases() []*mvccpb.KeyValue {
	var found []*mvccpb.KeyValue
	c.store.Scan(registry.Leases.Prefix()+stockPrefix, func(kv *mvccpb.KeyValue) { found = append(found, kv) })
	return found
}

func idOf(lease *mvccpb.KeyValue) agree.ServerID {
	return agree.ServerID(strings.TrimPrefix(string(lease.Key), registry.Leases.Prefix()))
}

// noticed reports whether a StorageVersion shows that a server does not report.
func (c *Checker) noticed(sv *v1alpha1.StorageVersion, id agree.ServerID) bool {
	if sv == nil {
		return false
	}
	report, ok := agree.Of(c.read(sv).reports, id)
	return ok && report.Encoding == agree.Unknown
}

// judgeStock checks a stock server's put. While Unknown is reported for the server its writes are covered, because
// stored sets have Unknown. So are writes of a server that has deleted its Lease itself, as long as it lingers. At other
// times, for example when its Lease is new, or was deleted although the server lives, nothing is promised until Unknown
// is reported.
func (c *Checker) judgeStock(r *Write, res *object.Resource, key string) {
	sv, id := c.api.LookStorageVersion(res), StockID(r.By.Slot)
	if last, ok := c.lingering[r.By]; ok && sv != nil && c.Now < last.until && last.of[sv.UID] || c.noticed(sv, id) {
		return
	}
	c.unnoticed[key] = id
}

// lingering is a stock server that has deleted its Lease: the StorageVersions that said then that it
// does not report, by uid, and when it has ended its last write.
type lingering struct {
	of    map[types.UID]bool
	until time.Duration
}

// linger notes that a stock server has deleted its Lease.
func (c *Checker) linger(by *Server) {
	of := map[types.UID]bool{}
	for _, res := range object.All {
		if sv := c.api.LookStorageVersion(res); c.noticed(sv, StockID(by.Slot)) {
			of[sv.UID] = true
		}
	}
	c.lingering[by] = lingering{of: of, until: c.Now + StockLingers}
}

// judgeSilence checks a write of a StorageVersion whose writer has read the Leases:
// nothing is called agreed beside a Lease that was there before.
func (c *Checker) judgeSilence(r *Write, name string, after *v1alpha1.StorageVersion) {
	for _, lease := range c.StockLeases() {
		id := idOf(lease)
		switch {
		case c.noticed(after, id):
			c.forgive(name, id)
		case c.read(after).agreed && lease.CreateRevision <= r.Began:
			// I3 While commonEncodingVersion = v, every put that commits is in v.
			c.Violate("I3", "%s says that all agree beside %s, whose Lease was there when it began; %s", r.By, id, Describe(after))
		}
	}
}

// forgive ends the exception for the keys that a server wrote before Unknown was reported for it.
func (c *Checker) forgive(version string, id agree.ServerID) {
	for _, r := range object.All {
		if r.Version != version {
			continue
		}
		for key, by := range c.unnoticed {
			if by == id && strings.HasPrefix(key, r.Prefix) {
				delete(c.unnoticed, key)
			}
		}
	}
}
