package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/concord-dev/concord/embedded"
)

const (
	socketDialTimeout = 2 * time.Second
	storeLockTimeout  = 2 * time.Second
)

// storedData is the etcd of a data directory: behind endpoint if it is running, else at
// rest in dir.
type storedData struct {
	dataDir  string
	dir      string
	endpoint string
}

// findStore looks whether an etcd is in the data directory and whether it runs.
func findStore(dataDir string) (storedData, error) {
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return storedData{}, fmt.Errorf("data directory: %w", err)
	}
	store := storedData{dataDir: dataDir, dir: filepath.Join(dataDir, embedded.EtcdDirName)}
	if _, err := os.Stat(store.backend()); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return storedData{}, fmt.Errorf("there is no etcd in %s: give the --data-dir of a server that has run with an embedded etcd, or --etcd-servers", dataDir)
		}
		return storedData{}, fmt.Errorf("data directory: %w", err)
	}
	socket, err := embedded.SocketPath(dataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return store, nil
	}
	if err != nil {
		return storedData{}, err
	}
	if conn, err := net.DialTimeout("unix", socket, socketDialTimeout); err == nil {
		store.endpoint = "unix://" + socket
		return store, conn.Close()
	}
	return store, nil
}

func (s storedData) backend() string { return filepath.Join(s.dir, "member", "snap", "db") }

// openCopy starts a private etcd on a copy of the data and returns a client of it. The
// write-ahead log may be ahead of the database, so the database alone would not do.
func (s storedData) openCopy(ctx context.Context) (client *clientv3.Client, closeClient func() error, err error) {
	// Else a process whose output nobody reads ends at once, and leaves the copy, with all Secrets.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	dir, err := os.MkdirTemp("", "concord-census-")
	if err != nil {
		return nil, nil, fmt.Errorf("copy of %s: %w", s.dir, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := s.copyTo(ctx, filepath.Join(dir, "etcd")); err != nil {
		return nil, nil, err
	}
	etcd, err := startPrivate(ctx, dir)
	switch {
	case ctx.Err() != nil:
		if err == nil {
			etcd.Close()
		}
		return nil, nil, ctx.Err()
	case err != nil:
		return nil, nil, fmt.Errorf("the etcd in %s cannot be opened (if its files are damaged, restore a backup): %w", s.dir, err)
	}
	client = v3client.New(etcd.Server)
	return client, func() error {
		_ = client.Close() // which returns that its context has ended
		etcd.Close()
		return os.RemoveAll(dir)
	}, nil
}

// copyTo copies the data while it holds the database's shared lock, so that no etcd writes in the meantime.
func (s storedData) copyTo(ctx context.Context, to string) (err error) {
	if err := embedded.CheckDatabase(s.backend(), storeLockTimeout); errors.Is(err, embedded.ErrDamaged) {
		return fmt.Errorf("%w: restore a backup (etcdutl snapshot restore) and count in that", err)
	}
	db, err := bolt.Open(s.backend(), 0, &bolt.Options{ReadOnly: true, Timeout: storeLockTimeout})
	if err != nil {
		if errors.Is(err, bolterrors.ErrTimeout) {
			return fmt.Errorf("%s is in use but its etcd does not answer on its socket: wait until the server is up, stop it, or give --etcd-servers", s.dataDir)
		}
		return fmt.Errorf("open %s: %w", s.backend(), err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return filepath.WalkDir(filepath.Join(s.dir, "member"), func(path string, d fs.DirEntry, err error) error {
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		rel, err := filepath.Rel(s.dir, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		case d.Type().IsRegular() && filepath.Ext(path) != ".tmp": // preallocated logs, without content
			return copyFile(path, filepath.Join(to, rel))
		}
		return nil
	})
}

func copyFile(from, to string) (err error) {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// startPrivate starts an etcd on the copy in dir, as the only member whatever cluster
// the data is from.
func startPrivate(ctx context.Context, dir string) (*embed.Etcd, error) {
	cfg := privateConfig(dir)
	embedded.WithoutPeers(cfg)
	return embedded.Open(ctx, cfg)
}

func privateConfig(dir string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "census"
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.ForceNewCluster = true
	cfg.UnsafeNoFsync = true
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "client.sock")}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(embedded.EtcdLogger())
	return cfg
}
