package stored

import (
	"context"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// RefuseStored does the part of Check that has a time limit, with the test's context as the limit.
func RefuseStored(ctx context.Context, s Start, reader migratestore.Reader) error {
	return RefuseStoredWithin(ctx, s, reader, context.WithCancel)
}

// RefuseStoredWithin is RefuseStored with a time limit for each half of the check.
func RefuseStoredWithin(ctx context.Context, s Start, reader migratestore.Reader, limited func(context.Context) (context.Context, context.CancelFunc)) error {
	return s.refuseStored(ctx, reader, limited)
}
