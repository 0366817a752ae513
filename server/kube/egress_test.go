package kube_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// An etcd that only the egress selector's proxy knows the way to is reached by all that the
// server does with it: its storage, the fence, its checks.
func testEgress(t *testing.T) {
	c := newControl(t)
	const known = "etcd.example:2379"
	proxy := c.Path("proxy.sock")
	connectProxy(t, proxy, known, strings.TrimPrefix(c.Raw.Endpoints()[0], "http://"))
	c.etcd = []string{"--etcd-servers=http://" + known, "--egress-selector-config-file=" + c.write("egress.yaml", `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: etcd
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: `+proxy+`}}}
`)}
	s := c.ready(ours, "egress")
	s.agreed(time.Minute, 1)
	s.migrated(time.Minute)
	s.end()
}

// connectProxy is an HTTP CONNECT proxy on a Unix socket which leads the name known to an address, and nothing else anywhere.
func connectProxy(t *testing.T, socket, known, address string) {
	t.Helper()
	listener, err := net.Listen("unix", socket)
	must(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodConnect || r.Host != known {
			t.Errorf("the proxy was asked to %s %s", r.Method, r.Host)
			http.Error(w, "no way there", http.StatusForbidden)
			return
		}
		out, err := net.Dial("tcp", address)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer func() { _ = out.Close() }()
		in, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n")
		go func() {
			_, _ = io.Copy(out, buffered)
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
		_ = in.Close()
	})}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
}
