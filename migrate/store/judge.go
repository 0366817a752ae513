package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	machinery "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
)

// judgement is the action to take with an entry: write put, record failure, or, if both
// are nil, leave it as it is.
type judgement struct {
	put     *Put
	failure *Failure
}

var (
	errNoEnvelope = errors.New("the value does not say its group, version and kind")
	errUnanswered = errors.New("what converts objects did not answer for each of them")
)

// judge decides on entries, one judgement for each. A value whose envelope already says
// the target's encoding is never decoded: a newer release's fields would be lost. If only
// its encryption is stale, the same plaintext is sealed again. The error is ErrKeysUnavailable
// if the transformer could not do its work at present; it says nothing about the entries. hindered
// is told what Convert waits for.
func (t *Target) judge(ctx context.Context, entries []Entry, hindered func(error)) ([]judgement, error) {
	judged := make([]judgement, len(entries))
	var together []int // the entries that are converted together
	var plains [][]byte
	for i, e := range entries {
		o, failure, err := t.open(ctx, e)
		switch {
		case err != nil:
			return nil, err
		case failure != nil:
			judged[i] = judgement{failure: failure}
		case o.from == t.Encoding && !o.stale:
		case o.from == t.Encoding:
			if judged[i], err = t.seal(ctx, e, o.plain); err != nil {
				return nil, err
			}
		case t.Convert != nil:
			together, plains = append(together, i), append(plains, o.plain)
		default:
			plain, reason, failed := t.reencode(o.plain, o.from)
			if judged[i], err = t.sealed(ctx, e, Converted{Plain: plain, Reason: reason, Err: failed}); err != nil {
				return nil, err
			}
		}
	}
	if len(together) == 0 {
		return judged, nil
	}
	converted := t.Convert(ctx, plains, hindered)
	for n, i := range together {
		c := Converted{Reason: Unconverted, Err: errUnanswered}
		if len(converted) == len(plains) {
			c = converted[n]
		}
		if c.Err == nil {
			c.Reason, c.Err = t.verify(c.Plain)
		}
		var err error
		if judged[i], err = t.sealed(ctx, entries[i], c); err != nil {
			return nil, err
		}
	}
	return judged, nil
}

// opened is a value's plaintext, and whether its encryption is stale.
type opened struct {
	plain []byte
	from  agree.Encoding
	stale bool
}

func (t *Target) open(ctx context.Context, e Entry) (opened, *Failure, error) {
	plain, stale, err := t.transformer().TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key))
	if errors.Is(err, ErrKeysUnavailable) {
		return opened{}, nil, fmt.Errorf("decrypt %s: %w", e.Key, err)
	}
	if err != nil {
		return opened{}, newFailure(e.Key, Undecryptable, err), nil
	}
	encoding, _, ok := Envelope(plain)
	if !ok {
		// A codec would take the kind that it is asked for, and make an object of nothing.
		return opened{}, newFailure(e.Key, Undecodable, errNoEnvelope), nil
	}
	return opened{plain: plain, from: encoding, stale: stale}, nil, nil
}

func (t *Target) sealed(ctx context.Context, e Entry, c Converted) (judgement, error) {
	if c.Err == nil {
		return t.seal(ctx, e, c.Plain)
	}
	return judgement{failure: newFailure(e.Key, c.Reason, c.Err)}, nil
}

func (t *Target) seal(ctx context.Context, e Entry, plain []byte) (judgement, error) {
	sealed, err := t.transformer().TransformToStorage(ctx, plain, value.DefaultContext(e.Key))
	if errors.Is(err, ErrKeysUnavailable) {
		return judgement{}, fmt.Errorf("encrypt %s: %w", e.Key, err)
	}
	if err != nil {
		return judgement{failure: newFailure(e.Key, Undecryptable, err)}, nil
	}
	return judgement{put: &Put{Key: e.Key, Value: sealed, ModRevision: e.ModRevision, Lease: e.Lease}}, nil
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
	out, err := encode(t.Codec, obj, len(plain))
	if err != nil {
		return nil, Unencodable, err
	}
	reason, err := t.verify(out)
	return out, reason, err
}

// slack is how much longer than before an encoded object may be and not be copied.
const slack = 128

// encode encodes an object that had size bytes before.
func encode(codec machinery.Encoder, obj machinery.Object, size int) ([]byte, error) {
	out := bytes.NewBuffer(make([]byte, 0, size+slack))
	err := codec.Encode(obj, out)
	return out.Bytes(), err
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

func newFailure(key string, reason Reason, err error) *Failure {
	return &Failure{Key: key, Reason: reason, Detail: detail(err)}
}

// detail is an error's text, shortened.
func detail(err error) string {
	text := err.Error()
	if len(text) > maxDetail {
		text = strings.ToValidUTF8(text[:maxDetail], "") + "…"
	}
	return text
}
