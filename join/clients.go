package join

import (
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/connect"
)

// clients reach this very server over the loopback, as its own user. None of them
// caches.
type clients struct {
	config *rest.Config
	kube   kubernetes.Interface
	// objects is what member and the controllers use.
	objects client.WithWatch
	// controllers are those of the controllers, which tell that they are.
	controllers *clients
}

// newClients returns clients of the server itself, with those of the controllers, which
// stand for the same release.
func newClients(config Config) (*clients, error) {
	loopback := AsComponent(config.Loopback, compat.ConcordServer, config.Emulation)
	// kube-apiserver's loopback asks for protobuf, which CustomResourceDefinitions' clients
	// and those of custom resources do not read.
	loopback.ContentType, loopback.AcceptContentTypes = "", ""
	own, err := clientsOf(loopback)
	if err != nil {
		return nil, err
	}
	controllers := AsComponent(loopback, compat.ConcordControllers, config.Emulation)
	if config.ControllerUser != "" {
		controllers.Impersonate = rest.ImpersonationConfig{UserName: config.ControllerUser}
	}
	own.controllers, err = clientsOf(controllers)
	return own, err
}

func clientsOf(config *rest.Config) (*clients, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := NewClient(config)
	if err != nil {
		return nil, err
	}
	return &clients{config: config, kube: kube, objects: objects}, nil
}

// NewClient returns a client for the kinds that the protocol uses. It needs no
// discovery, so it works while a server starts.
func NewClient(config *rest.Config) (client.WithWatch, error) { return connect.NewClient(config) }
