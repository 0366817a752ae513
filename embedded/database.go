package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"runtime/debug"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// ErrDamaged is returned for an etcd database that cannot be used as it is.
var ErrDamaged = errors.New("the etcd database is damaged")

// CheckDatabase reads the whole etcd database in a file and returns ErrDamaged (wrapped)
// if it cannot be used. It waits for the file's lock, shared, at most for the timeout, and
// then returns bbolt's ErrTimeout (wrapped).
//
// An etcd that meets damage ends its process: bbolt maps the file and follows what its pages
// say, in goroutines of its own. So all keys and values are read first, in a goroutine where a fault
// is an error. What bbolt looks for when it opens a database then finds pages that it can follow, but
// for lengths and circles of pages that it believes: these may still end the process, as they end etcd.
// A file in which bbolt finds damage stays open and locked. An etcd that starts has to read the same
// pages again, and then finds them in memory.
func CheckDatabase(file string, timeout time.Duration) error {
	_, err := checkDatabase(file, timeout)
	return err
}

// checkDatabase also returns the index of the last entry of etcd's log that the database
// contains, 0 if it does not say.
func checkDatabase(file string, timeout time.Duration) (applied uint64, err error) {
	info, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	if info.Size() == 0 {
		return 0, nil // left by a first start that was killed; etcd begins it
	}
	err = recovered(func() error {
		applied, err = readAll(file, info.Size(), timeout)
		return err
	})
	if err == nil {
		err = recovered(func() error { return readFreePages(file, timeout) })
	}
	if err != nil && !errors.Is(err, bolterrors.ErrTimeout) && !errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%s: %w: %w", file, ErrDamaged, err)
	}
	return applied, err
}

// recovered calls f, and returns its panic, or its fault at an address, as an error.
func recovered(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// readAll reads every key and value of a database, and returns the last applied entry's index.
func readAll(file string, size int64, timeout time.Duration) (applied uint64, err error) {
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, Timeout: timeout}) // reads the meta pages only
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > size {
			return fmt.Errorf("the file has %d bytes, and should have at least %d", size, tx.Size())
		}
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if index := meta.Get(schema.MetaConsistentIndexKeyName); len(index) == 8 {
				applied = binary.BigEndian.Uint64(index)
			}
		}
		return tx.ForEach(readBucket)
	})
	return applied, err
}

// readBucket reads each key and value of a bucket of etcd's, which holds no other buckets, and looks
// each key up, which reads the keys of the pages above.
func readBucket(name []byte, b *bolt.Bucket) error {
	var last []byte
	lookUp := b.Cursor()
	return b.ForEach(func(key, value []byte) error {
		if found, _ := lookUp.Seek(key); value == nil || !bytes.Equal(found, key) || last != nil && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("bucket %s: key %x is damaged", name, key)
		}
		last = key
		crc32.ChecksumIEEE(value) // reads it
		return nil
	})
}

// readFreePages opens a database as etcd does, which has bbolt go through all pages to see which are free,
// and checks the order of keys and that no page is used twice.
func readFreePages(file string, timeout time.Duration) error {
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true, Timeout: timeout})
	if err != nil {
		return err
	}
	return db.Close()
}
