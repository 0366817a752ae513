package generic

import (
	"context"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
)

const (
	closePoll = 200 * time.Millisecond
	beginPoll = 50 * time.Millisecond
	probePoll = 500 * time.Millisecond
	// awayTimeout is for how long a stopping server tries to reach an etcd that does not answer.
	awayTimeout = 3 * time.Second
)

// run serves until ctx ends.
func run(ctx context.Context, chain *aggregatorapiserver.APIAggregator, loopback *rest.Config, etcd storagebackend.Config) error {
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

	finished := make(chan error, 1)
	go func() { finished <- prepared.Run(serving) }()
	select {
	case err := <-finished:
		return err
	case <-ctx.Done():
	}
	// A hook of the libraries that is cut off by a stop ends the process with a fatal error.
	select {
	case <-begun:
	case <-time.After(closeTimeout):
		return nil // it never began, so there is nothing to drain: the process ends with it
	}
	stop()
	away := make(chan struct{})
	go watchEtcd(closing, etcd, away)
	select {
	case err := <-finished:
		return err
	case <-away:
		// What is left to do are writes, and requests that wait for etcd: it leaves as if it had crashed.
		klog.FromContext(ctx).Info("Leaving without a drain, as etcd does not answer", "for", awayTimeout)
		return nil
	}
}

// watchEtcd closes away when etcd has not answered for awayTimeout, or returns with ctx.
func watchEtcd(ctx context.Context, config storagebackend.Config, away chan<- struct{}) {
	answers := make(chan struct{})
	go func() {
		prober, err := factory.CreateProber(config) // dials
		if err != nil {
			return
		}
		defer func() { _ = prober.Close() }()
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			probing, cancel := context.WithTimeout(ctx, awayTimeout)
			defer cancel()
			if prober.Probe(probing) != nil {
				return
			}
			select {
			case answers <- struct{}{}:
			case <-ctx.Done():
			}
		}, probePoll)
	}()
	for {
		select {
		case <-answers:
		case <-ctx.Done():
			return
		case <-time.After(awayTimeout):
			close(away)
			return
		}
	}
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
