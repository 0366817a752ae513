// Package keyring implements encryption at rest: the keys with which a server encrypts stored values, the names of
// these keys in values, reports and Leases (seals), reloading of a changed configuration, and the checks that keep a
// server from losing stored values and from writing values that another server cannot read.
package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	encryptionmetrics "k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/klog/v2"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/member"
	migratestore "github.com/concord-dev/concord/migrate/store"
	"github.com/concord-dev/concord/workers"
)

const (
	// healthTimeout bounds how long the KMS plugins of a new configuration may take to answer.
	healthTimeout = 10 * time.Second
	healthPoll    = 100 * time.Millisecond
	// If the check of a file took longCheck or longer and refused the file, the unchanged file is checked again only
	// after checkRest times as long, because the check may read all stored values.
	longCheck = time.Second
	checkRest = 20
)

// Ring holds the keys that a server encrypts stored values with. The library's own reloading would
// not do: which key a value was sealed with has to be known when it is written (package fence).
// Of a nil Ring nothing is encrypted; all its methods may be called.
type Ring struct {
	path   string
	reload bool
	server string // in metrics
	now    func() time.Time
	// check says why a configuration may not take the place of the present one.
	check Check

	current atomic.Pointer[Keys]
	// refused is the hash of a file that is not looked at before a time. Only Reload uses it.
	refused string
	before  time.Time

	mu sync.Mutex // guards tell, and each change that it tells against being overtaken
	// tell is called with the encryption that applies from now on.
	tell func(member.Encryption)
}

// Check says why a configuration may not take the place of the present one.
type Check func(ctx context.Context, next, present *Keys) error

// New loads the configuration; without a file it returns nil. The providers'
// connections and loops live as long as ctx. Nothing follows the file before Run.
func New(ctx context.Context, c Config) (*Ring, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.Path == "" {
		return nil, nil
	}
	r := &Ring{path: c.Path, reload: c.Reload, server: c.Server, now: c.Now}
	if r.now == nil {
		r.now = time.Now
	}
	k, err := loadKeys(ctx, r.path, r.reload, r.server)
	if err != nil {
		return nil, fmt.Errorf("--%s %s: %w", Flag, r.path, err)
	}
	encryptionmetrics.RecordEncryptionConfigLastConfigInfo(r.server, k.hash)
	r.current.Store(k)
	r.probe(ctx)
	return r, nil
}

// Keys returns the current configuration; the empty one for a nil Ring.
func (r *Ring) Keys() *Keys {
	if r == nil {
		return &Keys{}
	}
	return r.current.Load()
}

// SetCheck has every changed file checked before it is loaded. It is called before Run.
func (r *Ring) SetCheck(check Check) {
	if r != nil {
		r.check = check
	}
}

// Apply has c encrypt, and report the providers' health as kube-apiserver does.
func (r *Ring) Apply(c *genericapiserver.Config) {
	if r == nil {
		return
	}
	c.ResourceTransformers = r
	checks := r.HealthChecks()
	c.HealthzChecks = append(c.HealthzChecks, checks...)
	c.ReadyzChecks = append(c.ReadyzChecks, checks...)
}

// HealthChecks returns the health checks of the providers, for /healthz and /readyz.
func (r *Ring) HealthChecks() []healthz.HealthChecker {
	if r == nil {
		return nil
	}
	checks := r.Keys().health
	if r.reload && len(checks) == 1 {
		return []healthz.HealthChecker{healthz.NamedCheck(checks[0].Name(), func(req *http.Request) error { return r.Keys().health[0].Check(req) })}
	}
	return checks
}

// Listen registers tell, which is called with the current state and after every change.
func (r *Ring) Listen(tell func(member.Encryption)) {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.tell = tell
	r.mu.Unlock()
	r.changed()
}

// changed passes the current encryption to the function that Listen registered.
func (r *Ring) changed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tell == nil {
		return
	}
	k := r.current.Load()
	seals := map[*provider]agree.Seal{} // as they are now: a KMS plugin may turn to another key
	for _, providers := range k.providers {
		seals[providers[0]] = providers[0].writes()
	}
	r.tell(member.Encryption{Config: k.hash, Keys: k.reading(), Seal: func(gr schema.GroupResource) agree.Seal {
		if providers := k.of(gr); len(providers) > 0 && !exempt(gr) {
			return seals[providers[0]]
		}
		return ""
	}})
}

var unfenced = storageversion.Unfenced()

