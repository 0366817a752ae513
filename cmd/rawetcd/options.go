// Package rawetcd is the part of concord and kubectl-concord for an etcd that they read themselves:
// the flags that name it, the census of stored objects, and the encryption keys that they need.
// It reads, and writes nothing.
package rawetcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/concord-dev/concord/stored"
)

// answerTimeout bounds the wait for the first answer of an etcd.
const answerTimeout = 10 * time.Second

// Options name an etcd, and the prefix that is read in it.
type Options struct {
	Servers []string
	Prefix  string
	tls     transport.TLSInfo
}

// AddFlags adds the flags that name an etcd; instead says what is read without them.
func (o *Options) AddFlags(flags *pflag.FlagSet, instead string) {
	flags.StringSliceVar(&o.Servers, "etcd-servers", nil, "the etcd endpoints to read (scheme://host:port or unix:///path, comma separated), in place of "+instead)
	flags.StringVar(&o.tls.TrustedCAFile, "etcd-cafile", "", "the CA that signed etcd's certificates")
	flags.StringVar(&o.tls.CertFile, "etcd-certfile", "", "the certificate to show to etcd")
	flags.StringVar(&o.tls.KeyFile, "etcd-keyfile", "", "the key of --etcd-certfile")
	flags.StringVar(&o.Prefix, "etcd-prefix", stored.DefaultPrefix, "the prefix under which the servers store objects")
}

// Validate says which flag cannot be.
func (o *Options) Validate() error {
	tls := o.tls.TrustedCAFile != "" || o.tls.CertFile != "" || o.tls.KeyFile != ""
	switch {
	case strings.Trim(o.Prefix, "/") == "":
		return errors.New("--etcd-prefix must not be empty")
	case len(o.Servers) == 0 && tls:
		return errors.New("--etcd-cafile, --etcd-certfile and --etcd-keyfile need --etcd-servers")
	case (o.tls.CertFile == "") != (o.tls.KeyFile == ""):
		return errors.New("--etcd-certfile and --etcd-keyfile need each other")
	}
	return nil
}

// Under is the prefix as keys begin with it, without the slash behind.
func (o *Options) Under() string { return "/" + strings.Trim(o.Prefix, "/") }

// Connect returns a client of an etcd that has answered; it needs the permission to read the keys
// under the prefix, and no other. Without any key there it returns an error (Used).
func (o *Options) Connect(ctx context.Context, endpoints []string) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: endpoints, DialTimeout: answerTimeout, Logger: zap.NewNop()}
	if o.tls.TrustedCAFile != "" || o.tls.CertFile != "" {
		tls, err := o.tls.ClientConfig()
		if err != nil {
			return nil, fmt.Errorf("etcd certificates: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(endpoints, ","), err)
	}
	asking, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	switch err := o.Used(asking, client); {
	case errors.Is(err, errUnused):
		return nil, errors.Join(err, client.Close())
	case err != nil:
		return nil, errors.Join(
			fmt.Errorf("etcd at %s does not answer (check the address, the certificates and that it has a leader): %w", strings.Join(endpoints, ","), err),
			client.Close())
	}
	return client, nil
}

var errUnused = errors.New("nothing is stored")

// Used returns an error if no key is under the prefix: servers store something as soon as they run, so they have
// another prefix.
func (o *Options) Used(ctx context.Context, client *clientv3.Client) error {
	found, err := client.Get(ctx, o.Under()+"/", clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err == nil && len(found.Kvs) == 0 {
		return fmt.Errorf("%w under --etcd-prefix %s: give the --etcd-prefix of the servers", errUnused, o.Under())
	}
	return err
}
