package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"go.etcd.io/etcd/server/v3/storage/schema"
)

// ErrDamaged is returned for an etcd database that cannot be used as it is.
var ErrDamaged = errors.New("the etcd database is damaged")

// CheckDatabase has bbolt check an etcd database, and returns ErrDamaged (wrapped) if it cannot be used. It
// waits for the file's lock, shared, at most for the timeout, and then returns bbolt's ErrTimeout (wrapped).
//
// bbolt maps the file and follows what its pages say, so that damage may end its process. The check
// therefore runs in a process of its own: this executable, started again under the name checkName.
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
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, Timeout: timeout}) // reads the meta pages only
	if errors.Is(err, bolterrors.ErrTimeout) || errors.Is(err, os.ErrPermission) {
		return 0, err
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %w", file, ErrDamaged, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := checkApart(file); err != nil {
		return 0, err
	}
	err = db.View(func(tx *bolt.Tx) error {
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if index := meta.Get(schema.MetaConsistentIndexKeyName); len(index) == 8 {
				applied = binary.BigEndian.Uint64(index)
			}
		}
		return nil
	})
	return applied, err
}

// checkName is the name under which this executable checks the database in its first argument, and does nothing else.
const checkName = "concord-check-database"

func init() {
	if os.Args[0] != checkName {
		return
	}
	if err := checkPages(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// checkApart runs checkPages in a process of its own.
func checkApart(file string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	var said bytes.Buffer
	child := exec.Cmd{Path: self, Args: []string{checkName, file}, Stderr: &said}
	err = child.Run()
	var ended *exec.ExitError
	switch {
	case errors.As(err, &ended) && ended.Exited(): // else somebody stopped it
		reason, _, _ := bytes.Cut(said.Bytes(), []byte("\n")) // of a panic or a fault, without the goroutines
		return fmt.Errorf("%s: %w: %s", file, ErrDamaged, reason)
	case err != nil:
		return fmt.Errorf("check %s: %w", file, err)
	}
	return nil
}

// checkPages opens a database as etcd does, which has bbolt go through all pages to see which are free, and
// returns the first thing that bbolt's check finds. The process has to end after an error.
func checkPages(file string) error {
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	tx, err := db.Begin(false)
	if err != nil {
		return err
	}
	if tx.Size() > info.Size() {
		return fmt.Errorf("the file has %d bytes, and should have at least %d", info.Size(), tx.Size())
	}
	return <-tx.Check()
}
