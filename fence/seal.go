package fence

import (
	"context"
	"encoding/binary"
	"errors"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
)

// Sealer is a Transformer whose key may change while its store lives. The Seal of a value is
// part of the encoding that its put needs a permission for: a value that was encrypted with
// a key which this server does not report any more cannot be written.
type Sealer interface {
	value.Transformer
	// Seal encrypts as TransformToStorage does, and returns the Seal of the key that it used.
	Seal(ctx context.Context, data []byte, dataCtx value.Context) (out []byte, with agree.Seal, err error)
	// Current returns the Seal of the key that the method Seal would use now.
	Current() agree.Seal
}

// stamping appends the Seal and its length to each value, so that the fenced client, which receives only bytes from the
// store, knows how the value is sealed.
type stamping struct{ Sealer }

// TransformToStorage implements value.Write.
func (s stamping) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	out, seal, err := s.Seal(ctx, data, dataCtx)
	if err != nil {
		return nil, err
	}
	stamped := make([]byte, 0, len(out)+len(seal)+stampLength)
	stamped = append(append(stamped, out...), seal...)
	return binary.BigEndian.AppendUint16(stamped, uint16(len(seal))), nil
}

// stampLength is that of the length behind a Seal.
const stampLength = 2

var errNoStamp = errors.New("a value reached etcd's client without word of what it is encrypted with")

// unstamp takes a stamped value apart.
func unstamp(stamped []byte) ([]byte, agree.Seal, error) {
	end := len(stamped) - stampLength
	if end < 0 {
		return nil, "", errNoStamp
	}
	start := end - int(binary.BigEndian.Uint16(stamped[end:]))
	if start < 0 {
		return nil, "", errNoStamp
	}
	return stamped[:start:start], agree.Seal(stamped[start:end]), nil
}

// writes returns the encoding in which the store writes now.
func (s Store) writes() agree.Encoding {
	if sealer, ok := s.Transformer.(Sealer); ok {
		return s.Encoding.Sealed(sealer.Current())
	}
	return s.Encoding
}
