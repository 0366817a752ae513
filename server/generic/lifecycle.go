package generic

import (
	"context"
	"slices"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"

	"github.com/concord-dev/concord/join"
)

const (
	closePoll = 200 * time.Millisecond
	beginPoll = 50 * time.Millisecond
)

// run serves until ctx ends.
func run(ctx context.Context, chain *aggregatorapiserver.APIAggregator, loopback *rest.Config, j *join.Join) error {
	prepared, err := chain.PrepareRun()
	if err != nil {
		return err
	}
	transport, err := rest.TransportFor(loopback)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(loopback)
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	begun := make(chan struct{})
	go awaitBegun(serving, client.RESTClient(), begun)
	// net/http does not ask HTTP/2 connections to close that were opened at the moment of a stop, and waits for them.
	// The server's own connections are closed from the client's end.
	closing, closed := context.WithCancel(context.Background())
	defer closed()
	go wait.UntilWithContext(closing, func(context.Context) {
		if serving.Err() != nil {
			utilnet.CloseIdleConnectionsFor(transport)
		}
	}, closePoll)

	// A hook of the libraries that is cut off by a stop ends the process with a fatal error.
	context.AfterFunc(ctx, func() {
		select {
		case <-begun:
		case <-time.After(endTimeout): // it never began, so there is nothing to drain
		}
		stop()
	})
	return j.Run(serving, prepared.Run)
}

// stoppable wraps providers so that their start hooks do not end the process while the server stops. The hook that
// makes RBAC's roles tries for 30 s, whatever happens, and its error is fatal.
func stoppable(providers []controlplaneapiserver.RESTStorageProvider, stopping <-chan struct{}) []controlplaneapiserver.RESTStorageProvider {
	all := slices.Clone(providers)
	for i, p := range all {
		if hooked, ok := p.(genericapiserver.PostStartHookProvider); ok {
			all[i] = stoppableProvider{p, hooked, stopping}
		}
	}
	return all
}

type stoppableProvider struct {
	controlplaneapiserver.RESTStorageProvider
	hooked   genericapiserver.PostStartHookProvider
	stopping <-chan struct{}
}

// PostStartHook implements genericapiserver.PostStartHookProvider.
func (p stoppableProvider) PostStartHook() (string, genericapiserver.PostStartHookFunc, error) {
	name, hook, err := p.hooked.PostStartHook()
	if err != nil {
		return "", nil, err
	}
	return name, func(c genericapiserver.PostStartHookContext) error {
		err := hook(c)
		select {
		case <-p.stopping:
			if err != nil {
				klog.FromContext(c).Info("A hook of the start failed while the server stops", "hook", name, "err", err)
			}
			return nil
		default:
			return err
		}
	}, nil
}

// awaitBegun closes begun when all hooks of the start have run.
func awaitBegun(ctx context.Context, client rest.Interface, begun chan<- struct{}) {
	err := wait.PollUntilContextCancel(ctx, beginPoll, false, func(ctx context.Context) (bool, error) {
		_, err := client.Get().AbsPath("/healthz").DoRaw(ctx)
		return err == nil, nil
	})
	if err == nil {
		close(begun)
	}
}
