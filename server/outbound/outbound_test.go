package outbound

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	"k8s.io/apiserver/pkg/util/webhook"
	aggregatorapiserver "k8s.io/kube-aggregator/pkg/apiserver"
)

// The aggregator and webhooks both accept the resolver of Services.
var (
	_ aggregatorapiserver.ServiceResolver = Config{}.Resolver(nil)
	_ webhook.ServiceResolver             = Config{}.Resolver(nil)
)

func TestOwn(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1": true, "127.255.255.254": true, "::1": true, "169.254.169.254": true, "fe80::1": true, "fe80::1%eth0": true,
		"febf::1": true, "::ffff:127.0.0.1": true, "::ffff:169.254.169.254": true, "0.0.0.0": true, "::": true, "::ffff:0.0.0.0": true,
		"10.0.0.1": false, "192.168.1.1": false, "172.16.0.1": false, "128.0.0.1": false, "126.255.255.255": false, "169.253.255.255": false,
		"fec0::1": false, "fd00::1": false, "2001:db8::1": false, "::ffff:10.0.0.1": false, "100.64.0.1": false,
	} {
		if got := own(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is the host's own: %t", address, got)
		}
	}
}

// localServer starts a server on the loopback that counts its requests.
func localServer(t *testing.T) (port string, reached *atomic.Int32) {
	t.Helper()
	reached = &atomic.Int32{}
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(server.Close)
	_, port, err := net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, reached
}

// TestDial dials a server on the loopback by many names and notations of its address.
func TestDial(t *testing.T) {
	port, reached := localServer(t)
	get := func(c Config, host string) error {
		transport := &http.Transport{DialContext: c.Dial()}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Get("http://" + net.JoinHostPort(host, port))
		if err == nil {
			_ = response.Body.Close()
		}
		return err
	}
	named := Config{resolver: answering(t, "127.0.0.1")}
	for host, c := range map[string]Config{
		"127.0.0.1": {}, "localhost": {}, "::ffff:127.0.0.1": {}, "0.0.0.0": {}, "::1": {}, "169.254.169.254": {},
		"innocent.example.com.": named,
	} {
		if err := get(c, host); !errors.Is(err, ErrOwnHost) || !strings.Contains(err.Error(), AllowFlag) {
			t.Errorf("%s: %v", host, err)
		}
	}
	if n := reached.Load(); n > 0 {
		t.Fatalf("%d connections got through", n)
	}
	allowed := Config{AllowLoopback: true, resolver: named.resolver}
	for _, host := range []string{"127.0.0.1", "innocent.example.com."} {
		if err := get(allowed, host); err != nil {
			t.Errorf("allowed, %s: %v", host, err)
		}
	}
	if n := reached.Load(); n != 2 {
		t.Errorf("%d connections got through, want 2", n)
	}
}

// TestRebinding: a name has another address when it is checked than when it is dialled; the second
// one is this host's and is refused.
func TestRebinding(t *testing.T) {
	port, reached := localServer(t)
	c := Config{resolver: answering(t, "192.0.2.1", "127.0.0.1")}
	const name = "rebound.example.com."
	if ips, err := c.resolver.LookupHost(t.Context(), name); err != nil || len(ips) != 1 || own(netip.MustParseAddr(ips[0])) {
		t.Fatalf("first the name leads to %v: %v", ips, err)
	}
	if conn, err := c.Dial()(t.Context(), "tcp", net.JoinHostPort(name, port)); !errors.Is(err, ErrOwnHost) {
		t.Errorf("then to %v: %v", conn, err)
	}
	if reached.Load() > 0 {
		t.Error("it got through")
	}
}

// answering is a DNS server that returns the addresses one after the other, and then always the
// last one.
func answering(t *testing.T, addresses ...string) *net.Resolver {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buffer[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			answer := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RecursionAvailable: true}, Questions: m.Questions}
			if q.Type == dnsmessage.TypeA {
				answer.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addresses[0]).As4()},
				}}
				if len(addresses) > 1 {
					addresses = addresses[1:]
				}
			}
			if packed, err := answer.Pack(); err == nil {
				_, _ = conn.WriteTo(packed, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

type at string

func (a at) ResolveEndpoint(string, string, int32) (*url.URL, error) {
	if a == "" {
		return nil, errors.New("not there")
	}
	return &url.URL{Scheme: "https", Host: string(a)}, nil
}

func TestResolver(t *testing.T) {
	for host, refused := range map[at]bool{"127.0.0.1:443": true, "[::1]:443": true, "[fe80::1%25eth0]:443": true, "10.0.0.1:443": false, "localhost:443": false} {
		_, err := Config{}.Resolver(host).ResolveEndpoint("apis", "extension", 443)
		if errors.Is(err, ErrOwnHost) != refused || refused && !strings.Contains(err.Error(), "apis/extension") {
			t.Errorf("%s: %v", host, err)
		}
		if _, err := (Config{AllowLoopback: true}).Resolver(host).ResolveEndpoint("apis", "extension", 443); err != nil {
			t.Errorf("allowed, %s: %v", host, err)
		}
	}
	if _, err := (Config{}).Resolver(at("")).ResolveEndpoint("apis", "extension", 443); err == nil || err.Error() != "not there" {
		t.Errorf("a Service that is not there: %v", err)
	}
}
