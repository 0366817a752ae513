package cluster

import (
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/join"
)

// Clients are those of a server's administrator.
type Clients struct {
	tb     testing.TB
	access func() (*rest.Config, error)
}

// NewClients returns clients that come with this access.
func NewClients(t testing.TB, access func() (*rest.Config, error)) Clients { return Clients{t, access} }

// Config is the administrator's access to this server, without limits.
func (c Clients) Config() *rest.Config {
	c.tb.Helper()
	config, err := c.access()
	if err != nil {
		c.tb.Fatal(err)
	}
	return config
}

// Kube returns a typed client of this server.
func (c Clients) Kube() kubernetes.Interface { c.tb.Helper(); return must(c, kubernetes.NewForConfig) }

// Dynamic returns a client of this server for any resource.
func (c Clients) Dynamic() dynamic.Interface { c.tb.Helper(); return must(c, dynamic.NewForConfig) }

// Objects returns a client of this server for the protocol's own kinds, and definitions. It watches, too.
func (c Clients) Objects() client.WithWatch {
	c.tb.Helper()
	return must(c, func(config *rest.Config) (client.WithWatch, error) {
		config.Timeout = 0
		return join.NewClient(config)
	})
}

func must[C any](c Clients, make func(*rest.Config) (C, error)) C {
	c.tb.Helper()
	made, err := make(c.Config())
	if err != nil {
		c.tb.Fatal(err)
	}
	return made
}
