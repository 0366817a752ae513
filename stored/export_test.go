package stored

import (
	"context"
	"time"

	migratestore "github.com/concord-dev/concord/migrate/store"
)

// RefuseStored lets tests look at the part of Check that has a bound.
func RefuseStored(ctx context.Context, s Start, reader migratestore.Reader) error {
	return s.refuseStored(ctx, reader, CheckTimeout)
}

// RefuseStoredWithin is RefuseStored with another bound.
func RefuseStoredWithin(ctx context.Context, s Start, reader migratestore.Reader, limit time.Duration) error {
	return s.refuseStored(ctx, reader, limit)
}
