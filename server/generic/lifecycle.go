package generic

import (
	"context"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"

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
	// net/http does not tell HTTP/2 connections that were made in the moment of a stop to
	// close, and waits for them. The server's own are closed from the other end.
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
