package embedded

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/util/wait"
)

// shortDir returns a new directory whose path is short enough for Unix sockets in it.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func start(t *testing.T, dataDir string) *Etcd {
	t.Helper()
	etcd, err := StartEtcd(t.Context(), dataDir)
	must(t, err)
	t.Cleanup(func() { _ = etcd.Close() })
	return etcd
}

func dial(t *testing.T, endpoint string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()})
	must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// plainEtcd starts an etcd as older releases did, with a peer port without authentication.
func plainEtcd(t *testing.T, dataDir string) *embed.Etcd {
	t.Helper()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "concord", filepath.Join(dataDir, EtcdDirName)
	client := url.URL{Scheme: "unix", Path: filepath.Join(dataDir, EtcdSocketName)}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(EtcdLogger())
	etcd, err := embed.StartEtcd(cfg)
	must(t, err)
	must(t, awaitReady(t.Context(), etcd))
	return etcd
}

// forge posts a raft message that puts a key, as if from a leader that does not exist.
func forge(t *testing.T, client *http.Client, peer string, etcd *clientv3.Client, key string) (int, error) {
	t.Helper()
	status, err := etcd.Status(t.Context(), etcd.Endpoints()[0])
	must(t, err)
	put, err := proto.Marshal(&etcdserverpb.InternalRaftRequest{
		Header: &etcdserverpb.RequestHeader{ID: 1},
		Put:    &etcdserverpb.PutRequest{Key: []byte(key), Value: []byte("forged")},
	})
	must(t, err)
	term, index := status.RaftTerm+1, status.RaftIndex+1
	message, err := proto.Marshal(&raftpb.Message{
		Type: raftpb.MsgApp.Enum(), To: proto.Uint64(status.Header.MemberId), From: proto.Uint64(4711), Term: &term,
		Index: proto.Uint64(status.RaftIndex), LogTerm: proto.Uint64(status.RaftTerm), Commit: &index,
		Entries: []*raftpb.Entry{{Type: raftpb.EntryNormal.Enum(), Term: &term, Index: &index, Data: put}},
	})
	must(t, err)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, peer+"/raft", bytes.NewReader(message))
	must(t, err)
	for name, value := range map[string]string{
		"X-Server-From": "4711", "X-Server-Version": version.Version, "X-Min-Cluster-Version": version.MinClusterVersion,
		"X-Etcd-Cluster-ID": fmt.Sprintf("%x", status.Header.ClusterId),
	} {
		request.Header.Set(name, value)
	}
	return do(client, request)
}

func do(client *http.Client, request *http.Request) (int, error) {
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, response.Body)
	_ = response.Body.Close()
	return response.StatusCode, err
}

// stored says whether the etcd has a key. It reads what is applied (serializable), since a forged leader
// keeps the etcd from answering other reads.
func stored(t *testing.T, etcd *clientv3.Client, key string) bool {
	t.Helper()
	got, err := etcd.Get(t.Context(), key, clientv3.WithSerializable())
	must(t, err)
	return got.Count > 0
}

// TestForgedMessage: a raft message from a member that does not exist writes an object through a plain peer
// port, as older releases had it. Our peer port refuses it, whatever client sends it and however.
func TestForgedMessage(t *testing.T) {
	plainDir := shortDir(t)
	plain := plainEtcd(t, plainDir)
	t.Cleanup(plain.Close)
	client := dial(t, "unix://"+filepath.Join(plainDir, EtcdSocketName))
	// The message has to have the next index, so it is made and sent again if etcd wrote something in
	// between.
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
		if stored(t, client, "pods") {
			return true, nil
		}
		if code, err := forge(t, http.DefaultClient, "http://"+plain.Peers[0].Addr().String(), client, "pods"); err != nil || code != http.StatusNoContent {
			return false, fmt.Errorf("the message is not one that a peer takes: %d %v", code, err)
		}
		return false, nil
	})
	if err != nil {
		t.Fatalf("the message writes nothing through a plain port, so it proves nothing: %v", err)
	}

	etcd := start(t, shortDir(t))
	client = dial(t, etcd.Endpoint)
	peer := etcd.etcd.Peers[0].Addr().String()
	for name, c := range strangers(t) {
		if code, err := forge(t, c.Client, c.scheme+"://"+peer, client, "pods"); err == nil {
			t.Errorf("%s: the message is answered with %d", name, code)
		}
	}
	// All messages that were accepted are applied before this write.
	if _, err := client.Put(t.Context(), "behind", ""); err != nil {
		t.Fatal(err)
	}
	if stored(t, client, "pods") {
		t.Error("a forged message wrote an object")
	}
}

