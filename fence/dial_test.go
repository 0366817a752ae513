package fence

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"google.golang.org/grpc"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/testbed/etcdtest"
)

// serveEtcd runs an etcd that listens for clients at the URL, and returns its address.
func serveEtcd(t *testing.T, clients url.URL, tls transport.TLSInfo) string {
	t.Helper()
	config := etcdtest.Config(t.TempDir(), clients)
	config.ClientTLSInfo = tls
	server, err := etcdtest.Start(config)
	must(t, err)
	t.Cleanup(server.Close)
	return server.Clients[0].Addr().String()
}

func dialOnce(t *testing.T, config storagebackend.TransportConfig, limit time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	client, err := Dial(ctx, config)
	if err == nil {
		return client.Close()
	}
	return err
}

func TestDialTLS(t *testing.T) {
	dir := t.TempDir()
	files := func(name string) transport.TLSInfo {
		certificate, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
		must(t, err)
		info := transport.TLSInfo{CertFile: filepath.Join(dir, name+".crt"), KeyFile: filepath.Join(dir, name+".key")}
		for file, data := range map[string][]byte{info.CertFile: certificate, info.KeyFile: key} {
			must(t, os.WriteFile(file, data, 0o600))
		}
		return info
	}
	server, stranger := files("server"), files("stranger")
	endpoint := "https://" + serveEtcd(t, url.URL{Scheme: "https", Host: "127.0.0.1:0"}, server)
	config := storagebackend.TransportConfig{ServerList: []string{endpoint}, TrustedCAFile: server.CertFile}
	if err := dialOnce(t, config, patience); err != nil {
		t.Errorf("with the server's CA: %v", err)
	}
	config.TrustedCAFile = stranger.CertFile
	err := dialOnce(t, config, patience)
	if !errors.Is(err, ErrServerCertificate) || !strings.Contains(err.Error(), endpoint) {
		t.Errorf("with another CA: got %v, want an error about the certificate of %s", err, endpoint)
	}
	server.TrustedCAFile, server.ClientCertAuth = server.CertFile, true
	config.ServerList = []string{"https://" + serveEtcd(t, url.URL{Scheme: "https", Host: "127.0.0.1:0"}, server)}
	for _, client := range []transport.TLSInfo{{}, stranger} {
		config.TrustedCAFile, config.CertFile, config.KeyFile = server.CertFile, client.CertFile, client.KeyFile
		if err := dialOnce(t, config, patience); !errors.Is(err, ErrClientCertificate) {
			t.Errorf("with client certificate %q: got %v", client.CertFile, err)
		}
	}
	config.TrustedCAFile = filepath.Join(dir, "missing")
	if err := dialOnce(t, config, patience); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("with a missing CA file: %v", err)
	}
}

// TestDialNotPermitted: dialing succeeds at an etcd that answers "permission denied".
func TestDialNotPermitted(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must(t, err)
	server := grpc.NewServer()
	etcdserverpb.RegisterKVServer(server, notPermitted{})
	t.Cleanup(server.Stop)
	go func() { _ = server.Serve(listener) }()
	if err := dialOnce(t, storagebackend.TransportConfig{ServerList: []string{"unix://" + socket}}, patience); err != nil {
		t.Error(err)
	}
}

type notPermitted struct {
	etcdserverpb.UnimplementedKVServer
}

// Range implements etcdserverpb.KVServer.
func (notPermitted) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	return nil, rpctypes.ErrGRPCPermissionDenied
}

func TestDialUnreachable(t *testing.T) {
	const nobody = "http://127.0.0.1:1"
	err := dialOnce(t, storagebackend.TransportConfig{ServerList: []string{nobody}}, 8*time.Second)
	if err == nil || !strings.Contains(err.Error(), nobody) || !strings.Contains(err.Error(), "refused") || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v, want one line with the endpoint and the reason", err)
	}
	if err := dialOnce(t, storagebackend.TransportConfig{}, patience); err == nil {
		t.Error("dialled no endpoint at all")
	}
}

// TestDialThroughEgress dials an etcd that can be reached through the egress selector only.
func TestDialThroughEgress(t *testing.T) {
	refused := errors.New("no way out")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	asked := make(chan string, 1)
	lookup := func(network egressselector.NetworkContext) (utilnet.DialFunc, error) {
		if network.EgressSelectionName != egressselector.Etcd {
			t.Errorf("asked for the way to %v", network.EgressSelectionName)
		}
		return func(_ context.Context, _, address string) (net.Conn, error) {
			select {
			case asked <- address:
			default:
				cancel() // it has been asked twice
			}
			return nil, refused
		}, nil
	}
	config := storagebackend.TransportConfig{ServerList: []string{"http://etcd.example:2379"}, EgressLookup: lookup}
	if client, err := Dial(ctx, config); err == nil {
		t.Error("connected without a way")
		_ = client.Close()
	}
	select {
	case address := <-asked:
		if address != "etcd.example:2379" {
			t.Errorf("dialled %q", address)
		}
	default:
		t.Error("did not dial")
	}
	config.EgressLookup = func(egressselector.NetworkContext) (utilnet.DialFunc, error) { return nil, refused }
	if err := dialOnce(t, config, patience); !errors.Is(err, refused) {
		t.Errorf("a lookup that fails: %v", err)
	}
}
