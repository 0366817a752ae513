package rewrite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
)

// judgement is what is to be done with an entry: write put, record failure, or, if both
// are nil, leave it as it is.
type judgement struct {
	put     *Put
	failure *Failure
}

var errNoEnvelope = errors.New("the value does not say its group, version and kind")

// judge decides on one entry. A value whose envelope already says the target's encoding
// is never decoded: a newer release's fields would be lost. If only its encryption is
// stale, the same plaintext is sealed again.
func (t *Target) judge(ctx context.Context, e Entry) judgement {
	transformer, authenticated := t.transformer(), value.DefaultContext(e.Key)
	plain, stale, err := transformer.TransformFromStorage(ctx, e.Value, authenticated)
	if err != nil {
		return failed(e.Key, Undecryptable, err)
	}
	encoding, _, ok := Envelope(plain)
	switch {
	case !ok:
		// A codec would take what it is asked for as the kind, and make an object of nothing.
		return failed(e.Key, Undecodable, errNoEnvelope)
	case encoding != t.Encoding:
		var reason Reason
		if plain, reason, err = t.reencode(plain, encoding); err != nil {
			return failed(e.Key, reason, err)
		}
	case !stale:
		return judgement{}
	}
	sealed, err := transformer.TransformToStorage(ctx, plain, authenticated)
	if err != nil {
		return failed(e.Key, Undecryptable, err)
	}
	return judgement{put: &Put{Key: e.Key, Value: sealed, ModRevision: e.ModRevision, Lease: e.Lease}}
}

// reencode decodes a plaintext and encodes it in the target's encoding. An error comes
// with its class.
func (t *Target) reencode(plain []byte, from agree.Encoding) ([]byte, Reason, error) {
	if t.Shortcut != nil {
		if out, ok := t.Shortcut(plain, from); ok {
			reason, err := t.verify(out)
			return out, reason, err
		}
	}
	obj, _, err := t.Codec.Decode(plain, nil, t.New())
	if err != nil {
		return nil, Undecodable, err
	}
	if err := (storage.APIObjectVersioner{}).PrepareObjectForStorage(obj); err != nil {
		return nil, Undecodable, err
	}
	out, err := machinery.Encode(t.Codec, obj)
	if err != nil {
		return nil, Unencodable, err
	}
	reason, err := t.verify(out)
	return out, reason, err
}

// verify refuses an output that is not in the target's encoding.
func (t *Target) verify(out []byte) (Reason, error) {
	encoding, _, ok := Envelope(out)
	switch {
	case !ok:
		return WrongEncoding, errNoEnvelope
	case encoding != t.Encoding:
		return WrongEncoding, fmt.Errorf("the object was encoded in %s", encoding)
	}
	return "", nil
}

// maxDetail bounds the text kept of an error, in bytes.
const maxDetail = 256

func failed(key string, reason Reason, err error) judgement {
	return judgement{failure: newFailure(key, reason, err)}
}

func newFailure(key string, reason Reason, err error) *Failure {
	detail := err.Error()
	if len(detail) > maxDetail {
		detail = strings.ToValidUTF8(detail[:maxDetail], "") + "…"
	}
	return &Failure{Key: key, Reason: reason, Detail: detail}
}

// overhead estimates the bytes that a put costs in a request beside its key and value:
// the compare, the lease and the frames around them.
const overhead = 64

// batch says how many of the puts, from the first, go into one transaction within the
// bounds. A put that is larger than maxBytes gets one of its own.
func batch(puts []Put, maxKeys, maxBytes int) int {
	bytes := 0
	for i, p := range puts {
		bytes += len(p.Value) + 3*len(p.Key) + overhead // the key is in the compare, the put and the get
		if i > 0 && (i == maxKeys || bytes > maxBytes) {
			return i
		}
	}
	return len(puts)
}
