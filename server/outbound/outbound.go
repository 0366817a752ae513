// Package outbound keeps connections to Services away from the server's own host. A user who may
// write a Service, an Endpoint or a name in the DNS chooses where aggregated APIs and webhooks
// lead; without this, that would be the ports that programs on the host keep to the loopback,
// and the cloud's metadata service on a link-local address.
package outbound

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// AllowFlag allows the connections that are refused by default.
const AllowFlag = "allow-loopback-services"

// As with connections that Kubernetes' clients make.
const (
	dialTimeout = 30 * time.Second
	keepAlive   = 30 * time.Second
)

// ErrOwnHost is returned for a connection that would lead to the server's own host.
var ErrOwnHost = errors.New("a Service may not lead to loopback or link-local addresses of the API server's host (--" + AllowFlag + " allows it)")

// Config says where Services may lead. The zero Config is the safe one.
type Config struct {
	// AllowLoopback allows loopback and link-local addresses, for tests and machines on which
	// everything is one's own.
	AllowLoopback bool
	// resolver is the DNS; nil for the host's.
	resolver *net.Resolver
}

// AddFlags adds the flag of the Config.
func (c *Config) AddFlags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.AllowLoopback, AllowFlag, c.AllowLoopback, "Allow aggregated APIs and webhooks whose Services lead to loopback or link-local addresses of this server's host (127.0.0.0/8, ::1, 169.254.0.0/16, fe80::/10), by an endpoint or a name. Webhooks by URL may go there in any case.")
}

// Dial returns how to connect to Services. Addresses are checked in the moment in which they
// are connected to: a name that leads elsewhere the second time does not help.
func (c Config) Dial() utilnet.DialFunc {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive, Resolver: c.resolver}
	if !c.AllowLoopback {
		dialer.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error { return check(address) }
	}
	return dialer.DialContext
}

// ServiceResolver returns where a Service is; the aggregator and webhooks have an interface of their own for it.
type ServiceResolver interface {
	ResolveEndpoint(namespace, name string, port int32) (*url.URL, error)
}

// Resolver returns a resolver that refuses by name a Service that leads to an address of
// this host. It does not see where names lead: that takes Dial.
func (c Config) Resolver(next ServiceResolver) ServiceResolver {
	if c.AllowLoopback {
		return next
	}
	return resolver{next}
}

type resolver struct{ next ServiceResolver }

// ResolveEndpoint implements ServiceResolver.
func (r resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	to, err := r.next.ResolveEndpoint(namespace, name, port)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(to.Hostname()); err == nil && own(ip) {
		return nil, fmt.Errorf("service %s/%s leads to %s: %w", namespace, name, to.Host, ErrOwnHost)
	}
	return to, nil
}

// check refuses an address with a port, which is no name any more.
func check(address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	if own(to.Addr()) {
		return fmt.Errorf("%s: %w", address, ErrOwnHost)
	}
	return nil
}

// own reports whether an address belongs to the host itself or to its link. Unspecified addresses lead to the
// loopback.
func own(ip netip.Addr) bool {
	ip = ip.Unmap()
	return ip.IsLoopback() || ip.IsLinkLocalUnicast() || ip.IsUnspecified() || ip.IsLinkLocalMulticast() || ip.IsInterfaceLocalMulticast()
}
