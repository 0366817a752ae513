package fence

import (
	"maps"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/value"
)

// watchCache is a watch cache with the store that fills it. Stores of a custom resource hand it on:
// when only the storage version of a CRD changes, the new store of each served version would
// list and decode the same objects into the same cache again, and all watches would begin anew.
// The cache of the store before goes on instead. The difference between the two stores is in their
// writes, and a cache writes nothing.
type watchCache struct {
	cacher *cacher.Cacher
	from   *filling
	use    *use
}

// fill builds a watch cache that a store fills, which has to stay open meanwhile.
func fill(raw storage.Interface, open *use, config cacher.Config, ended func()) (*watchCache, error) {
	from := &filling{Interface: raw}
	config.Storage = from
	c, err := cacher.NewCacherFromConfig(config)
	if err != nil {
		return nil, err
	}
	open.begin()
	return &watchCache{cacher: c, from: from, use: newUse(func() {
		ended()
		c.Stop()
		open.end()
	})}, nil
}

// serve has the cache answer for a store, for one of its users, who calls stop in the end.
func (c *watchCache) serve(raw storage.Interface) (s storage.Interface, stop func()) {
	delegator := cacher.NewCacheDelegator(c.cacher, raw)
	return &explained{delegator, c.from}, func() {
		delegator.Stop()
		c.use.end()
	}
}

// use counts the users of something that is stopped when the last one has ended.
type use struct {
	mu   sync.Mutex
	n    int
	stop func()
}

// newUse has one user.
func newUse(stop func()) *use { return &use{n: 1, stop: stop} }

// begin adds a user, unless the last one has ended.
func (u *use) begin() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.n == 0 {
		return false
	}
	u.n++
	return true
}

func (u *use) end() {
	u.mu.Lock()
	u.n--
	last := u.n == 0
	u.mu.Unlock()
	if last {
		u.stop()
	}
}

// reading is all that the contents of a custom resource's watch cache depend on, besides etcd.
type reading struct {
	gr          schema.GroupResource
	served      string
	prefix      string
	transformer value.Transformer
	fields      []string // that select objects
	decoding    []any
}

// readingOf describes how a store reads. It is not known for codecs other than those that
// apiextensions makes of a CRD.
func readingOf(s Store, config cacher.Config) (r reading, known bool) {
	_, fields, err := config.GetAttrsFunc(config.NewFunc())
	decoding := decodingOf(s.Codec)
	if err != nil || decoding == nil || !reflect.ValueOf(s.Transformer).Comparable() {
		return reading{}, false
	}
	return reading{
		gr: s.GroupResource, served: s.ServedVersion, prefix: s.Prefix, transformer: s.Transformer,
		fields: slices.Sorted(maps.Keys(fields)), decoding: decoding,
	}, true
}

func (r reading) same(o reading) bool {
	return r.gr == o.gr && r.served == o.served && r.prefix == o.prefix && r.transformer == o.transformer &&
		slices.Equal(r.fields, o.fields) && reflect.DeepEqual(r.decoding, o.decoding)
}

// decodingOf returns the parts of a codec that decode: a codec of apimachinery's package versioning
// keeps them apart from the version that it encodes to, but does not tell them. For a CRD the
// parts are its schemas, its versions and their conversions; those that call a webhook have functions
// among them, and are never equal. It is nil for a codec that is built otherwise.
func decodingOf(c runtime.Codec) []any {
	v := reflect.ValueOf(c)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return nil
	}
	var parts []any
	for _, name := range []string{"decoder", "convertor", "creater", "typer", "defaulter", "decodeVersion"} {
		field := v.Elem().FieldByName(name)
		if !field.IsValid() {
			return nil
		}
		parts = append(parts, reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Elem().Interface())
	}
	return parts
}

// watchCaches are the caches of custom resources that may be handed on.
type watchCaches struct {
	mu  sync.Mutex
	all []readCache
}

type readCache struct {
	reading
	*watchCache
}

// find returns a cache for a store that reads as another one does, as one of the cache's users.
func (c *watchCaches) find(r reading) (*watchCache, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range slices.Backward(c.all) {
		if one.same(r) && one.use.begin() {
			return one.watchCache, true
		}
	}
	return nil, false
}

func (c *watchCaches) add(r reading, cache *watchCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, readCache{r, cache})
}

func (c *watchCaches) remove(cache *watchCache) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = slices.DeleteFunc(c.all, func(one readCache) bool { return one.watchCache == cache })
}
