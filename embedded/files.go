package embedded

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/datadir"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"golang.org/x/sys/unix"
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

// closedName is the file in which an orderly shutdown leaves a description of etcd's files. As long as the description
// matches, nobody has written to the files, and they need not be checked, which takes long for a large database.
const closedName = "etcd.closed"

// describeFiles describes an etcd's files by attributes that change whenever one is replaced or
// written to: their inodes, sizes and times of change, which cannot be set.
func describeFiles(dir string) (string, error) {
	names := []string{datadir.ToBackendFileName(dir)}
	for _, pattern := range []string{filepath.Join(datadir.ToWALDir(dir), "*.wal"), filepath.Join(datadir.ToSnapDir(dir), "*.snap")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		names = append(names, found...)
	}
	var text strings.Builder
	for _, name := range names {
		var s unix.Stat_t
		if err := unix.Stat(name, &s); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		fmt.Fprintf(&text, "%s inode %d, %d bytes, changed at %d.%09d\n", filepath.Base(name), s.Ino, s.Size, s.Ctim.Sec, s.Ctim.Nsec)
	}
	return text.String(), nil
}

// markClosed describes the files of an etcd that was just closed.
func markClosed(dataDir string) error {
	description, err := describeFiles(filepath.Join(dataDir, EtcdDirName))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dataDir, closedName), []byte(description), 0o600)
}

// takeClosed reports whether the files are as an orderly shutdown left them, and durably removes the mark that says
// so: after a loss of power the times of change may be older than the files.
func takeClosed(dataDir string) (bool, error) {
	mark := filepath.Join(dataDir, closedName)
	description, err := os.ReadFile(mark)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := os.Remove(mark); err != nil {
		return false, err
	}
	if err := syncDir(dataDir); err != nil {
		return false, err
	}
	now, err := describeFiles(filepath.Join(dataDir, EtcdDirName))
	return err == nil && now == string(description), nil // a missing file is found by the check
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
