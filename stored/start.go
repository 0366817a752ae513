package stored

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/compat"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/workers"
)

const (
	// AllowFlag, with its usage, is the way around the check of a start.
	AllowFlag  = "allow-undecodable-storage"
	AllowUsage = "Start although objects may be stored that this server cannot decode. Such an object cannot be read, and every list of its resource fails."

	// CheckTimeout bounds how long a server that starts, or loads other keys, reads what is
	// stored.
	CheckTimeout = 10 * time.Second
	// atOnce is how many resources are asked for at a time.
	atOnce = 8
	// othersPoll is how often a starting server looks whether those it waits for are alive.
	othersPoll = 200 * time.Millisecond
	// namedInLog is how many resources a log line names.
	namedInLog = 5
	// decodeTimeout bounds how long a starting server looks for values that do not decode.
	decodeTimeout = 2 * time.Second
	// namedUndecodable is how many of them it logs, each in a line.
	namedUndecodable = 100
)

// Keys are the keys that a server opens stored values with (package keyring).
type Keys interface {
	// Opening returns a reader that opens StorageStates, so that they can be read as if nothing was encrypted.
	Opening(reader migratestore.Reader, layout Layout) migratestore.Reader
	// CheckStored says why a server with these keys could not open what is stored. known
	// are the built-in resources.
	CheckStored(ctx context.Context, reader migratestore.Reader, layout Layout, sets Sets, known []schema.GroupResource) error
	// CheckOthers says why a server must not work with these keys yet: a living server other than self
	// could not read what it writes, or writes what it could not read.
	CheckOthers(ctx context.Context, reader migratestore.Reader, layout Layout, known []schema.GroupResource, self agree.ServerID, poll time.Duration) error
}

// Start is a server that is about to start.
type Start struct {
	// Layout is where the cluster's objects are.
	Layout Layout
	// Target describes what the server can decode.
	Target *compat.Target
	// Keys are the server's decryption keys. Required; those of a server without encryption read unencrypted values.
	Keys Keys
	// Decode says why the server could not decode a value that is not encrypted; nil tries none.
	Decode migratestore.Verify
	// Allow has it start whatever is stored (AllowFlag).
	Allow bool
}

// Check refuses to start a server that cannot decode or open what may be stored
// (KEP-2343, "Implications to cluster operators"), or that would encrypt with a key that
// another server cannot read, or could not read what another server encrypts. The error is one line that names the
// resources, their
// encodings or keys, and what to do. It reads the stored sets straight from etcd, and raw
// values only where these do not say enough: of built-in resources whose stored set is not
// known, or names encodings that the server cannot decode, and of any resource, also a custom one, whose
// stored set is not known or has a key that is not among the server's. That takes at most CheckTimeout for the
// encodings, and once more for the keys. An
// open question, such as the encoding of a damaged value, does not keep the server from starting;
// for built-in resources it is logged. But where the stored set has a key that is not among the server's,
// not to have read all values in that time is a reason to refuse. With Allow nothing is.
//
// At last it looks for values that do not decode, whatever they say of their encoding, as many
// as it can read in decodeTimeout, and logs their keys: it starts, but lists of their resources
// will fail.
func (s Start) Check(ctx context.Context, etcd migratestore.Reader) error {
	reader := s.Keys.Opening(etcd, s.Layout)
	err := s.refuseStored(ctx, reader, func(ctx context.Context) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, CheckTimeout)
	})
	if err == nil {
		err = s.Keys.CheckOthers(ctx, reader, s.Layout, s.Target.Resources(), "", othersPoll)
	}
	if err != nil && s.Allow {
		klog.FromContext(ctx).Error(err, "STARTING ALTHOUGH STORED OBJECTS MAY BE UNDECODABLE, as --"+AllowFlag+" says: they cannot be read, and lists of their resources fail")
		err = nil
	}
	if err == nil && s.Decode != nil {
		s.nameUndecodable(ctx, etcd)
	}
	return err
}

