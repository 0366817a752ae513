package generic

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	controlplaneoptions "k8s.io/kubernetes/pkg/controlplane/apiserver/options"

	"github.com/concord-dev/concord/server"
	"github.com/concord-dev/concord/server/controllers"
)

// closeTimeout bounds how long a stopping server waits for connections to close.
const closeTimeout = 10 * time.Second

// Server is one running API server.
type Server struct {
	address    string
	kubeconfig string
}

// Address is the host and port it serves on.
func (s *Server) Address() string { return s.address }

// Kubeconfig is the administrator's kubeconfig for it.
func (s *Server) Kubeconfig() string { return s.kubeconfig }

// Run starts the server that completed options describe and serves until ctx ends; then
// it drains and returns. serving is called once the port answers.
func Run(ctx context.Context, o *Options, serving func(*Server)) (err error) {
	// client-go logs warnings that servers send; the server's own clients need none.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	// The port first: a taken one is found before anything is made.
	listening := o.serving()
	if listening.Listener, listening.BindPort, err = openPort(listening.SecureServingOptions); err != nil {
		return err
	}
	defer func() {
		if err != nil { // else the library has closed it, or still serves on it in a process that ends
			_ = listening.Listener.Close()
		}
	}()
	stop, err := o.embedEtcd(ctx)
	if err != nil {
		_ = listening.Listener.Close()
		return unlessStopped(ctx, err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	return o.serve(ctx, serving)
}

// serve assembles the server on its etcd and runs it.
func (o *Options) serve(ctx context.Context, serving func(*Server)) error {
	certs, err := o.ensureCertificates()
	if err != nil {
		return err
	}
	completed, err := o.library(ctx, certs)
	if err != nil {
		return err
	}
	configs, err := newConfigs(completed)
	if err != nil {
		return err
	}
	if err := o.publishFrontProxy(configs, certs); err != nil {
		return err
	}
	if o.Join != nil {
		if err := o.Join.Configure(configs); err != nil {
			return err
		}
	}
	chain, err := newChain(configs)
	if err != nil {
		return err
	}
	if err := o.addHooks(chain, configs, certs, serving); err != nil {
		return err
	}
	return run(ctx, chain.Aggregator, configs.ControlPlane.Generic.LoopbackClientConfig, o.etcd().StorageConfig)
}

// addHooks starts what runs with the server.
func (o *Options) addHooks(chain *Chain, configs *Configs, certs *server.Certificates, serving func(*Server)) error {
	last := chain.Last()
	// Requests are waited for elsewhere.
	last.ShutdownTimeout = closeTimeout
	if o.Join != nil {
		if err := o.Join.Start(chain); err != nil {
			return err
		}
	}
	if o.Controllers {
		if err := o.addControllers(last, configs, certs); err != nil {
			return err
		}
	}
	if serving == nil {
		return nil
	}
	_, port, err := configs.ControlPlane.Generic.SecureServing.HostPort()
	if err != nil {
		return err
	}
	return last.AddPostStartHook("concord-serving", func(genericapiserver.PostStartHookContext) error {
		serving(&Server{address: net.JoinHostPort(o.serving().BindAddress.String(), strconv.Itoa(port)), kubeconfig: certs.AdminKubeconfig})
		return nil
	})
}

// addControllers runs Kubernetes' controllers while this server is elected. They end before
// the server stops to listen, so that it can give up the lock.
func (o *Options) addControllers(last *genericapiserver.GenericAPIServer, configs *Configs, certs *server.Certificates) error {
	root, err := o.rootCA(certs)
	if err != nil {
		return err
	}
	config := controllers.Config{
		Client:     configs.ControlPlane.Generic.LoopbackClientConfig,
		RootCA:     root,
		CACertFile: certs.CAFile, CAKeyFile: certs.CAKeyFile,
		TokenKeyFile: o.ControlPlane.ServiceAccountSigningKeyFile,
	}
	if err := config.Validate(); err != nil {
		return err
	}
	elected := controllers.Election{
		Client: config.Client, Identity: configs.ControlPlane.Generic.APIServerID, Duration: o.ControllerLeaseDuration,
		Lead: func(ctx context.Context) {
			if err := controllers.Run(ctx, config); err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Kubernetes' controllers did not start; they are tried again")
			}
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	if err := last.AddPostStartHook("concord-kubernetes-controllers", func(genericapiserver.PostStartHookContext) error {
		go func() {
			defer close(ended)
			elected.Campaign(ctx)
		}()
		return nil
	}); err != nil {
		cancel()
		return err
	}
	return last.AddPreShutdownHook("concord-kubernetes-controllers", func() error {
		cancel()
		select {
		case <-ended:
		case <-time.After(closeTimeout):
			return fmt.Errorf("Kubernetes' controllers still run after %v", closeTimeout)
		}
		return nil
	})
}

// library returns kube-apiserver's own options, completed.
func (o *Options) library(ctx context.Context, certs *server.Certificates) (controlplaneoptions.CompletedOptions, error) {
	if err := o.completeSecurity(certs); err != nil {
		return controlplaneoptions.CompletedOptions{}, err
	}
	if run := o.ControlPlane.GenericServerRunOptions; run.AdvertiseAddress == nil && o.serving().BindAddress.IsLoopback() {
		run.AdvertiseAddress = o.serving().BindAddress
	}
	completed, err := o.ControlPlane.Complete(ctx, nil, nil)
	if err != nil {
		return completed, err
	}
	return completed, utilerrors.NewAggregate(completed.Validate())
}

// embedEtcd starts an etcd of the server's own where no other is named.
func (o *Options) embedEtcd(ctx context.Context) (stop func() error, err error) {
	if len(o.etcd().StorageConfig.Transport.ServerList) > 0 {
		return func() error { return nil }, nil
	}
	etcd, err := server.StartEtcd(ctx, o.DataDir)
	if err != nil {
		return nil, err
	}
	o.etcd().StorageConfig.Transport.ServerList = []string{etcd.Endpoint}
	return etcd.Close, nil
}

// unlessStopped returns the error of a part of the start, or nil if the start was cut off
// by a stop, which is no failure.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	klog.FromContext(ctx).V(1).Info("Stopped before it served", "err", err)
	return nil
}

// openPort listens on the configured address; port 0 takes a free one.
func openPort(o *genericoptions.SecureServingOptions) (net.Listener, int, error) {
	address := net.JoinHostPort(o.BindAddress.String(), strconv.Itoa(o.BindPort))
	listener, port, err := genericoptions.CreateListener(o.BindNetwork, address, net.ListenConfig{})
	if err != nil {
		return nil, 0, fmt.Errorf("%s cannot be used: choose another --secure-port or --bind-address: %w", address, err)
	}
	return listener, port, nil
}
