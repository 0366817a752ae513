package join

import (
	"net/http"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/join/roles"
)

// clients reach this very server over the loopback, as its own user. None of them
// caches.
type clients struct {
	kube kubernetes.Interface
	// objects is the client that member and the controllers use.
	objects client.WithWatch
	// controllers is the client configuration of controllers, which identifies them as such.
	controllers *rest.Config
	// impersonate has each of them act as a user of its own.
	impersonate bool
	// forbidden says that such a user was refused a request since the last check.
	forbidden atomic.Bool
}

// acting is the client of one controller.
type acting struct {
	config  *rest.Config
	objects client.WithWatch
}

// newClients returns clients of the server itself. The clients of the controllers are derived from them and identify
// the same release.
func newClients(config Config) (*clients, error) {
	loopback := AsComponent(config.Loopback, compat.ConcordServer, config.Emulation)
	// kube-apiserver's loopback asks for protobuf, which clients of CustomResourceDefinitions and custom resources
	// cannot read.
	loopback.ContentType, loopback.AcceptContentTypes = "", ""
	own, err := clientsOf(loopback)
	if err != nil {
		return nil, err
	}
	own.controllers, own.impersonate = AsComponent(loopback, compat.ConcordControllers, config.Emulation), config.RBAC
	own.controllers.QPS = -1
	return own, nil
}

// as returns the client of a controller.
func (c *clients) as(role roles.Role) (acting, error) {
	config := rest.CopyConfig(c.controllers)
	if c.impersonate {
		config.Impersonate = rest.ImpersonationConfig{UserName: role.User()}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &refusals{next: next, seen: &c.forbidden} })
	}
	objects, err := NewClient(config)
	return acting{config: config, objects: objects}, err
}

// refusals sees that requests are forbidden.
type refusals struct {
	next http.RoundTripper
	seen *atomic.Bool
}

var _ utilnet.RoundTripperWrapper = &refusals{}

// RoundTrip implements http.RoundTripper.
func (r *refusals) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := r.next.RoundTrip(request)
	if err == nil && answer.StatusCode == http.StatusForbidden {
		r.seen.Store(true)
	}
	return answer, err
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (r *refusals) WrappedRoundTripper() http.RoundTripper { return r.next }

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
	return &clients{kube: kube, objects: objects}, nil
}

// NewClient returns a client for the kinds that the protocol uses. It needs no
// discovery, so it works while a server starts.
func NewClient(config *rest.Config) (client.WithWatch, error) { return connect.NewClient(config) }

// AsComponent returns a copy of config whose requests name the component that sends them, and its release. If it is
// applied twice, the last call counts.
func AsComponent(config *rest.Config, component compat.Component, emulation *version.Version) *rest.Config {
	return connect.AsComponent(config, component, emulation)
}

// AsCommand returns a copy of config whose requests say that this program's command sends them.
func AsCommand(config *rest.Config) *rest.Config { return connect.AsCommand(config) }
