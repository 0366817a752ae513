package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"k8s.io/klog/v2"
)

const (
	// EtcdSocketName is the embedded etcd's client socket in the data directory, a link.
	EtcdSocketName = "etcd.sock"
	// EtcdDirName is the embedded etcd's data in the data directory.
	EtcdDirName = "etcd"

	lockName = "lock"
	// firstStartName marks a data directory in which no etcd has become ready yet.
	firstStartName   = "etcd.first-start"
	etcdStartTimeout = 60 * time.Second
	// etcdCallsTimeout, a part of etcdCloseTimeout, is for calls under way.
	etcdCallsTimeout = time.Second
	etcdQuotaBytes   = 8 << 30

	etcdMend = "if its files are damaged, restore a backup there (etcdutl snapshot restore), or start with another --data-dir"
)

// etcdCloseTimeout bounds Close. Tests of this package give a busy disk more.
var etcdCloseTimeout = 3 * time.Second

// ErrLocked is returned when another process uses the data directory.
var ErrLocked = errors.New("the data directory is in use by another process")

// Etcd is an embedded etcd that listens on a unix socket.
type Etcd struct {
	// Endpoint is where clients reach it.
	Endpoint string

	etcd    *embed.Etcd
	calls   atomic.Pointer[grpc.Server]
	dataDir string
	lock    *os.File
	remove  []func() error

	closing  sync.Once
	closeErr error
}

// StartEtcd starts an etcd on dataDir, which is made if it is missing, and waits until
// it serves. It returns ErrLocked (wrapped) when another process uses the directory, and
// ErrNotPrivate (wrapped) when other users could change what is in it. edits change its
// configuration.
func StartEtcd(ctx context.Context, dataDir string, edits ...func(*embed.Config)) (*Etcd, error) {
	if err := os.MkdirAll(dataDir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := checkDataDir(dataDir); err != nil {
		return nil, err
	}
	lock, err := lockDir(dataDir)
	if err != nil {
		return nil, err
	}
	if err := makePrivate(filepath.Join(dataDir, privateDirName)); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory: %w", err), lock.Close())
	}
	e := &Etcd{dataDir: dataDir, lock: lock}
	if err := e.start(ctx, edits); err != nil {
		return nil, errors.Join(err, e.release())
	}
	return e, nil
}

func (e *Etcd) start(ctx context.Context, edits []func(*embed.Config)) error {
	socket, remove, err := makeSocketPlace(e.dataDir)
	if err != nil {
		return err
	}
	e.remove = append(e.remove, remove)
	cfg, err := e.config(socket)
	if err != nil {
		return err
	}
	for _, edit := range edits {
		edit(cfg)
	}
	WithoutPeers(cfg)
	finish, err := beginFirst(e.dataDir)
	if err != nil {
		return err
	}
	var etcd *embed.Etcd
	if err = checkFiles(cfg.Dir); err == nil {
		etcd, err = openEtcd(cfg)
	}
	if err != nil {
		mend := etcdMend
		if errors.Is(err, unix.ENOSPC) {
			mend = "make room on its disk"
		}
		return fmt.Errorf("etcd in %s does not start: %w: %s", cfg.Dir, err, mend)
	}
	if err := awaitReady(ctx, etcd); err != nil {
		abandon(etcd)
		if ctx.Err() != nil {
			return fmt.Errorf("etcd in %s was stopped while it started: %w", cfg.Dir, err)
		}
		return fmt.Errorf("etcd in %s does not become ready: %w: %s", cfg.Dir, err, etcdMend)
	}
	// Its directory has kept others out until here.
	if err := errors.Join(os.Chmod(socket, 0o600), finish()); err != nil {
		abandon(etcd)
		return fmt.Errorf("data directory: %w", err)
	}
	e.etcd = etcd
	return nil
}

// Open starts an etcd on files that are sound, and waits until it is ready.
func Open(ctx context.Context, cfg *embed.Config) (*embed.Etcd, error) {
	etcd, err := openEtcd(cfg)
	if err != nil {
		return nil, err
	}
	if err := awaitReady(ctx, etcd); err != nil {
		abandon(etcd)
		return nil, err
	}
	return etcd, nil
}

func awaitReady(ctx context.Context, etcd *embed.Etcd) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return nil
	case err := <-etcd.Err():
		return err
	case <-time.After(etcdStartTimeout):
		return fmt.Errorf("not ready after %v", etcdStartTimeout)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginFirst marks the data directory during the first start of an etcd in it. If an earlier first start was
