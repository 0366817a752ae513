package stored

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/census"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// Take counts the values under prefix into the census' rows. transformer opens them, and seal
// says what an encrypted one is encrypted with. With an error the rows are what it counted so
// far.
func Take(ctx context.Context, c *census.Resource, reader migratestore.Reader, prefix string, transformer value.Transformer, seal func([]byte) agree.Seal) error {
	began := time.Now()
	rows := map[string]*migratestore.Row{}
	c.First = map[string][]string{}
	err := migratestore.Walk(ctx, reader, prefix, func(e migratestore.Entry) error {
		encoding := encodingOf(ctx, e, transformer, seal)
		if rows[encoding] == nil {
			rows[encoding] = &migratestore.Row{Resource: c.Resource, Encoding: encoding}
		}
		rows[encoding].Objects++
		if len(c.First[encoding]) < census.Named {
			c.First[encoding] = append(c.First[encoding], strings.TrimPrefix(e.Key, prefix))
		}
		rows[encoding].Bytes += int64(len(e.Value))
		return nil
	})
	c.ReadSeconds = time.Since(began).Seconds()
	for _, row := range rows {
		c.Rows = append(c.Rows, *row)
	}
	slices.SortFunc(c.Rows, func(a, b migratestore.Row) int { return strings.Compare(a.Encoding, b.Encoding) })
	return err
}

// encodingOf is what a stored value says that it is encoded in, and encrypted with.
func encodingOf(ctx context.Context, e migratestore.Entry, transformer value.Transformer, seal func([]byte) agree.Seal) string {
	if encoding, _, ok := migratestore.Envelope(e.Value); ok {
		return string(encoding)
	}
	if plain, _, err := transformer.TransformFromStorage(ctx, e.Value, value.DefaultContext(e.Key)); err == nil {
		if encoding, _, ok := migratestore.Envelope(plain); ok {
			return string(encoding.Sealed(seal(e.Value)))
		}
	}
	return migratestore.EncodingUnknown
}
