package cluster

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/testbed/process"
)

// Server is a concord server, or a kube-apiserver, of a cluster. It keeps its name, port and
// directory in all its runs.
type Server struct {
	*process.Program
	Port int
	// Dir is its data directory. CertDir has the certificates that all servers of a cluster
	// share; the first one makes them.
	Dir, CertDir string
	// Etcd are the endpoints of its etcd, with commas between, "" if it embeds one.
	Etcd string
	// Admin is the administrator's access; nil means that of the kubeconfig in CertDir.
	Admin *rest.Config
}

// Args returns the arguments with which concord runs as this server, followed by more.
func (s *Server) Args(more ...string) []string {
	args := []string{"server", "--data-dir", s.Dir, "--cert-dir", s.CertDir, "--secure-port", strconv.Itoa(s.Port)}
	if s.Etcd != "" {
		args = append(args, "--etcd-servers", s.Etcd)
	}
	return append(args, more...)
}

// URL is the address at which the server listens.
func (s *Server) URL() string { return LoopbackURL(s.Port) }

// LoopbackURL is the URL of a server on a port of this host.
func LoopbackURL(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// Kubeconfig is the path of the administrator's kubeconfig. All servers share it, so it may name
// another server.
func (s *Server) Kubeconfig() string { return filepath.Join(s.CertDir, pki.AdminKubeconfigName) }

// Access is the administrator's access to this server, without a client-side rate limit.
func (s *Server) Access() (*rest.Config, error) {
	if s.Admin != nil {
		return rest.CopyConfig(s.Admin), nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	config.Host, config.QPS = s.URL(), -1
	return config, nil
}

const (
	// answerLimit is how long a server may take to say whether it is ready.
	answerLimit = 5 * time.Second
	readyPoll   = 50 * time.Millisecond
)

// Ready returns nil if the server says that it is ready.
func (s *Server) Ready(ctx context.Context) error {
	access, err := s.Access()
	if err != nil {
		return err // the first server of a cluster makes the kubeconfig
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	status, body, err := Get(ctx, access, "/readyz?verbose", nil)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%d: %s", status, body)
	}
	return err
}

// AwaitReady waits until the server is ready. It fails if the server ends in the meantime.
func (s *Server) AwaitReady(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := s.Run().Await(ctx, readyPoll, s.Ready); err != nil {
		return fmt.Errorf("%s is not ready: %w", s.Name, err)
	}
	return nil
}

var registered = regexp.MustCompile(`"Registered".* server="(apiserver-[0-9a-f]+)"`)

// IDs returns the IDs under which the server has registered in all its runs, according to its
// log, the newest last.
func (s *Server) IDs() []agree.ServerID {
	var ids []agree.ServerID
	for _, match := range registered.FindAllStringSubmatch(s.Output(), -1) {
		ids = append(ids, agree.ServerID(match[1]))
	}
	return ids
}