// interrupted, it may have left a log without etcd's own membership, with which etcd never becomes ready; these files
// are moved aside, since nobody has used them. finish ends the first start.
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

// abandon closes an etcd that never became ready. An etcd that waits for missing log entries never closes; the process
// ends anyway.
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
// and for the database in a goroutine of its own, so the files have to be checked beforehand.
func openEtcd(cfg *embed.Config) (etcd *embed.Etcd, err error) {
	defer func() {
		if r := recover(); r != nil {
			etcd = nil
			if logged, ok := r.(error); ok {
				err = logged
			} else {
				err = fmt.Errorf("%v", r)
			}
		}
	}()
	return embed.StartEtcd(cfg)
}

// EtcdLogger returns a logger for an embedded etcd. It drops etcd's messages, since important ones arrive as errors,
// and panics with an error where etcd would panic or end the process.
func EtcdLogger() *zap.Logger {
	return zap.NewNop().WithOptions(zap.WithFatalHook(errorPanics{}), zap.WithPanicHook(errorPanics{}))
}

// errorPanics turns log entries into panics, which can be recovered, with the errors that the entries have.
type errorPanics struct{}

// OnWrite implements zapcore.CheckWriteHook.
func (errorPanics) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	logged := errors.New(entry.Message)
	for _, f := range fields {
		if err, ok := f.Interface.(error); ok && f.Type == zapcore.ErrorType {
			logged = fmt.Errorf("%w: %w", logged, err)
		}
	}
	panic(logged)
}

// config is an etcd's that clients reach by the socket, or by the link to it where that
// path is short enough.
func (e *Etcd) config(socket string) (*embed.Config, error) {
	path, err := SocketPath(e.dataDir)
	if err != nil {
		return nil, err
	}
	e.Endpoint = "unix://" + path
	listen, err := url.Parse("unix://" + socket)
	if err != nil {
		return nil, err
	}
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(e.dataDir, EtcdDirName)
	cfg.Name = "concord"
	cfg.ListenClientUrls = []url.URL{*listen}
	cfg.AdvertiseClientUrls = []url.URL{*listen}
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(EtcdLogger())
	cfg.QuotaBackendBytes = etcdQuotaBytes
	cfg.ServiceRegister = func(s *grpc.Server) { e.calls.Store(s) }
	return cfg, nil
}

// Close stops the etcd and releases the data directory. It takes at most 3 s: calls get one of them to finish;
// watches, which do not end by themselves, are then cut off. It may be called again.
func (e *Etcd) Close() error {
	e.closing.Do(func() { e.closeErr = e.close() })
	return e.closeErr
}

func (e *Etcd) close() error {
	e.cutOff()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		e.etcd.Close()
	}()
	select {
	case <-closed:
	case <-time.After(etcdCloseTimeout - etcdCallsTimeout):
		// The data directory stays locked: this process may write to it yet.
		return fmt.Errorf("the etcd in %s has not stopped within %v: it ends with this process", e.dataDir, etcdCloseTimeout)
	}
	return e.release()
}

// cutOff ends the calls of clients. Etcd itself waits for the watches of clients, such as
// other servers, for seven seconds.
func (e *Etcd) cutOff() {
	calls := e.calls.Load()
	if calls == nil {
		return // closed in the moment in which it became ready
	}
	cut := time.AfterFunc(etcdCallsTimeout, calls.Stop)
	defer cut.Stop()
	calls.GracefulStop()
}

// release removes the files that only a running etcd needs, and unlocks the data directory.
func (e *Etcd) release() error {
	var errs []error
	for _, remove := range e.remove {
		errs = append(errs, remove())
	}
	return errors.Join(append(errs, e.lock.Close())...)
}

// Err delivers the error that stopped the etcd.
func (e *Etcd) Err() <-chan error { return e.etcd.Err() }

func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s: %w: stop it, choose another --data-dir%s", dir, ErrLocked, joining(dir))
		}
		return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return f, nil
}

// joining says how to use the etcd of the process that has the data directory, and the certificates
// and keys of its cluster, which are in the data directory unless its --cert-dir says otherwise.
func joining(dataDir string) string {
	socket, err := SocketPath(dataDir)
	if err != nil {
		return "" // it is about to start or end
	}
	return fmt.Sprintf(", or join its etcd with --etcd-servers unix://%s --cert-dir %s (its own --cert-dir, if it has one) --data-dir <another>", socket, filepath.Join(dataDir, "pki"))
}