// nameUndecodable logs the keys of values that do not decode.
func (s Start) nameUndecodable(ctx context.Context, etcd migratestore.Reader) {
	limited, cancel := context.WithTimeout(ctx, decodeTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	found := 0
	prefix := "/" + strings.Trim(s.Layout.Prefix, "/") + "/"
	err := migratestore.Walk(limited, etcd, prefix, func(e migratestore.Entry) error {
		_, encrypted := migratestore.Encryption(e.Value)
		isObject := strings.Contains(strings.TrimPrefix(e.Key, prefix), "/")
		if encrypted || !isObject {
			return limited.Err()
		}
		if err := s.Decode.Why(e.Value); err != nil {
			if found++; found <= namedUndecodable {
				logger.Error(err, "A stored value does not decode, so that lists of its resource fail", "key", e.Key)
			}
		}
		return limited.Err()
	})
	switch {
	case found > 0:
		logger.Info("Stored values do not decode; docs/faults.md says how to delete them", "values", found, "readAll", err == nil)
	case limited.Err() != nil && ctx.Err() == nil:
		logger.V(2).Info("Not all stored values could be decoded in time; concord census --verify does", "time", decodeTimeout)
	}
}

// refuseStored says why the server could not decode what is stored, or could not open it: for each it
// reads until the end of a context that limited makes.
func (s Start) refuseStored(ctx context.Context, reader migratestore.Reader, limited func(context.Context) (context.Context, context.CancelFunc)) error {
	decoding, cancel := limited(ctx)
	defer cancel()
	sets, err := ReadSets(decoding, reader, s.Layout.Prefix)
	if err != nil {
		return fmt.Errorf("what is stored cannot be read, so that nobody can tell whether this server decodes it (--%s starts it all the same): %w", AllowFlag, err)
	}
	if err := refuseUndecodable(decoding, sets, reader, s.Layout, s.Target); err != nil {
		return err
	}
	ctx, cancel = limited(ctx)
	defer cancel()
	return s.Keys.CheckStored(ctx, reader, s.Layout, sets, s.Target.Resources())
}

// refuseUndecodable says why the target could not decode what is stored.
func refuseUndecodable(ctx context.Context, sets Sets, reader migratestore.Reader, layout Layout, target *compat.Target) error {
	var stored, uncounted []compat.Stored
	for _, gr := range target.Resources() {
		// A remembered encoding may be gone: its objects are counted before a server is refused for it.
		if set := sets.Of(gr); set.Unknown || target.Judge(set).Verdict == compat.Unsafe {
			uncounted = append(uncounted, set)
		} else {
			stored = append(stored, set)
		}
	}
	countSmallFirst(ctx, reader, layout, sets, uncounted)
	var undecodable, untold, stranded []string
	migrates := false // a release migrates some of it
	for _, set := range append(stored, uncounted...) {
		switch f := target.Judge(set); f.Verdict {
		case compat.Unsafe:
			undecodable = append(undecodable, fmt.Sprintf("%s as %s", f.Resource, strings.Join(f.Undecodable, ", ")))
			for _, e := range f.Undecodable {
				if !target.Stranded(set.Resource, e) {
					migrates = true
				} else if !slices.Contains(stranded, e) {
					stranded = append(stranded, e)
				}
			}
		case compat.CouldNotTell:
			untold = append(untold, f.Resource+": "+f.Reason)
		case compat.Safe:
		}
	}
	if n := len(untold); n > 0 {
		klog.FromContext(ctx).Info("Nobody can tell whether this server decodes everything that is stored", "resources", n, "for example", untold[:min(n, namedInLog)])
	}
	if len(undecodable) > 0 {
		slices.Sort(undecodable)
		var ways []string
		if migrates {
			ways = append(ways, "start a release that decodes it and wait until its StorageStates no longer list it (concord preflight tells)")
		}
		if len(stranded) > 0 {
			slices.Sort(stranded)
			ways = append(ways, compat.Removal(stranded, "this one reads"))
		}
		return fmt.Errorf("%s cannot decode what may be stored, %s: %s, or give --%s to start without these objects",
			target.Name, strings.Join(undecodable, "; "), strings.Join(ways, "; "), AllowFlag)
	}
	return nil
}

// countSmallFirst adds the census of each resource, the resource with the fewest objects first; a census that could
// not read everything says so. Encodings that servers began to write in the meantime count as written.
func countSmallFirst(ctx context.Context, reader migratestore.Reader, layout Layout, sets Sets, uncounted []compat.Stored) {
	order, sizes := SmallFirst(ctx, reader, len(uncounted), func(i int) string { return layout.Of(uncounted[i].Resource, false) })
	for i, err := range Together(ctx, order, func(i int) error {
		s := &uncounted[i]
		if s.Census = (&compat.StoredCensus{}); sizes[i] > 0 {
			s.Census = Count(ctx, reader, layout.Of(s.Resource, false), nil)
		}
		return fenced(ctx, reader, layout, sets, s)
	}) {
		if census := uncounted[i].Census; err != nil {
			census.Partial = cmp.Or(census.Partial, "what servers write cannot be read: "+err.Error())
		}
	}
}

// SmallFirst orders n places by how many objects are there, the fewest first: so that a large one
// uses up only its own share of the time. A size that cannot be read counts as the largest.
func SmallFirst(ctx context.Context, reader migratestore.Reader, n int, place func(i int) string) (order []int, sizes []int64) {
	order, sizes = make([]int, n), make([]int64, n)
	for i := range order {
		order[i], sizes[i] = i, math.MaxInt64 // whoever reads the values says why the size is not known
	}
	Together(ctx, order, func(i int) error {
		page, err := reader.Range(ctx, place(i), clientv3.GetPrefixRangeEnd(place(i)), 1, 0)
		if err == nil {
			sizes[i] = page.Count
		}
		return err
	})
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sizes[a], sizes[b]) })
	return order, sizes
}

// Together does something with each of the indexes in this order, with a few at a time: etcd may be far away. It returns
// the error of each; a panic is an error (wraps workers.ErrPanicked).
func Together(ctx context.Context, order []int, do func(int) error) []error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	errs := make([]error, len(order))
	for _, i := range order {
		group.Go(func() error {
			errs[i] = workers.Do(ctx, "stored values", func() error { return do(i) })
			return nil
		})
	}
	_ = group.Wait()
	return errs
}

// fenced reads a resource's StorageVersion again, behind its census.
func fenced(ctx context.Context, reader migratestore.Reader, layout Layout, before Sets, s *compat.Stored) error {
	key := ResourcePrefix(layout.Prefix, storageversion.Resource, false) + storageversion.Name(s.Resource)
	page, err := reader.Range(ctx, key, key+"\x00", 1, 0)
	if err != nil {
		return err
	}
	after := Sets{States: before.States, Versions: map[schema.GroupResource]*apiserverinternalv1alpha1.StorageVersion{}}
	if len(page.Entries) > 0 {
		after.Versions[s.Resource] = decodeVersion(page.Entries[0].Value)
	}
	before.Since(s, after)
	return nil
}
