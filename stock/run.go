package stock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/connect"
)

const (
	// electionLock is the Lease by which one process is elected. It is not that of Concord
	// servers, whose controllers it must not keep from working.
	electionLock = "concord-controllers-stock"
	// The usual times of an election.
	electionLease = 15 * time.Second
	electionRenew = 10 * time.Second
	electionRetry = 2 * time.Second
	// shutdown bounds how long open requests for health and metrics are waited for.
	shutdown = 2 * time.Second
	// headerTimeout bounds how long a client may take to ask.
	headerTimeout = 10 * time.Second
)

// errDeposed says that another process leads now.
var errDeposed = errors.New("the election was lost: another process works on")

// controllers are one process of them.
type controllers struct {
	config  Config
	kube    kubernetes.Interface
	objects client.WithWatch
	ballot  ballot
	// working is the work under way, nil while this process does not lead.
	working atomic.Pointer[work]
}

// Run works until ctx ends, or the election is lost: then the process should end.
func Run(ctx context.Context, config Config) error {
	c, err := newControllers(config)
	if err != nil {
		return err
	}
	stop, err := c.serve()
	if err != nil {
		return err
	}
	defer stop()
	if !c.config.LeaderElect {
		return c.lead(ctx)
	}
	return c.campaign(ctx)
}

func newControllers(config Config) (*controllers, error) {
	config = config.withDefaults()
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config.Rest = rest.CopyConfig(config.Rest)
	config.Rest.QPS = -1 // the work done at a time is bounded, and kube-apiservers say when they are busy
	kube, err := kubernetes.NewForConfig(config.Rest)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	objects, err := connect.NewClient(config.Rest)
	return &controllers{config: config, kube: kube, objects: objects}, err
}

// campaign runs for election while nobody is elected in another namespace, and leads once.
func (c *controllers) campaign(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	others := c.newRivals()
	if c.await(ctx, "Waiting", func(ctx context.Context) error { return others.none(ctx, false) }) != nil {
		return nil // ctx has ended
	}
	c.ballot.Interface = &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: c.config.ElectionNamespace, Name: electionLock},
		Client:     c.kube.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.config.Instance},
	}
	led := make(chan error, 1)
	var leading atomic.Bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &c.ballot, LeaseDuration: electionLease, RenewDeadline: electionRenew, RetryPeriod: electionRetry,
		ReleaseOnCancel: true, Name: electionLock,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				leading.Store(true)
				led <- c.leadAlone(ctx, others)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("election: %w", err)
	}
	stopped := ctx.Done()
	elector.Run(ctx)
	if !leading.Load() {
		return nil // ctx has ended
	}
	err = <-led
	select {
	case <-stopped:
		return err
	default:
		return errors.Join(errDeposed, err)
	}
}

// ballot is the Lease of the election. It remembers that a right on it is missing, without which nobody is elected.
type ballot struct {
	resourcelock.Interface

	mu sync.Mutex
	// unread and unwritten are why the last read and the last write were forbidden; nil if they were not.
	unread, unwritten error
}

// Get implements resourcelock.Interface. While another process has the Lease this one writes nothing: what it
// was forbidden before may be allowed by now.
func (b *ballot) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := b.Interface.Get(ctx)
	if err == nil && record.HolderIdentity != "" && record.HolderIdentity != b.Identity() {
		_ = b.note(&b.unwritten, nil)
	}
	return record, raw, b.note(&b.unread, err)
}

// Create implements resourcelock.Interface.
func (b *ballot) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return b.note(&b.unwritten, b.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (b *ballot) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return b.note(&b.unwritten, b.Interface.Update(ctx, record))
}

func (b *ballot) note(last *error, err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if *last = nil; apierrors.IsForbidden(err) {
		*last = err
	}
	return err
}

// forbidden is why nobody can be elected; nil if no right is known to be missing.
func (b *ballot) forbidden() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return cmp.Or(b.unread, b.unwritten)
}

// serve answers for health and metrics.
func (c *controllers) serve() (stop func(), err error) {
	if c.config.Address == "" {
		return func() {}, nil
	}
	listener, err := net.Listen("tcp", c.config.Address)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	registerMetrics()
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, nil) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { answer(w, c.ready()) })
	mux.Handle("/metrics", legacyregistry.Handler())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // it ends with Shutdown
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdown)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
		serving.Wait()
	}, nil
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}

// ready says why this process does not do its work; one that is not elected, and can be, has to wait, and is ready.
func (c *controllers) ready() error {
	if err := c.ballot.forbidden(); err != nil {
		return fmt.Errorf("this process cannot be elected: %w", err)
	}
	w := c.working.Load()
	if w == nil {
		return nil
	}
	if _, err := w.observer.has(schema.GroupResource{}); errors.Is(err, errUnasked) {
		return err
	}
	return nil
}
