package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/agree"
)

// Walk visits the entries under a prefix in key order, a page at a time, until visit fails. It begins with a
// linearizable read and stays at that revision; if that revision is compacted it continues at the newest. visit must
// not keep an entry's value.
func Walk(ctx context.Context, reader Reader, prefix string, visit func(Entry) error) error {
	return patience{clock: clock.RealClock{}}.walk(ctx, reader, prefix, Options{}.withDefaults(), visit)
}

// besideClients is how many keys are read at a time while clients are served.
const besideClients = 200

func (p patience) walk(ctx context.Context, reader Reader, prefix string, opts Options, visit func(Entry) error) error {
	pager := newPager(reader, prefix, opts.PageKeys, opts.PageBytes)
	defer pager.close()
	for !pager.done {
		gives, began := !math.IsInf(opts.Pacer.Rate(), 1), p.clock.Now()
		if gives {
			pager.atMost(min(besideClients, opts.PageKeys))
		} else {
			pager.atMost(opts.PageKeys)
		}
		var page Page
		err := p.patiently(ctx, func(ctx context.Context) (err error) {
			page, err = pager.pageAcrossCompaction(ctx)
			return err
		})
		if err != nil {
			return err
		}
		for _, e := range page.Entries {
			if err := visit(e); err != nil {
				return err
			}
		}
		if gives && !pager.done {
			if err := wait(ctx, p.clock, p.clock.Since(began)); err != nil {
				return err
			}
		}
	}
	return nil
}

// Left counts the values that a rewrite should have changed and has not.
type Left struct {
	Values int64
	// First is one of them.
	First Failure
	// Found lists their encodings, sorted: agree.Unknown for values that cannot be decrypted or read, or are encrypted
	// with another key.
	Found []agree.Encoding
}

// CountLeft reads every value of a target and counts those that are not in the target's encoding, are encrypted with
// another key, or cannot be decrypted. It begins with a linearizable read; its result stays valid as long as the fence
// holds. It uses the options for reading, Patience, Clock and Pacer: while the Pacer limits the rate because of
// clients, it rests as long as it works.
func CountLeft(ctx context.Context, reader Reader, target *Target, opts Options) (Left, error) {
	var left Left
	opts = opts.withDefaults()
	p := patience{clock: opts.Clock, bound: opts.Patience}
	err := p.walk(ctx, reader, target.Prefix, opts, func(e Entry) error {
		var plain []byte
		var stale bool
		err := p.waiting(ctx, func(ctx context.Context) (err error) {
			plain, stale, err = target.transformer().TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key))
			return err
		})
		var failure *Failure
		found := agree.Unknown
		switch encoding, _, ok := Envelope(plain); {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, ErrKeysUnavailable):
			return fmt.Errorf("decrypt %s: %w", e.Key, err)
		case err != nil:
			failure = newFailure(e.Key, Undecryptable, err)
		case stale:
			failure = newFailure(e.Key, Undecryptable, errStale)
		case !ok:
			failure = newFailure(e.Key, Undecodable, errNoEnvelope)
		case encoding != target.Encoding:
			found, failure = encoding, newFailure(e.Key, WrongEncoding, fmt.Errorf("it is in %s", encoding))
		default:
			return nil
		}
		if left.Values++; left.Values == 1 {
			left.First = *failure
		}
		if at, known := slices.BinarySearch(left.Found, found); !known {
			left.Found = slices.Insert(left.Found, at, found)
		}
		return nil
	})
	return left, err
}

var errStale = errors.New("it is not encrypted with the present key")

// CountEncodings counts the values of one resource, whose keys all have prefix, by the
// encodings that a Row can have. With an error it returns what it counted so far.
func CountEncodings(ctx context.Context, reader Reader, prefix string) (map[string]int64, error) {
	counts := map[string]int64{}
	err := EachEncoding(ctx, reader, prefix, nil, func(_, encoding string) { counts[encoding]++ })
	return counts, err
}

// EachEncoding calls found with the key and encoding of each value of one resource, whose keys all have prefix. A
// value that verify cannot decode has an unknown encoding; a nil verify reads envelopes only.
func EachEncoding(ctx context.Context, reader Reader, prefix string, verify Verify, found func(key, encoding string)) error {
	return Walk(ctx, reader, prefix, func(e Entry) error {
		encoding, _, ok := Envelope(e.Value)
		switch {
		case !ok:
			found(e.Key, unreadable(e.Value))
		case verify.Why(e.Value) != nil:
			found(e.Key, EncodingUnknown)
		default:
			found(e.Key, string(encoding))
		}
		return nil
	})
}
