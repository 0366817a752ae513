package cluster

import (
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/join"
)

// Config is the administrator's access to this server, without a client-side rate limit.
func (s *APIServer) Config() *rest.Config {
	s.t.Helper()
	config, err := s.Access()
	if err != nil {
		s.t.Fatal(err)
	}
	return config
}

// Kube returns a typed client of this server.
func (s *APIServer) Kube() kubernetes.Interface {
	s.t.Helper()
	return must(s, kubernetes.NewForConfig)
}

// Dynamic returns a client of this server for any resource.
func (s *APIServer) Dynamic() dynamic.Interface { s.t.Helper(); return must(s, dynamic.NewForConfig) }

// Objects returns a client of this server for Concord's own kinds and for CRDs, which can also watch.
func (s *APIServer) Objects() client.WithWatch {
	s.t.Helper()
	return must(s, func(config *rest.Config) (client.WithWatch, error) {
		config.Timeout = 0
		return join.NewClient(config)
	})
}

func must[C any](s *APIServer, make func(*rest.Config) (C, error)) C {
	s.t.Helper()
	made, err := make(s.Config())
	if err != nil {
		s.t.Fatal(err)
	}
	return made
}
