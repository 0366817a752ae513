package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// EtcdSocketName is the embedded etcd's client socket in the data directory.
	EtcdSocketName = "etcd.sock"
	// EtcdDirName is the embedded etcd's data in the data directory.
	EtcdDirName = "etcd"

	lockName = "lock"
	// firstStartName marks a data directory in which no etcd has become ready yet.
	firstStartName = "etcd.first-start"
	// maxSocketPath is what the kernel allows for a unix socket's path.
	maxSocketPath    = 100
	etcdStartTimeout = 60 * time.Second
	etcdCloseTimeout = 3 * time.Second
	etcdQuotaBytes   = 8 << 30

	etcdMend = "if its files are damaged, restore a backup there (etcdutl snapshot restore), or start with another --data-dir"
)

// ErrLocked is returned when another process uses the data directory.
var ErrLocked = errors.New("the data directory is in use by another process")

// Etcd is an embedded etcd that listens on a unix socket.
type Etcd struct {
	// Endpoint is where clients reach it.
	Endpoint string

	etcd    *embed.Etcd
	dataDir string
	lock    *os.File
}

// StartEtcd starts an etcd on dataDir, which is made if it is missing, and waits until
// it serves. It returns ErrLocked (wrapped) when another process uses the directory.
func StartEtcd(ctx context.Context, dataDir string) (*Etcd, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(dataDir)
	if err != nil {
		return nil, err
	}
	e, err := startEtcd(ctx, dataDir)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	e.lock, e.dataDir = lock, dataDir
	return e, nil
}

func startEtcd(ctx context.Context, dataDir string) (*Etcd, error) {
	socket, err := SocketPath(dataDir)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("etcd socket: %w", err)
	}
	endpoint := "unix://" + socket
	cfg, err := etcdConfig(dataDir, endpoint)
	if err != nil {
		return nil, err
	}
	finish, err := beginFirst(dataDir)
	if err != nil {
		return nil, err
	}
	sound, err := takeClosed(dataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	etcd, err := openEtcd(cfg, sound)
	if err != nil {
		return nil, fmt.Errorf("etcd in %s does not start: %w: %s", cfg.Dir, err, etcdMend)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		if err := finish(); err != nil {
			abandon(etcd)
			return nil, fmt.Errorf("data directory: %w", err)
		}
		return &Etcd{Endpoint: endpoint, etcd: etcd}, nil
	case err = <-etcd.Err():
	case <-time.After(etcdStartTimeout):
		err = fmt.Errorf("not ready after %v", etcdStartTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	abandon(etcd)
	return nil, fmt.Errorf("etcd in %s does not become ready: %w: %s", cfg.Dir, err, etcdMend)
}

// beginFirst marks the data directory during an etcd's first start in it. What a first
// start that was cut off has left, which may be a log without the etcd's own membership
// and never becomes ready, is put aside: nobody has used it. finish ends the first start.
func beginFirst(dataDir string) (finish func() error, err error) {
	dir, mark := filepath.Join(dataDir, EtcdDirName), filepath.Join(dataDir, firstStartName)
	if _, err := os.Stat(mark); err == nil {
		aside := fmt.Sprintf("%s.unfinished-%d", dir, time.Now().UnixNano())
		switch err := os.Rename(dir, aside); {
		case err == nil:
			klog.Background().Info("Put aside what a first start that was cut off has left", "directory", aside)
		case !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("data directory: %w", err)
		}
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return func() error { return nil }, err
	}
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	return func() error {
		if err := os.Remove(mark); err != nil {
			return err
		}
		// A mark that came back with a loss of power would put objects aside.
		return syncDir(dataDir)
	}, nil
}

// abandon closes an etcd that never became ready. One that waits for log entries which
// are not there never closes; the process ends anyway.
func abandon(etcd *embed.Etcd) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		etcd.Server.HardStop()
		etcd.Close()
	}()
	select {
	case <-closed:
	case <-time.After(etcdCloseTimeout):
	}
}

// openEtcd starts an etcd. On damaged files it would end the process: through its logger,
// and for the database in a goroutine of its own, so the files are checked beforehand,
// unless they are known to be sound.
func openEtcd(cfg *embed.Config, sound bool) (etcd *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			etcd, err = nil, fmt.Errorf("%v", r)
		}
	}()
	if !sound {
		if err := checkFiles(cfg.Dir); err != nil {
			return nil, err
		}
	}
	return embed.StartEtcd(cfg)
}

// EtcdLogger returns a logger for an embedded etcd. It drops what etcd logs, since what
// matters comes as errors, and panics where etcd would end the process.
func EtcdLogger() *zap.Logger { return zap.NewNop().WithOptions(zap.WithFatalHook(fatalPanics{})) }

// fatalPanics turns fatal log entries into panics, which can be recovered.
type fatalPanics struct{}

// OnWrite implements zapcore.CheckWriteHook.
func (fatalPanics) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	message := entry.Message
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			message += ": " + err.Error()
		}
	}
	panic(message)
}

func etcdConfig(dataDir, endpoint string) (*embed.Config, error) {
	client, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dataDir, EtcdDirName)
	cfg.Name = "concord"
	cfg.ListenClientUrls = []url.URL{*client}
	cfg.AdvertiseClientUrls = []url.URL{*client}
	cfg.ListenPeerUrls = []url.URL{peer}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(EtcdLogger())
	cfg.QuotaBackendBytes = etcdQuotaBytes
	return cfg, nil
}

// Close stops the etcd and releases the data directory.
func (e *Etcd) Close() error {
	e.etcd.Close()
	if err := markClosed(e.dataDir); err != nil {
		klog.Background().V(1).Info("The next start will have to check the etcd's files", "err", err)
	}
	return e.lock.Close()
}

// Err delivers the error that stopped the etcd.
func (e *Etcd) Err() <-chan error { return e.etcd.Err() }

// SocketPath returns the embedded etcd's client socket for a data directory: in it, or,
// where that path is longer than a unix socket's may be, in a private directory of the
// system's temporary one.
func SocketPath(dataDir string) (string, error) {
	socket := filepath.Join(dataDir, EtcdSocketName)
	if len(socket) <= maxSocketPath {
		return socket, nil
	}
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("concord-%x", sha256.Sum256([]byte(dataDir)))[:24])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("etcd socket: %w", err)
	}
	return filepath.Join(dir, EtcdSocketName), nil
}

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w: stop it, choose another --data-dir, or join its etcd with --etcd-servers unix://%s", dir, ErrLocked, filepath.Join(dir, EtcdSocketName))
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}