// exempt reports whether a resource is written unencrypted whatever the configuration says. This holds for the three
// resources that the fence does not bind: nobody could prove of them that no server writes with an old
// key. A server other than Concord's may have encrypted them; the keys of the configuration still decrypt such values.
func exempt(gr schema.GroupResource) bool { return unfenced.Has(gr) }

// Run follows the file and the KMS plugins until ctx ends, looking every so often.
func (r *Ring) Run(ctx context.Context, every time.Duration) {
	if r == nil {
		return
	}
	told := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		if r.probe(ctx) {
			r.changed()
		}
		if !r.reload {
			return
		}
		switch changed, err := r.Reload(ctx); {
		case err != nil && ctx.Err() == nil:
			encryptionmetrics.RecordEncryptionConfigAutomaticReloadFailure(r.server)
			if err.Error() != told {
				klog.FromContext(ctx).Error(err, "The encryption configuration was not loaded, the one before stays", "path", r.path)
			}
			told = err.Error()
		case changed:
			told = ""
			encryptionmetrics.RecordEncryptionConfigAutomaticReloadSuccess(r.server, r.Keys().hash)
			klog.FromContext(ctx).Info("Loaded the encryption configuration", "path", r.path, "hash", r.Keys().hash)
		}
	}, every)
}

// Reload loads the file if it has changed. An error leaves all as it was. Run calls it; it
// is not to be called beside Run.
func (r *Ring) Reload(ctx context.Context) (changed bool, err error) {
	if r == nil {
		return false, nil
	}
	present := r.Keys()
	hash, err := encryptionconfig.GetEncryptionConfigHash(r.path)
	if err != nil || hash == present.hash || hash == r.refused && r.now().Before(r.before) {
		return false, err
	}
	next, err := loadKeys(ctx, r.path, true, r.server)
	if err != nil {
		return false, err
	}
	if err = healthy(ctx, next); err == nil && r.check != nil {
		began := r.now()
		err = r.check(ctx, next, present)
		if took := r.now().Sub(began); err != nil && took >= longCheck {
			r.refused, r.before = next.hash, r.now().Add(checkRest*took)
		}
	}
	if err != nil {
		next.close()
		return false, err
	}
	next.probe(ctx)
	r.current.Store(next)
	r.changed()
	time.AfterFunc(present.grace, func() { workers.Go(context.Background(), "encryption", present.close) })
	return true, nil
}

// healthy waits for the providers of a new configuration.
func healthy(ctx context.Context, k *Keys) error {
	last := errors.New("no answer")
	err := wait.PollUntilContextTimeout(ctx, healthPoll, max(healthTimeout, k.grace), true, func(ctx context.Context) (bool, error) {
		last = nil
		for _, check := range k.health {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+check.Name(), nil)
			if err != nil {
				return false, err
			}
			last = errors.Join(last, check.Check(req))
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("its providers are not healthy: %w", errors.Join(last, ctx.Err()))
	}
	return nil
}

// probe finds out which keys the KMS plugins use, and says whether one is another than before.
func (r *Ring) probe(ctx context.Context) bool { return r.Keys().probe(ctx) }

func (k *Keys) probe(ctx context.Context) (rotated bool) {
	const text = "which key?"
	k.ask(ctx)
	for gr, providers := range k.providers {
		if providers[0].kms == nil {
			continue
		}
		out, err := k.transformers[gr].TransformToStorage(ctx, []byte(text), value.DefaultContext(text))
		if err != nil {
			continue // the plugin's health tells
		}
		if _, now := providers[0].sealed(out); now {
			rotated = true
		}
	}
	return rotated
}

// ask makes the library ask every KMS plugin for its current key. The library does so at most every 20 s, and by
// itself only once a minute. A plugin that answers that it is not healthy is left to the health checks.
func (k *Keys) ask(ctx context.Context) {
	if !slices.ContainsFunc(slices.Collect(maps.Values(k.providers)), func(providers []*provider) bool { return providers[0].kms != nil }) {
		return
	}
	for _, check := range k.health {
		if req, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz/"+check.Name(), nil); err == nil {
			_ = check.Check(req)
		}
	}
}

var _ value.ResourceTransformers = (*Ring)(nil)

// TransformerForResource implements value.ResourceTransformers. It returns the transformer that
// belongs into a resource's storage configuration (storagebackend.Config.Transformer), and follows
// every later change of the keys. Of a nil Ring it is nil, as storage takes it where nothing
// is encrypted.
func (r *Ring) TransformerForResource(gr schema.GroupResource) value.Transformer {
	if r == nil {
		return nil
	}
	if exempt(gr) {
		return plainWriter{ring: r, gr: gr}
	}
	return sealer{ring: r, gr: gr}
}

