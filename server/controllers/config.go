package controllers

import (
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
)

// Config says for which server the controllers run.
type Config struct {
	// Client reaches the server as a user who may impersonate the controllers' service accounts, such as a server's
	// loopback client.
	Client *rest.Config
	// NoRBAC says that the server does not authorize by RBAC, whose roles would permit the work of those service
	// accounts: all controllers act as Client's own user.
	NoRBAC bool
	// RootCA are the certificates, in PEM, that clients in the cluster trust for its servers
	// (kube-root-ca.crt).
	RootCA []byte
	// CACertFile and CAKeyFile sign certificate requests; none are signed where there is no
	// such key.
	CACertFile, CAKeyFile string
	// TokenKeyFile is the key that signs the tokens of Secrets of the type
	// kubernetes.io/service-account-token; empty for none.
	TokenKeyFile string
	// NoGarbageCollector leaves the garbage collector out, as kube-controller-manager's
	// --enable-garbage-collector=false does.
	NoGarbageCollector bool
}

const (
	// certificateDuration is how long certificates are valid that are signed.
	certificateDuration = 365 * 24 * time.Hour
	// discoveryInterval is how often it is looked which resources there are, as in
	// kube-controller-manager.
	discoveryInterval = 30 * time.Second
)

// Validate returns an error if the configuration is invalid.
func (c *Config) Validate() error {
	if c.Client == nil {
		return errors.New("controllers need a client")
	}
	if _, err := certutil.ParseCertsPEM(c.RootCA); err != nil {
		return fmt.Errorf("the controllers' root CA: %w", err)
	}
	return nil
}

// signs says whether certificate requests are signed.
func (c *Config) signs() bool {
	_, err := os.Stat(c.CAKeyFile)
	return err == nil
}
