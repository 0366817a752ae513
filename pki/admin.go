package pki

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
)

// ensureAdmin writes a kubeconfig of a member of system:masters for a server. The first
// server's is admin.kubeconfig; a further server on the same directory writes
// admin-<port>.kubeconfig beside it. It trusts this CA and the serving certificate that the
// server is given. Without the CA's key there may be none.
func (a *authority) ensureAdmin(config Config) (string, error) {
	certFile, keyFile := filepath.Join(config.Dir, adminCertName), filepath.Join(config.Dir, adminKeyName)
	err := a.ensureIssued(certFile, keyFile, &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{user.SystemPrivilegedGroup}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if errors.Is(err, ErrNoKey) {
		klog.Background().Info("No administrator's kubeconfig is written", "reason", err.Error())
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("administrator's certificate: %w", err)
	}
	file, content, err := a.adminKubeconfig(config, certFile, keyFile)
	if err != nil {
		return "", err
	}
	if present, err := os.ReadFile(file); err == nil && bytes.Equal(present, content) {
		return file, nil
	}
	if err := writeWhole(map[string][]byte{file: content}); err != nil {
		return "", fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	return file, nil
}

func (a *authority) adminKubeconfig(c Config, certFile, keyFile string) (file string, content []byte, err error) {
	url := "https://" + c.address()
	file = filepath.Join(c.Dir, AdminKubeconfigName)
	if old, err := clientcmd.LoadFromFile(file); err == nil && old.Clusters["concord"] != nil && old.Clusters["concord"].Server != url {
		file = filepath.Join(c.Dir, fmt.Sprintf("admin-%d.kubeconfig", c.Port))
	}
	cert, err := os.ReadFile(certFile)
	if err != nil {
		return "", nil, err
	}
	key, err := os.ReadFile(keyFile)
	if err != nil {
		return "", nil, err
	}
	cluster, err := a.trusting(c.ServingCertFile, c.host())
	if err != nil {
		return "", nil, err
	}
	cluster.Server = url
	config := clientcmdapi.NewConfig()
	config.Clusters["concord"] = cluster
	config.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: cert, ClientKeyData: key}
	config.Contexts["concord"] = &clientcmdapi.Context{Cluster: "concord", AuthInfo: "admin"}
	config.CurrentContext = "concord"
	content, err = clientcmd.Write(*config)
	if err != nil {
		return "", nil, fmt.Errorf("administrator's kubeconfig: %w", err)
	}
	return file, content, nil
}

// trusting returns a kubeconfig's cluster that trusts this CA and the serving certificate in
// the file given, if any. Where that is not for the host, it is asked for by a name it has.
func (a *authority) trusting(given, host string) (*clientcmdapi.Cluster, error) {
	cluster := &clientcmdapi.Cluster{CertificateAuthorityData: a.pem}
	if given == "" {
		return cluster, nil
	}
	raw, err := os.ReadFile(given)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file: %w", err)
	}
	certs, err := certutil.ParseCertsPEM(raw)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert-file %s: %w", given, err)
	}
	cluster.CertificateAuthorityData = slices.Concat(a.pem, raw)
	if certs[0].VerifyHostname(host) != nil && len(certs[0].DNSNames) > 0 {
		cluster.TLSServerName = certs[0].DNSNames[0]
	}
	return cluster, nil
}
