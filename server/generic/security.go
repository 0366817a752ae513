package generic

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/pki"
)

// ensureCertificates makes the certificates that name the open port.
func (o *Options) ensureCertificates() (*pki.Certificates, error) {
	return pki.Ensure(pki.Config{
		Dir: o.CertDir, BindAddress: o.serving().BindAddress, Port: o.serving().BindPort,
		ServingCertFile: o.serving().ServerCert.CertKey.CertFile, ProxyClientCertFile: o.ControlPlane.ProxyClientCertFile,
		Signer: cmp.Or(o.ControlPlane.ServiceAccountSigningEndpoint, o.ControlPlane.ServiceAccountSigningKeyFile),
	})
}

// checkFiles names the flag of a file that cannot be read, where Kubernetes' own error would not.
func (o *Options) checkFiles() error {
	named := map[string][]string{
		"--service-account-key-file":                 o.authentication().ServiceAccounts.KeyFiles,
		"--service-account-signing-key-file":         {o.ControlPlane.ServiceAccountSigningKeyFile},
		"--authorization-config":                     {o.ControlPlane.Authorization.AuthorizationConfigurationFile},
		"--authentication-config":                    {o.authentication().AuthenticationConfigFile},
		"--token-auth-file":                          {o.authentication().TokenFile.TokenFile},
		"--authentication-token-webhook-config-file": {o.authentication().WebHook.ConfigFile},
		"--peer-ca-file":                             {o.ControlPlane.PeerCAFile},
		"--root-ca-file":                             {o.RootCAFile},
	}
	for _, flag := range slices.Sorted(maps.Keys(named)) {
		for _, name := range named[flag] {
			if name == "" {
				continue
			}
			file, err := os.Open(name)
			if err != nil {
				return fmt.Errorf("%s: %w", flag, err)
			}
			_ = file.Close()
		}
	}
	return nil
}

// completeSecurity puts the certificates and keys made in the certificate directory where the
// operator gave nothing else.
func (o *Options) completeSecurity(certs *pki.Certificates) error {
	if serving := &o.serving().ServerCert.CertKey; serving.CertFile == "" {
		serving.CertFile, serving.KeyFile = certs.CertFile, certs.KeyFile
	}
	if o.ControlPlane.ProxyClientCertFile == "" {
		o.ControlPlane.ProxyClientCertFile, o.ControlPlane.ProxyClientKeyFile = certs.FrontProxy.CertFile, certs.FrontProxy.KeyFile
	}
	// kube-apiserver has no defaults for these flags, and trusts no headers without them.
	if proxy := o.authentication().RequestHeader; proxy.ClientCAFile != "" {
		for headers, usual := range map[*[]string]string{
			&proxy.UsernameHeaders: "X-Remote-User", &proxy.GroupHeaders: "X-Remote-Group", &proxy.ExtraHeaderPrefixes: "X-Remote-Extra-",
		} {
			if len(*headers) == 0 {
				*headers = []string{usual}
			}
		}
	}
	ca, err := clientCA(certs.CAFile, o.authentication().ClientCert.ClientCA)
	if err != nil {
		return err
	}
	o.authentication().ClientCert.CAContentProvider = ca
	tokens := o.authentication().ServiceAccounts
	if o.ControlPlane.ServiceAccountSigningEndpoint != "" {
		return nil
	}
	if o.ControlPlane.ServiceAccountSigningKeyFile == "" {
		o.ControlPlane.ServiceAccountSigningKeyFile = certs.SigningKeyFile
		tokens.KeyFiles = append(tokens.KeyFiles, o.ControlPlane.ServiceAccountSigningKeyFile)
	} else if len(tokens.KeyFiles) == 0 {
		tokens.KeyFiles = []string{o.ControlPlane.ServiceAccountSigningKeyFile}
	}
	return nil
}

// rootCA has the certificates that clients in the cluster trust for its servers: those of RootCAFile, or the
// cluster's own CA and the CA certificates in the file of the serving certificate that the operator gave. A serving
// certificate itself would be wrong when it is renewed, and in a bundle of certificates it is invalid.
func rootCA(rootCAFile, ownCAFile, givenCertFile string) ([]byte, error) {
	if rootCAFile != "" {
		root, err := os.ReadFile(rootCAFile)
		if err != nil {
			return nil, fmt.Errorf("--root-ca-file: %w", err)
		}
		return root, nil
	}
	root, err := certutil.CertsFromFile(ownCAFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA certificate: %w", err)
	}
	if givenCertFile != "" {
		chain, err := certutil.CertsFromFile(givenCertFile)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert-file: %w", err)
		}
		for _, c := range chain {
			if c.IsCA && !slices.ContainsFunc(root, c.Equal) {
				root = append(root, c)
			}
		}
	}
	return certutil.EncodeCertificates(root...)
}

// clientCA trusts clients of the cluster's own CA and of those in another file, if there is one.
func clientCA(ownFile, moreFile string) (dynamiccertificates.CAContentProvider, error) {
	own, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", ownFile)
	if err != nil || moreFile == "" {
		return own, err
	}
	more, err := dynamiccertificates.NewDynamicCAContentFromFile("more-client-ca", moreFile)
	if err != nil {
		return nil, fmt.Errorf("--client-ca-file: %w", err)
	}
	return dynamiccertificates.NewUnionCAContentProvider(own, more), nil
}

// publishFrontProxy publishes, to aggregated API servers, the CA, names and headers by which they recognize this
// server when it presents its front-proxy certificate. It gives nobody rights on this server.
func (o *Options) publishFrontProxy(c *configs, certs *pki.Certificates) error {
	if certs.FrontProxy.CertFile == "" || o.ControlPlane.ProxyClientCertFile != certs.FrontProxy.CertFile {
		return nil // as with kube-apiserver, whose CA it is stands in --requestheader-client-ca-file
	}
	var ca dynamiccertificates.CAContentProvider
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("front-proxy-ca", certs.FrontProxy.CAFile)
	if err != nil {
		return fmt.Errorf("the front proxy's CA certificate: %w", err)
	}
	info := &c.controlPlane.ClusterAuthenticationInfo
	names := headerrequest.StaticStringSlice{pki.FrontProxyUser}
	if info.RequestHeaderCA != nil {
		ca = dynamiccertificates.NewUnionCAContentProvider(ca, info.RequestHeaderCA)
		given := info.RequestHeaderAllowedNames.Value()
		if names = append(names, given...); len(given) == 0 {
			names = nil // any
		}
	}
	info.RequestHeaderCA, info.RequestHeaderAllowedNames = ca, names
	// The headers are the ones that the aggregator's transport writes.
	info.RequestHeaderUsernameHeaders = headerrequest.StaticStringSlice{"X-Remote-User"}
	info.RequestHeaderGroupHeaders = headerrequest.StaticStringSlice{"X-Remote-Group"}
	info.RequestHeaderExtraHeaderPrefixes = headerrequest.StaticStringSlice{"X-Remote-Extra-"}
	info.RequestHeaderUIDHeaders = headerrequest.StaticStringSlice{"X-Remote-Uid"}
	return nil
}
