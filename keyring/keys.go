package keyring

import (
	"bytes"
	"context"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/apis/apiserver"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"

	"github.com/concord-dev/concord/agree"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

const (
	// sealPrefix is how encrypted values begin.
	sealPrefix = "k8s:enc:"
	// fingerprintRounds make a fingerprint expensive to guess secrets by.
	fingerprintRounds = 1 << 16
	fingerprintBytes  = 8
)

// Keys is one loaded encryption configuration. It never changes, except for the current key of a KMS plugin. The zero
// value encrypts nothing.
type Keys struct {
	// hash is that of the file, "sha256:...".
	hash         string
	transformers encryptionconfig.StaticTransformers
	health       []healthz.HealthChecker
	// providers holds the providers of a resource or of a pattern; the first one writes.
	providers map[schema.GroupResource][]*provider
	// close ends the providers' connections and loops, grace after the last use.
	close context.CancelFunc
	grace time.Duration
}

// provider is one key, or one KMS plugin.
type provider struct {
	// seal is the seal of values that it encrypted; of a KMS plugin of v2 its beginning.
	seal agree.Seal
	// plugin says that the provider is a KMS plugin, which may be unreachable.
	plugin bool
	// kms is set for a KMS v2 plugin: the fingerprint of the key that it used last. A KMS v1 plugin does not name its
	// key, so all its keys share one seal.
	kms *atomic.Pointer[string]
}

// writes returns the seal with which the provider encrypts now.
func (p *provider) writes() agree.Seal {
	if p.kms == nil {
		return p.seal
	}
	if id := p.kms.Load(); id != nil {
		return p.seal + agree.Seal(*id)
	}
	return p.seal + agree.UnknownKey
}

// reads says whether the provider opens values with this seal.
func (p *provider) reads(seal agree.Seal) bool {
	if p.kms != nil {
		return strings.HasPrefix(string(seal), string(p.seal))
	}
	return p.seal == seal
}

// sealed returns the seal of a value that the provider has encrypted, and whether that is
// another key than before.
func (p *provider) sealed(value []byte) (seal agree.Seal, rotated bool) {
	if p.kms == nil {
		return p.seal, false
	}
	id, ok := kmsKey(value)
	if !ok {
		return p.seal, false
	}
	if old := p.kms.Load(); old == nil || *old != id {
		rotated = true
		p.kms.Store(&id)
	}
	return p.seal + agree.Seal(id), rotated
}

// kmsKey returns the fingerprint of the key that a value of a KMS plugin, version 2, needs.
func kmsKey(value []byte) (string, bool) {
	name, _ := migratestore.Encryption(value)
	_, fingerprint, ok := migratestore.KMSKey(name)
	return fingerprint, ok
}

// SealOf returns the seal of an encrypted value of the resource, empty if it has none of k's.
func (k *Keys) SealOf(gr schema.GroupResource, value []byte) agree.Seal {
	for _, p := range k.of(gr) {
		key := p.seal.Key()
		if key == "" || !bytes.HasPrefix(value, []byte(sealPrefix+key+":")) {
			continue
		}
		if p.kms == nil {
			return p.seal
		}
		id, _ := kmsKey(value)
		return p.seal + agree.Seal(id)
	}
	return ""
}

// notReached and notReachedV1 are in the library's errors for a value of a KMS plugin, of v2 and
// of v1, that has given no answer since the configuration was loaded.
const (
	notReached   = "got unexpected nil transformer"
	notReachedV1 = "failed get version from remote KMS provider"
)

// away reports whether a value could not be decrypted because a KMS plugin was unreachable, which says nothing about
// the value.
func away(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded:
		return true
	}
	return strings.Contains(err.Error(), notReached) || strings.Contains(err.Error(), notReachedV1)
}

// patternsOf returns the names by which a configuration may refer to a resource. The first name that the configuration
// has applies.
func patternsOf(gr schema.GroupResource) []schema.GroupResource {
	return []schema.GroupResource{gr, {Group: gr.Group, Resource: "*"}, {Group: "*", Resource: "*"}}
}

// of returns the providers of a resource, none if it is not encrypted.
func (k *Keys) of(gr schema.GroupResource) []*provider {
	for _, pattern := range patternsOf(gr) {
		if providers := k.providers[pattern]; len(providers) > 0 {
			return providers
		}
	}
	return nil
}

// reads says whether values of the resource with this seal can be opened.
func (k *Keys) reads(gr schema.GroupResource, seal agree.Seal) bool {
	providers := k.of(gr)
	for _, p := range providers {
		if p.reads(seal) {
			return true
		}
	}
	return (len(providers) == 0 || exempt(gr)) && seal == ""
}

// readsAll says whether all values of the resource that other keys open can be opened.
func (k *Keys) readsAll(gr schema.GroupResource, other *Keys) bool {
	providers := other.of(gr)
	for _, p := range providers {
		if !k.reads(gr, p.writes()) {
			return false
		}
	}
	return len(providers) > 0 || k.reads(gr, "")
}

// readsKey is like reads for the part of a seal that a value names; a value does not name the secret.
func (k *Keys) readsKey(gr schema.GroupResource, key string) bool {
	providers := k.of(gr)
	for _, p := range providers {
		if p.seal.Key() == key {
			return true
		}
	}
	return (len(providers) == 0 || exempt(gr)) && key == ""
}

