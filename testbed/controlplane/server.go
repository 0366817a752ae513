// Package controlplane says how etcds and API servers are started as processes on this host, and how
// they are reached. It starts none itself: tests, benchmarks and the demo differ in what an end
// of such a process means.
package controlplane

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/pki"
)

// Server is where a concord server listens and has its files, in all its runs.
type Server struct {
	Port int
	// Dir is its data directory. CertDir has the certificates that all servers of a cluster
	// share; the first one makes them.
	Dir, CertDir string
	// Etcd are the endpoints of its etcd, with commas between, "" if it embeds one.
	Etcd string
}

// Args are the arguments of concord for it, and more.
func (s *Server) Args(more ...string) []string {
	args := []string{"server", "--data-dir", s.Dir, "--cert-dir", s.CertDir, "--secure-port", strconv.Itoa(s.Port)}
	if s.Etcd != "" {
		args = append(args, "--etcd-servers", s.Etcd)
	}
	return append(args, more...)
}

// URL is where it listens.
func (s *Server) URL() string { return LoopbackURL(s.Port) }

// LoopbackURL is that of a server on a port of this host.
func LoopbackURL(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// Kubeconfig is the file of the administrator's kubeconfig, which may name another server.
func (s *Server) Kubeconfig() string { return filepath.Join(s.CertDir, pki.AdminKubeconfigName) }

// Access is the administrator's access to this server, without limits.
func (s *Server) Access() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	config.Host, config.QPS = s.URL(), -1
	return config, nil
}

var registered = regexp.MustCompile(`"Registered".* server="(apiserver-[0-9a-f]+)"`)

// IDs are the identities that a server has registered under, by its log, the newest last.
func IDs(log string) []agree.ServerID {
	var ids []agree.ServerID
	for _, match := range registered.FindAllStringSubmatch(log, -1) {
		ids = append(ids, agree.ServerID(match[1]))
	}
	return ids
}
