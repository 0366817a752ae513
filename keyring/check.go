package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/evolve"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/stored"
	"github.com/concord-dev/concord/verdict"
	"github.com/concord-dev/concord/workers"
)

var _ stored.Keys = (*Keys)(nil)

// CheckStored implements stored.Keys: it says why a server with these keys could not open
// what is stored.
func (k *Keys) CheckStored(ctx context.Context, reader migratestore.Reader, layout stored.Layout, sets stored.Sets, known []schema.GroupResource) error {
	return k.refuseUnreadable(ctx, reader, layout, sets, known, nil)
}

// refuseUnreadable says why a server with these keys could not open what is stored. The
// error is one line that names resources and keys. Raw values are counted only of the
// resources, remembered or known, whose stored set has, or may have, a key that is not
// among them. With present keys, whose place these are to take, values that the present ones
// cannot open either count for nothing, and these are refused if the values cannot all be read in
// time.
func (k *Keys) refuseUnreadable(ctx context.Context, reader migratestore.Reader, layout stored.Layout, s stored.Sets, known []schema.GroupResource, present *Keys) error {
	resources := verdict.Resources(s.Resources(), known)
	resources = slices.DeleteFunc(resources, func(gr schema.GroupResource) bool {
		missing, unknown := k.lacks(gr, s)
		return len(missing) == 0 && !unknown || present != nil && k.readsAll(gr, present)
	})
	place := func(i int) string { return layout.Of(resources[i], s.Custom(resources[i])) }
	needs := make([][]string, len(resources))
	order, _ := stored.SmallFirst(ctx, reader, len(resources), place)
	errs := stored.Together(ctx, order, func(i int) (err error) {
		needs[i], err = k.unreadable(ctx, reader, place(i), s, resources[i], present)
		return err
	})
	unreadable := slices.Concat(needs...)
	for i, err := range errs {
		if errors.Is(err, workers.ErrPanicked) {
			err = fmt.Errorf("values of %s, any of which may need a key that it does not have, could not be read: %w", resources[i], err)
		}
		if err != nil && len(unreadable) == 0 {
			return err
		}
	}
	if len(unreadable) == 0 {
		return nil
	}
	return fmt.Errorf("this encryption configuration cannot read what is stored, %s: keep each key in --%s until concord keys says that it is safe to remove (--%s starts without these objects)",
		strings.Join(unreadable, "; "), Flag, stored.AllowFlag)
}

// lacks says which keys values of the resource may need, by its stored set, that k has not, as values name them, and
// whether they may need any key.
func (k *Keys) lacks(gr schema.GroupResource, s stored.Sets) (missing map[string]bool, unknown bool) {
	missing = map[string]bool{}
	for _, e := range s.Encodings(gr) {
		switch {
		case e == evolve.Unknown:
			unknown = true
		case !k.reads(gr, e.Seal()):
			missing[e.Seal().Key()] = true
		}
	}
	return missing, unknown
}

// unreadable names the keys of the resource's values, which are at a place, that k has not, with their numbers.
func (k *Keys) unreadable(ctx context.Context, reader migratestore.Reader, place string, s stored.Sets, gr schema.GroupResource, present *Keys) ([]string, error) {
	missing, _ := k.lacks(gr, s)
	counts, err := countKeys(ctx, reader, place)
	if err != nil && len(missing) > 0 {
		return nil, fmt.Errorf("values of %s may be %s, which the encryption configuration cannot read, and they could not all be read to find out: %w",
			gr, strings.Join(describeKeys(slices.Sorted(maps.Keys(missing))), " and "), err)
	}
	if err != nil && (ctx.Err() == nil || present != nil) {
		return nil, fmt.Errorf("values of %s, any of which may need a key that it does not have, could not all be read: %w", gr, err)
	}
	if err != nil {
		klog.FromContext(ctx).Info("Nobody can tell whether the encryption configuration can read all values", "resource", gr.String(), "reason", err.Error())
	}
	var needs []string
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		if present != nil && !present.readsKey(gr, key) {
			continue // nor can it be read now
		}
		if missing[key] || !k.readsKey(gr, key) {
			need := fmt.Sprintf("%d of %s %s", counts[key], gr, describeKeys([]string{key})[0])
			if key != "" && k.readsKey(gr, key) {
				need += " (it has another secret under that name)"
			}
			needs = append(needs, need)
		}
	}
	return needs, nil
}