// sealer encrypts one resource's values as the configuration says at each moment. It
// implements fence.Sealer.
type sealer struct {
	ring *Ring
	gr   schema.GroupResource
}

// TransformFromStorage implements value.Read.
func (s sealer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	return s.ring.Keys().transformers.TransformerForResource(s.gr).TransformFromStorage(ctx, data, dataCtx)
}

// TransformToStorage implements value.Write.
func (s sealer) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	out, _, err := s.Seal(ctx, data, dataCtx)
	return out, err
}

// Seal implements fence.Sealer.
func (s sealer) Seal(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, agree.Seal, error) {
	out, seal, rotated, err := s.ring.Keys().seal(ctx, s.gr, data, dataCtx)
	if rotated {
		s.ring.changed()
	}
	return out, seal, err
}

// Current implements fence.Sealer.
func (s sealer) Current() agree.Seal { return s.ring.Keys().Writes(s.gr) }

func (k *Keys) seal(ctx context.Context, gr schema.GroupResource, data []byte, dataCtx value.Context) (out []byte, with agree.Seal, rotated bool, err error) {
	out, err = k.transformers.TransformerForResource(gr).TransformToStorage(ctx, data, dataCtx)
	if providers := k.of(gr); err == nil && len(providers) > 0 {
		with, rotated = providers[0].sealed(out)
	}
	return out, with, rotated, err
}

// Writes returns the seal with which values of a resource are encrypted now.
func (k *Keys) Writes(gr schema.GroupResource) agree.Seal {
	if providers := k.of(gr); len(providers) > 0 {
		return providers[0].writes()
	}
	return ""
}

// pinned encrypts with one key only, for a rewrite. It uses the newest configuration, since older ones are closed when
// a new one is loaded; every configuration can read what is stored.
type pinned struct {
	ring *Ring
	gr   schema.GroupResource
	seal agree.Seal
}

// Pin returns the transformer that encrypts a resource with this key; nil if values are stored unencrypted and always
// were. The error says that this server encrypts with another key.
func (r *Ring) Pin(gr schema.GroupResource, seal agree.Seal) (value.Transformer, error) {
	if r != nil && exempt(gr) {
		return plainWriter{ring: r, gr: gr}, nil
	}
	k := r.Keys()
	if now := k.Writes(gr); now != seal {
		return nil, fmt.Errorf("this server encrypts %s with %q and not with %q", gr, now.Key(), seal.Key())
	}
	if len(k.of(gr)) == 0 {
		return nil, nil
	}
	return pinned{ring: r, gr: gr, seal: seal}, nil
}

// TransformFromStorage implements value.Read. A value is stale if it is not encrypted with the key, or if the
// providers would encrypt it again.
func (p pinned) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	k := p.ring.Keys()
	plain, stale, err := k.transformers.TransformerForResource(p.gr).TransformFromStorage(ctx, data, dataCtx)
	if err != nil && away(err) {
		err = fmt.Errorf("%w: %w", migratestore.ErrKeysUnavailable, err)
	}
	return plain, stale || k.SealOf(p.gr, data) != p.seal, err
}

// TransformToStorage implements value.Write.
func (p pinned) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	k := p.ring.Keys()
	out, with, rotated, err := k.seal(ctx, p.gr, data, dataCtx)
	if rotated {
		p.ring.changed()
	}
	if providers := k.of(p.gr); err != nil && len(providers) > 0 && providers[0].plugin {
		return nil, fmt.Errorf("%w: %w", migratestore.ErrKeysUnavailable, err) // it needs no more than the plugin's answer
	}
	if err == nil && with != p.seal {
		// The report will soon say so and end the agreement; the value is not at fault.
		return nil, fmt.Errorf("%w: the key has changed from %s to %s", migratestore.ErrKeysUnavailable, p.seal, with)
	}
	return out, err
}

// plainWriter stores values unencrypted, and decrypts those that are encrypted all the same.
type plainWriter struct {
	ring *Ring
	gr   schema.GroupResource
}

// TransformFromStorage implements value.Read.
func (p plainWriter) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if !bytes.HasPrefix(data, []byte(sealPrefix)) {
		return data, false, nil
	}
	plain, _, err := sealer(p).TransformFromStorage(ctx, data, dataCtx)
	return plain, true, err
}

// TransformToStorage implements value.Write.
func (p plainWriter) TransformToStorage(_ context.Context, data []byte, _ value.Context) ([]byte, error) {
	return data, nil
}
