package generic

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	auditpolicy "k8s.io/apiserver/pkg/audit/policy"
	certutil "k8s.io/client-go/util/cert"
)

// checkSurroundings checks the files and endpoints outside of the process that the flags name. An error found before
// anything is started leaves nothing behind.
func (o *Options) checkSurroundings() error {
	transport := o.etcd().StorageConfig.Transport
	for _, endpoint := range transport.ServerList {
		if err := checkEndpoint(endpoint); err != nil {
			return fmt.Errorf("--etcd-servers %q: %w: allowed are unix:///<path>, and http:// or https://<host>:<port>", endpoint, err)
		}
	}
	for _, file := range []struct{ flag, name string }{
		{"--etcd-cafile", transport.TrustedCAFile},
		{"--client-ca-file", o.authentication().ClientCert.ClientCA},
		{"--requestheader-client-ca-file", o.authentication().RequestHeader.ClientCAFile},
	} {
		if file.name == "" {
			continue
		}
		if _, err := certutil.CertsFromFile(file.name); err != nil {
			return fmt.Errorf("%s: %w", file.flag, err)
		}
	}
	serving := o.serving().ServerCert.CertKey
	if err := checkPair("--etcd-certfile", transport.CertFile, "--etcd-keyfile", transport.KeyFile); err != nil {
		return err
	}
	if err := checkPair("--tls-cert-file", serving.CertFile, "--tls-private-key-file", serving.KeyFile); err != nil {
		return err
	}
	if err := checkPair("--proxy-client-cert-file", o.ControlPlane.ProxyClientCertFile, "--proxy-client-key-file", o.ControlPlane.ProxyClientKeyFile); err != nil {
		return err
	}
	if o.ControlPlane.Audit.PolicyFile != "" {
		if _, err := auditpolicy.LoadPolicyFromFile(o.ControlPlane.Audit.PolicyFile); err != nil {
			return fmt.Errorf("--audit-policy-file: %w", err)
		}
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	scheme, rest, ok := strings.Cut(endpoint, "://")
	if !ok {
		scheme, rest = "http", endpoint
	}
	switch scheme {
	case "unix", "unixs":
		if rest == "" {
			return errors.New("it has no path")
		}
		return nil
	case "http", "https":
		u, err := url.Parse(scheme + "://" + rest)
		if err != nil {
			return errors.New("it is no URL")
		}
		if _, port, err := net.SplitHostPort(u.Host); err != nil || port == "" {
			return errors.New("it has no port")
		}
		return nil
	}
	return fmt.Errorf("there is no way to etcd by %s", scheme)
}

// checkPair checks a certificate and its key, which need each other.
func checkPair(certFlag, certFile, keyFlag, keyFile string) error {
	switch {
	case certFile == "" && keyFile == "":
		return nil
	case certFile == "" || keyFile == "":
		return fmt.Errorf("%s and %s need each other", certFlag, keyFlag)
	}
	for flag, file := range map[string]string{certFlag: certFile, keyFlag: keyFile} {
		if _, err := os.Stat(file); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	if _, err := tls.LoadX509KeyPair(certFile, keyFile); err != nil {
		return fmt.Errorf("%s %s and %s %s: %w", certFlag, certFile, keyFlag, keyFile, err)
	}
	return nil
}