// quoted is a part of the configuration in an error of its validation.
var quoted = regexp.MustCompile(`Invalid value: \{.*\}: `)

// loadKeys reads the configuration. The providers' connections and loops live as long as ctx.
func loadKeys(ctx context.Context, path string, reload bool, server string) (*Keys, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, path, reload, server)
	if err != nil {
		cancel()
		// The text has several lines, and may quote providers with their secrets.
		return nil, errors.New(quoted.ReplaceAllString(strings.Join(strings.Fields(err.Error()), " "), ""))
	}
	k := &Keys{
		hash: loaded.EncryptionFileContentHash, transformers: loaded.Transformers, health: loaded.HealthChecks,
		close: cancel, grace: loaded.KMSCloseGracePeriod,
	}
	if sum := fmt.Sprintf("sha256:%x", sha256.Sum256(raw)); sum != k.hash {
		err = errors.New("it was changed while it was read")
	} else {
		k.providers, err = providersOf(raw)
	}
	if err != nil {
		cancel()
		return nil, err
	}
	return k, nil
}

var encryptionCodecs = func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	utilruntime.Must(apiserver.AddToScheme(scheme))
	utilruntime.Must(apiserverv1.AddToScheme(scheme))
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
}()

func decodeEncryption(raw []byte) (*apiserver.EncryptionConfiguration, error) {
	obj, gvk, err := encryptionCodecs.UniversalDecoder().Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	config, ok := obj.(*apiserver.EncryptionConfiguration)
	if !ok {
		return nil, fmt.Errorf("it holds %s and no EncryptionConfiguration", gvk)
	}
	return config, nil
}

// providersOf names the providers of a configuration that the library has found valid.
func providersOf(raw []byte) (map[schema.GroupResource][]*provider, error) {
	config, err := decodeEncryption(raw)
	if err != nil {
		return nil, err
	}
	named := map[string]string{}
	providers := map[schema.GroupResource][]*provider{}
	for _, entry := range config.Resources {
		var all []*provider
		for _, c := range entry.Providers {
			ps, err := providersIn(c, named)
			if err != nil {
				return nil, err
			}
			all = append(all, ps...)
		}
		for _, resource := range entry.Resources {
			gr := schema.ParseGroupResource(resource)
			providers[gr] = append(providers[gr], all...)
		}
	}
	return providers, nil
}

// providersIn returns one provider for each key. named are the keys seen so far: values
// name their key, so that one name has to mean one secret, or one plugin.
func providersIn(c apiserver.ProviderConfiguration, named map[string]string) ([]*provider, error) {
	var name string
	var secrets []apiserver.Key
	switch {
	case c.Identity != nil:
		return []*provider{{}}, nil
	case c.KMS != nil:
		if !nameable(c.KMS.Name) {
			return nil, fmt.Errorf("the KMS plugin %q %s", c.KMS.Name, wantsName)
		}
		p := &provider{seal: agree.Seal("kms:" + c.KMS.APIVersion + ":" + c.KMS.Name + ":"), plugin: true}
		if c.KMS.APIVersion == "v2" {
			p.kms = &atomic.Pointer[string]{}
		}
		// The library sees to that only for v2, and where it reloads.
		if other, ok := named[string(p.seal)]; ok && other != c.KMS.Endpoint {
			return nil, fmt.Errorf("two KMS plugins have the name %q: give each a name of its own, so that stored values tell which they need", c.KMS.Name)
		}
		named[string(p.seal)] = c.KMS.Endpoint
		return []*provider{p}, nil
	case c.AESGCM != nil:
		name, secrets = "aesgcm", c.AESGCM.Keys
	case c.AESCBC != nil:
		name, secrets = "aescbc", c.AESCBC.Keys
	case c.Secretbox != nil:
		name, secrets = "secretbox", c.Secretbox.Keys
	}
	providers := make([]*provider, 0, len(secrets))
	for _, key := range secrets {
		if !nameable(key.Name) {
			return nil, fmt.Errorf("the %s key %q %s", name, key.Name, wantsName)
		}
		seal, err := SealOf(name+":v1:"+key.Name, key.Secret)
		if err != nil {
			return nil, fmt.Errorf("the %s key %q: %w", name, key.Name, err)
		}
		if other, ok := named[seal.Key()]; ok && other != string(seal) {
			return nil, fmt.Errorf("two secrets have the name %q of provider %s: give a new key a new name, so that stored values tell which they need", key.Name, name)
		}
		named[seal.Key()] = string(seal)
		providers = append(providers, &provider{seal: seal})
	}
	return providers, nil
}

const wantsName = "needs a name of visible ASCII characters other than ':' and ',', so that stored values tell which they need"

// nameable reports whether values name the key or plugin that they need.
func nameable(name string) bool {
	return strings.IndexFunc(name, func(r rune) bool { return r <= ' ' || r > '~' || r == ':' || r == ',' }) < 0
}

// SealOf adds the fingerprint of a secret, in base64, to the name of its key,
// "<provider>:v1:<name>".
func SealOf(key, secret string) (agree.Seal, error) {
	raw, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		return "", err
	}
	sum, err := pbkdf2.Key(sha256.New, string(raw), []byte("concord.dev/seal "+key), fingerprintRounds, fingerprintBytes)
	if err != nil {
		return "", err
	}
	return agree.Seal(key + ":" + hex.EncodeToString(sum)), nil
}