func describeKeys(keys []string) []string {
	described := make([]string, len(keys))
	for i, key := range keys {
		if described[i] = "encrypted with " + key; key == "" {
			described[i] = "not encrypted"
		}
	}
	return described
}

// countKeys counts the values under a prefix by the encryption key that they name, "" for none. All keys of a KMS
// plugin count as one, since no configuration distinguishes them. With an error it returns the counts so far.
func countKeys(ctx context.Context, reader migratestore.Reader, prefix string) (map[string]int64, error) {
	encodings, err := migratestore.CountEncodings(ctx, reader, prefix)
	counts := map[string]int64{}
	for encoding, n := range encodings {
		switch key, encrypted := strings.CutPrefix(encoding, migratestore.EncodingEncrypted); {
		case encrypted:
			if plugin, _, ok := migratestore.KMSKey(key); ok {
				key = plugin
			}
			counts[key] += n
		case encoding != migratestore.EncodingUnknown:
			counts[""] += n
		}
	}
	return counts, err
}

// CheckReload says why these keys may not take the place of the present ones: some value
// that is stored, or that a server may be about to write, could not be read any more. known
// are the built-in resources.
func (k *Keys) CheckReload(ctx context.Context, etcd migratestore.Reader, layout stored.Layout, known []schema.GroupResource, present *Keys) error {
	ctx, cancel := context.WithTimeout(ctx, stored.CheckTimeout)
	defer cancel()
	reader := present.Opening(etcd, layout)
	sets, err := stored.ReadSets(ctx, reader, layout.Prefix)
	if err != nil {
		return fmt.Errorf("what is stored cannot be read: %w", err)
	}
	for _, gr := range sets.Resources() {
		written := []agree.Seal{present.Writes(gr)}
		if sv := sets.Versions[gr]; sv != nil {
			for _, r := range storageversion.Reports(sv) {
				if r.Encoding != evolve.Unknown {
					written = append(written, r.Encoding.Seal())
				}
			}
		}
		for _, seal := range written {
			if exempt(gr) || k.reads(gr, seal) {
				continue
			}
			if seal != "" && k.readsKey(gr, seal.Key()) {
				return errors.New("it " + otherSecret(gr, seal))
			}
			return fmt.Errorf("it cannot read %s that are %s, as a server writes them now: keep that key behind the first one until all servers have loaded it", gr, describeKeys([]string{seal.Key()})[0])
		}
	}
	err = k.refuseUnreadable(ctx, reader, layout, sets, known, present)
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	return err
}

// Opening implements stored.Keys: the reader opens StorageStates.
func (k *Keys) Opening(reader migratestore.Reader, layout stored.Layout) migratestore.Reader {
	return opening{Reader: reader, keys: k, states: layout.Of(migrationv1alpha1.StorageStates, true)}
}

// opening is a Reader that opens StorageStates, so that they can be read as if nothing was
// encrypted.
type opening struct {
	migratestore.Reader
	keys   *Keys
	states string
}

// Range implements migratestore.Reader.
func (o opening) Range(ctx context.Context, start, end string, limit, revision int64) (migratestore.Page, error) {
	page, err := o.Reader.Range(ctx, start, end, limit, revision)
	for i, e := range page.Entries {
		if !strings.HasPrefix(e.Key, o.states) || !bytes.HasPrefix(e.Value, []byte(sealPrefix)) {
			continue
		}
		transformer := o.keys.transformers.TransformerForResource(migrationv1alpha1.StorageStates)
		if plain, _, err := transformer.TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key)); err == nil {
			page.Entries[i].Value = plain
		}
	}
	return page, err
}
