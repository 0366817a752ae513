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

// watchCache is a watch cache together with the store that fills it. Stores of a custom resource pass it on. When only
// the storage version of a CRD changes, a new cache would list and decode the same objects again, and all watches
// would restart; the cache of the previous store continues instead. The two stores differ only in how they write, and
// a cache writes nothing.
type watchCache struct {
	cacher *cacher.Cacher
	from   *filling
	use    *use
}

// fill builds a watch cache and fills it from a store. The store has to stay open as long as the cache runs.
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

// serve makes the cache answer reads of a store for one user, who calls stop at the end.
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

// reading describes everything, besides etcd, that determines the contents of a custom resource's watch cache.
type reading struct {
	gr          schema.GroupResource
	served      string
	prefix      string
	transformer value.Transformer
	fields      []string // that select objects
	decoding    []any
}

// readingOf describes how a store reads. known is false for codecs other than those that apiextensions makes for a
// CRD.
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

// decodingOf returns the decoding parts of a codec of apimachinery's package versioning, which keeps them in private
// fields, apart from the version that it encodes to. For a CRD these parts are its schemas, its versions and their
// conversions. Conversions that call a webhook contain functions and are never equal. The result is nil for any other
// codec.
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

// find returns a cache whose contents fit a store that reads in this way, and counts the store as one of its users.
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
