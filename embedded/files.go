package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
)

// checkFiles looks for damage in the files of an etcd that does not run, which etcd itself
// would answer by ending the process or by waiting without end.
func checkFiles(dir string) error {
	database := datadir.ToBackendFileName(dir)
	if _, err := os.Stat(database); errors.Is(err, os.ErrNotExist) {
		return nil // a first start
	}
	applied, err := checkDatabase(database, etcdStartTimeout)
	if err != nil {
		return err
	}
	logged, err := lastEntry(datadir.ToWALDir(dir))
	if err != nil {
		return err
	}
	if logged < applied {
		return fmt.Errorf("%w: its log in %s ends at entry %d, but the database has entries up to %d: the log was cut off",
			ErrDamaged, datadir.ToWALDir(dir), logged, applied)
	}
	return nil
}

// lastEntry returns the index of the last entry in an etcd's log. An entry that was cut
// off in the middle, which etcd drops, and entries behind damage do not count.
func lastEntry(dir string) (last uint64, err error) {
	names, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil || len(names) == 0 {
		return 0, err
	}
	newest := slices.Max(names) // their names begin with a number of fixed length
	var sequence, first uint64
	if _, err := fmt.Sscanf(filepath.Base(newest), "%016x-%016x.wal", &sequence, &first); err != nil {
		return 0, fmt.Errorf("%s: %w: it has no name of a log", newest, ErrDamaged)
	}
	f, err := os.Open(newest)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	last = max(first, 1) - 1
	decoder := wal.NewDecoder(fileutil.NewFileReader(f))
	for record := new(walpb.Record); decoder.Decode(record) == nil; {
		switch record.GetType() {
		case wal.EntryType:
			last = wal.MustUnmarshalEntry(record.Data).GetIndex()
		case wal.CrcType:
			decoder.UpdateCRC(record.GetCrc())
		}
	}
	return last, nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
