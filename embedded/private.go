package embedded

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// privateDirName is the directory of the socket in the data directory. It is 0700 whatever the
	// data directory is.
	privateDirName = "run"
	// farPrefix begins the name of a socket's directory outside of the data directory.
	farPrefix = "concord-etcd-"
	// maxSocketPath is the length that the kernel allows for a unix socket's path, less some.
	maxSocketPath = 100
)

// ErrNotPrivate is returned for a directory that other users of the machine can change or enter.
var ErrNotPrivate = errors.New("the directory is not private")

// SocketPath returns the path by which any process of the same user reaches the etcd on a
// data directory: etcd.sock in it, a link to the socket, or, where that path is longer
// than a unix socket's may be, the place that the link names. That one is known while an etcd
// runs, or has been killed, there; else the error is fs.ErrNotExist (wrapped).
func SocketPath(dataDir string) (string, error) {
	link := filepath.Join(dataDir, EtcdSocketName)
	if len(link) <= maxSocketPath {
		return link, nil
	}
	socket, err := os.Readlink(link)
	if err != nil {
		return "", fmt.Errorf("etcd socket: %w", err)
	}
	if !filepath.IsAbs(socket) {
		return "", fmt.Errorf("etcd socket: %s leads to %s, not to a socket's place", link, socket)
	}
	if err := checkPrivate(filepath.Dir(socket)); err != nil {
		return "", fmt.Errorf("etcd socket: %w", err)
	}
	return socket, nil
}

// makeSocketPlace clears away the socket that an etcd that was killed has left, and returns a path
// for the socket, to which etcd.sock in the data directory leads. remove takes both away.
func makeSocketPlace(dataDir string) (socket string, remove func() error, err error) {
	link := filepath.Join(dataDir, EtcdSocketName)
	if err := removeSocket(link); err != nil {
		return "", nil, fmt.Errorf("etcd socket: %w", err)
	}
	target := filepath.Join(privateDirName, EtcdSocketName)
	socket = filepath.Join(dataDir, target)
	if len(socket) > maxSocketPath {
		if socket, err = farSocket(dataDir); err != nil {
			return "", nil, err
		}
		target = socket
	}
	if err := os.Symlink(target, link); err != nil {
		return "", nil, fmt.Errorf("etcd socket: %w", err)
	}
	return socket, func() error { return removeSocket(link) }, nil
}

// farSocket returns a path for the socket in a new directory, for a data directory whose own path is too long.
func farSocket(dataDir string) (string, error) {
	dir, err := os.MkdirTemp("", farPrefix) // 0700, with a name that nobody can foresee
	if err != nil {
		return "", fmt.Errorf("etcd socket: %w", err)
	}
	far, err := filepath.Abs(filepath.Join(dir, EtcdSocketName))
	if err == nil && len(far) > maxSocketPath {
		err = fmt.Errorf("its path may have at most %d bytes: set TMPDIR to a shorter directory than %s, or choose a shorter --data-dir than %s", maxSocketPath, os.TempDir(), dataDir)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("etcd socket: %w", err), os.Remove(dir))
	}
	return far, nil
}

// removeSocket removes a link to a socket, or the socket that an older release has put in
// its place, and the socket's own directory, if it has one.
func removeSocket(link string) error {
	target, err := os.Readlink(link)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && !filepath.IsAbs(target):
		target = filepath.Join(filepath.Dir(link), target)
	}
	if err == nil && filepath.Base(target) == EtcdSocketName {
		if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if dir := filepath.Dir(target); strings.HasPrefix(filepath.Base(dir), farPrefix) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return os.Remove(link)
}

// makePrivate makes a directory that only this process's user can enter. One that is there
// with other permissions or another owner is refused: the files in it may be anybody's.
func makePrivate(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return checkPrivate(dir)
}

func checkPrivate(dir string) error {
	s, err := owned(dir, unix.Lstat)
	if err != nil {
		return err
	}
	if mode := s.Mode & 0o777; mode != 0o700 {
		return fmt.Errorf("%s: %w: its mode is %#o: remove it if nothing of yours is in it, or chmod 700 it", dir, ErrNotPrivate, mode)
	}
	return nil
}

// checkDataDir refuses a data directory in which others could put a file or exchange one. That
// they can list it does no harm: the files in it are private by themselves.
func checkDataDir(dir string) error {
	s, err := owned(dir, unix.Stat)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if mode := s.Mode & 0o777; mode&0o022 != 0 {
		return fmt.Errorf("data directory: %s: %w: its mode %#o lets others write to it: chmod go-w it, or choose as --data-dir a directory below it, which is made", dir, ErrNotPrivate, mode)
	}
	return nil
}

// owned returns the state of a directory of this process's user.
func owned(dir string, stat func(string, *unix.Stat_t) error) (*unix.Stat_t, error) {
	var s unix.Stat_t
	if err := stat(dir, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		return nil, fmt.Errorf("%s: %w: it is no directory: remove it", dir, ErrNotPrivate)
	}
	if uid := os.Geteuid(); int(s.Uid) != uid {
		return nil, fmt.Errorf("%s: %w: it belongs to user %d: chown it to user %d, who runs this process, or choose another --data-dir", dir, ErrNotPrivate, s.Uid, uid)
	}
	return &s, nil
}
