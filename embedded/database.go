package embedded

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
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
// An etcd that meets damage ends its process, from goroutines of its own: it maps the file
// and rebuilds its list of free pages from the tree. bbolt's own check has the same trouble,
// and in a child process it is no better: it believes the length that a page states, which
// took all memory, and does not see a value that goes on behind its page. So the tree's pages
// are read here, as bytes. An etcd that starts has to read the same pages again, and then
// finds them in memory.
func CheckDatabase(file string, timeout time.Duration) error {
	_, err := checkDatabase(file, timeout)
	return err
}

// checkDatabase also returns the index of the last entry of etcd's log that the database
// contains, 0 if it does not say.
func checkDatabase(file string, timeout time.Duration) (applied uint64, err error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() == 0 {
		return 0, nil // left by a first start that was killed; etcd begins it
	}
	db, err := bolt.Open(file, 0, &bolt.Options{ReadOnly: true, Timeout: timeout}) // reads the meta pages only
	switch {
	case errors.Is(err, bolterrors.ErrTimeout), errors.Is(err, os.ErrPermission):
		return 0, err
	case err != nil:
		return 0, fmt.Errorf("%s: %w: %w", file, ErrDamaged, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	err = db.View(func(tx *bolt.Tx) error {
		if tx.Size() > info.Size() {
			return fmt.Errorf("the file has %d bytes, and should have at least %d", info.Size(), tx.Size())
		}
		size := int64(db.Info().PageSize)
		c := &pageCheck{file: f, size: size, pages: uint64(tx.Size() / size)}
		c.seen = make([]bool, c.pages)
		if _, err := c.page(uint64(tx.Cursor().Bucket().Root()), nil, nil); err != nil {
			return err
		}
		if meta := tx.Bucket(schema.Meta.Name()); meta != nil {
			if index := meta.Get(schema.MetaConsistentIndexKeyName); len(index) == 8 {
				applied = binary.BigEndian.Uint64(index)
			}
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w: %w", file, ErrDamaged, err)
	}
	return applied, nil
}

// The format of bbolt's files, which is that of the machine's memory. A page is a header,
// elements, and the data that they point to, counted from their own place.
const (
	pageHeader    = 16 // id uint64, flags uint16, elements uint16, overflow uint32
	pageElement   = 16 // branch: at, key uint32, page uint64; leaf: flags, at, key, value uint32
	bucketHeader  = 16 // root page uint64, sequence uint64
	branchPage    = 1
	leafPage      = 2
	bucketElement = 1
)

var native = binary.NativeEndian

// pageCheck goes through the pages of a database.
type pageCheck struct {
	file  io.ReaderAt
	size  int64  // of a page, in bytes
	pages uint64 // how many there are
	seen  []bool // by page; each may be used once
	leaf  []byte // room for one leaf
}

// page checks a page and those below. Their keys must be at least low and below high,
// where these are not nil; last is the greatest of them.
func (c *pageCheck) page(id uint64, low, high []byte) (last []byte, err error) {
	content, err := c.read(id)
	if err != nil {
		return nil, err
	}
	switch flags := native.Uint16(content[8:]); flags {
	case branchPage:
		last, err = c.branch(content, low, high)
	case leafPage:
		last, err = c.elements(content, low, high)
	default:
		err = fmt.Errorf("it is of no kind that a tree has (%#x)", flags)
	}
	if err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return last, nil
}

// read returns a page with its overflow pages. That of a leaf is valid until the next call.
func (c *pageCheck) read(id uint64) ([]byte, error) {
	if id < 2 || id >= c.pages { // the first two are the meta pages
		return nil, fmt.Errorf("page %d: there is none, of %d", id, c.pages)
	}
	var header [pageHeader]byte
	if _, err := c.file.ReadAt(header[:], int64(id)*c.size); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	overflow := uint64(native.Uint32(header[12:]))
	if self := native.Uint64(header[:]); self != id {
		return nil, fmt.Errorf("page %d: it says that it is page %d", id, self)
	}
	if overflow >= c.pages-id {
		return nil, fmt.Errorf("page %d: it goes on for %d pages, of %d", id, overflow, c.pages)
	}
	for i := id; i <= id+overflow; i++ {
		if c.seen[i] {
			return nil, fmt.Errorf("page %d: it is used twice", i)
		}
		c.seen[i] = true
	}
	length := int(overflow+1) * int(c.size)
	content := c.leaf
	if native.Uint16(header[8:]) != leafPage || cap(content) < length {
		content = make([]byte, length)
	}
	content = content[:length]
	if native.Uint16(header[8:]) == leafPage {
		c.leaf = content
	}
	if _, err := c.file.ReadAt(content, int64(id)*c.size); err != nil {
		return nil, fmt.Errorf("page %d: %w", id, err)
	}
	return content, nil
}

func (c *pageCheck) branch(content, low, high []byte) (last []byte, err error) {
	count := int(native.Uint16(content[10:]))
	if count == 0 {
		return nil, errors.New("it leads nowhere")
	}
	keys, children := make([][]byte, count), make([]uint64, count)
	for i := range count {
		element, err := part(content, pageHeader+i*pageElement, 0, pageElement)
		if err != nil {
			return nil, err
		}
		if keys[i], err = part(content, pageHeader+i*pageElement, native.Uint32(element), native.Uint32(element[4:])); err != nil {
			return nil, err
		}
		children[i] = native.Uint64(element[8:])
	}
	last = low
	for i, key := range keys {
		if err := inOrder(i, key, last, high); err != nil {
			return nil, err
		}
		below := high
		if i+1 < count {
			below = keys[i+1]
		}
		if last, err = c.page(children[i], key, below); err != nil {
			return nil, err
		}
	}
	return last, nil
}

// elements checks a leaf, which may also be one inside of another leaf.
func (c *pageCheck) elements(content, low, high []byte) (last []byte, err error) {
	last = low
	var buckets [][]byte
	for i := range int(native.Uint16(content[10:])) {
		at := pageHeader + i*pageElement
		element, err := part(content, at, 0, pageElement)
		if err != nil {
			return nil, err
		}
		offset, size := native.Uint32(element[4:]), native.Uint32(element[8:])
		key, err := part(content, at, offset, size)
		if err != nil {
			return nil, err
		}
		value, err := part(content, at+int(size), offset, native.Uint32(element[12:]))
		if err != nil {
			return nil, err
		}
		if err := inOrder(i, key, last, high); err != nil {
			return nil, err
		}
		last = key
		if native.Uint32(element)&bucketElement != 0 {
			buckets = append(buckets, bytes.Clone(value))
		}
	}
	last = bytes.Clone(last) // the leaf's content is that of another one soon
	for _, value := range buckets {
		if err := c.bucket(value); err != nil {
			return nil, err
		}
	}
	return last, nil
}

func (c *pageCheck) bucket(value []byte) error {
	if len(value) < bucketHeader {
		return errors.New("it holds a bucket without a root")
	}
	if root := native.Uint64(value); root != 0 {
		_, err := c.page(root, nil, nil)
		return err
	}
	// A small bucket is a leaf in its parent's.
	inline := value[bucketHeader:]
	if len(inline) < pageHeader || native.Uint16(inline[8:]) != leafPage {
		return errors.New("it holds a bucket that is no page")
	}
	_, err := c.elements(inline, nil, nil)
	return err
}

// part returns size bytes at offset from a place in a page.
func part(content []byte, at int, offset, size uint32) ([]byte, error) {
	from := int64(at) + int64(offset)
	if from+int64(size) > int64(len(content)) {
		return nil, errors.New("it points behind its end")
	}
	return content[from : from+int64(size)], nil
}

// inOrder checks the i-th key of a page against the greatest before and the first behind.
func inOrder(i int, key, before, behind []byte) error {
	order := bytes.Compare(before, key)
	if before != nil && (order > 0 || order == 0 && i > 0) || behind != nil && bytes.Compare(key, behind) >= 0 {
		return fmt.Errorf("its key %x is out of order", key)
	}
	return nil
}
