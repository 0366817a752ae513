package stock

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/stock/election"
)

const (
	// shutdown bounds how long open requests for health and metrics are waited for.
	shutdown = 2 * time.Second
	// headerTimeout bounds how long a client may take to ask.
	headerTimeout = 10 * time.Second
)

// controllers are one process of them.
type controllers struct {
	config  Config
	kube    kubernetes.Interface
	objects client.WithWatch
	elected *election.Election
	// working is the work under way, nil while this process does not lead.
	working atomic.Pointer[work]
	// lacking is why this process cannot begin; nil if it can, or others do the work.
	lacking atomic.Pointer[error]
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
	return c.elected.Campaign(ctx)
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
	c := &controllers{config: config, kube: kube, objects: objects}
	c.elected = election.New(election.Config{
		Kube: kube, Namespace: config.ElectionNamespace, Instance: config.Instance, Clock: config.Clock, Lead: c.lead,
		Await: func(ctx context.Context, try func(context.Context) error) error { return c.await(ctx, waiting, try) },
	})
	return c, err
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

// ready explains why this process does not do its work. A process that is not elected, but can be, is ready.
func (c *controllers) ready() error {
	if err := c.elected.Forbidden(); err != nil {
		return fmt.Errorf("this process cannot be elected: %w", err)
	}
	if err := c.lacking.Load(); err != nil {
		return fmt.Errorf("this process cannot begin: %w", *err)
	}
	w := c.working.Load()
	if w == nil {
		return nil
	}
	if err := w.observer.overdue(); err != nil {
		return err
	}
	for _, crd := range migrationv1alpha1.CRDs() {
		if w.observer.definitions.of(migrationv1alpha1.ResourceOf(crd)) == nil {
			return fmt.Errorf("the CustomResourceDefinition %s is gone: apply the manifests of concord controllers, or start them again with --install-crds", crd.Name)
		}
	}
	return nil
}

// overdue says since when no full round has finished, and why; nil if that is not long ago.
func (o *observer) overdue() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case !o.whole:
		return errUnasked
	case o.clock.Since(o.finished) < o.patience:
		return nil
	}
	err := fmt.Errorf("kube-apiservers were last asked at %s UTC", o.finished.UTC().Format(time.TimeOnly))
	if o.failing != nil {
		err = fmt.Errorf("%w: %w", err, o.failing)
	}
	return err
}