type stranger struct {
	*http.Client
	scheme string
}

// strangers are clients of the peer port without a certificate of the peers' CA.
func strangers(t *testing.T) map[string]stranger {
	t.Helper()
	with := func(certs ...tls.Certificate) *http.Client {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport, Timeout: 20 * time.Second}
	}
	contents, err := peerCertificates()
	must(t, err)
	other, err := tls.X509KeyPair(contents[1], contents[2])
	must(t, err)
	return map[string]stranger{
		"plain HTTP":                          {with(), "http"},
		"TLS without a certificate":           {with(), "https"},
		"TLS with one of another CA":          {with(other), "https"},
		"TLS with that, though not asked for": {impostor(t, other), "https"},
	}
}

// impostor is a client that sends its certificate even if the server asks for certificates of another CA.
func impostor(t *testing.T, cert tls.Certificate) *http.Client {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		InsecureSkipVerify:   true,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil },
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 20 * time.Second}
}

// TestPeerPort calls every path of the peer port as a stranger, and /version with the etcd's own
// certificate.
func TestPeerPort(t *testing.T) {
	dataDir := shortDir(t)
	etcd := start(t, dataDir)
	peer := etcd.etcd.Peers[0].Addr().String()
	paths := []string{"/raft", "/raft/probing", "/raft/stream/message/1", "/members", "/members/promote/1", "/version", "/leases", "/downgrade/enabled", "/"}
	for name, c := range strangers(t) {
		for _, path := range paths {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.scheme+"://"+peer+path, nil)
			must(t, err)
			if code, err := do(c.Client, request); err == nil {
				t.Errorf("%s: GET %s is answered with %d", name, path, code)
			}
		}
	}

	// The etcd's own certificate is accepted, so this is the peer port. Its files are deleted when the etcd
	// is closed.
	file := func(name string) string { return filepath.Join(dataDir, privateDirName, name) }
	pair, err := tls.LoadX509KeyPair(file(peerCertName), file(peerKeyName))
	must(t, err)
	ca, err := os.ReadFile(file(peerCAName))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	own := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}}
	t.Cleanup(own.CloseIdleConnections)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+peer+"/version", nil)
	must(t, err)
	if code, err := do(&http.Client{Transport: own}, request); err != nil || code != http.StatusOK {
		t.Errorf("with the etcd's own certificate: %d %v", code, err)
	}
	for _, name := range []string{peerCAName, peerCertName, peerKeyName} {
		if info, err := os.Stat(file(name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, info, err)
		}
	}
	own.CloseIdleConnections()
	must(t, etcd.Close())
	if left, err := os.ReadDir(file("")); err != nil || len(left) > 0 {
		t.Errorf("an etcd that was closed leaves %v behind (%v)", left, err)
	}
}

// TestPlainPeerURL starts an etcd on the data of an older release, in which the etcd's own peer URL is plain
// HTTP.
func TestPlainPeerURL(t *testing.T) {
	dataDir := shortDir(t)
	plain := plainEtcd(t, dataDir)
	old := dial(t, "unix://"+filepath.Join(dataDir, EtcdSocketName))
	if _, err := old.Put(t.Context(), "kept", "value"); err != nil {
		t.Fatal(err)
	}
	_ = old.Close()
	plain.Close()

	for range 2 {
		etcd := start(t, dataDir)
		client := dial(t, etcd.Endpoint)
		if !stored(t, client, "kept") {
			t.Error("what was stored is gone")
		}
		if _, err := client.Put(t.Context(), "new", "value"); err != nil {
			t.Error(err)
		}
		if code, err := forge(t, http.DefaultClient, "http://"+etcd.etcd.Peers[0].Addr().String(), client, "forged"); err == nil {
			t.Errorf("plain HTTP is answered with %d", code)
		}
		must(t, etcd.Close())
	}
}
