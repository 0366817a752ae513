package server

import (
	"net"
	"path/filepath"
)

// FrontProxyUser is who servers are to the aggregated API servers that they ask.
const FrontProxyUser = frontProxyUser

// Certificates are the files that one server needs of its cluster's CA.
type Certificates struct {
	CAFile, CAKeyFile string
	CertFile, KeyFile string
	// AdminKubeconfig is the file that was written for this server.
	AdminKubeconfig string
	// FrontProxy is what it shows to aggregated API servers.
	FrontProxy struct{ CAFile, CertFile, KeyFile string }
}

// EnsureCertificates makes what is missing in dir: the cluster's CA, this server's serving
// certificate, unless the operator gave one in the file given, and an administrator's
// kubeconfig for it.
func EnsureCertificates(dir string, bind net.IP, port int, given string) (*Certificates, error) {
	made, err := ensureCertificates(dir, bind, port, given)
	if err != nil {
		return nil, err
	}
	c := &Certificates{
		CAFile: made.caFile, CAKeyFile: filepath.Join(dir, caKeyName),
		CertFile: made.certFile, KeyFile: made.keyFile, AdminKubeconfig: made.adminKubeconfig,
	}
	c.FrontProxy.CAFile, c.FrontProxy.CertFile, c.FrontProxy.KeyFile = made.frontProxy.caFile, made.frontProxy.certFile, made.frontProxy.keyFile
	return c, nil
}
