package stored

import (
	"context"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// RefuseStored lets tests look at the part of Check that has a bound, which is the test's.
func RefuseStored(ctx context.Context, s Start, reader migratestore.Reader) error {
	return RefuseStoredWithin(ctx, s, reader, context.WithCancel)
}

// RefuseStoredWithin is RefuseStored with a bound for each half of the check.
func RefuseStoredWithin(ctx context.Context, s Start, reader migratestore.Reader, limited func(context.Context) (context.Context, context.CancelFunc)) error {
	return s.refuseStored(ctx, reader, limited)
}
