package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"

	"github.com/concord-dev/concord/pki"
)

const keyFile, tokenFile = "sa.key", "tokens.csv"

// AdminToken is the bearer token of an administrator of kube-apiservers with Flags. Admin is that user's line for
// WriteFiles.
const (
	AdminToken = "admin"
	Admin      = AdminToken + ",admin,1,system:masters"
)

// WriteFiles writes the files that kube-apiservers with Flags read: the key of service account
// tokens, and users, each a line "token,name,uid,group".
func WriteFiles(dir string, users ...string) error {
	key, err := keyutil.MakeEllipticPrivateKeyPEM()
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, keyFile), key, 0o600),
		os.WriteFile(filepath.Join(dir, tokenFile), []byte(strings.Join(users, "\n")+"\n"), 0o600))
}

// Flags returns the flags of a kube-apiserver, stock or ours, on a port of this host. more are further flags, among
// them its etcd's address.
func Flags(dir string, port int, more ...string) []string {
	return append([]string{
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + filepath.Join(dir, "certificates"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + filepath.Join(dir, keyFile), "--service-account-signing-key-file=" + filepath.Join(dir, keyFile),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=RBAC", "--token-auth-file=" + filepath.Join(dir, tokenFile),
		"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none", "--shutdown-delay-duration=0s",
	}, more...)
}

// CertificateFlags returns the flags of a kube-apiserver with these certificates, which other servers may share.
func CertificateFlags(c *pki.Certificates) []string {
	return []string{
		"--tls-cert-file=" + c.CertFile, "--tls-private-key-file=" + c.KeyFile, "--client-ca-file=" + c.CAFile,
		"--requestheader-client-ca-file=" + c.FrontProxy.CAFile, "--requestheader-allowed-names=" + pki.FrontProxyUser,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.FrontProxy.CertFile, "--proxy-client-key-file=" + c.FrontProxy.KeyFile,
	}
}

// WithToken returns the client configuration for a server that made its certificate itself, without a client-side
// rate limit. With the token "" requests are anonymous.
func WithToken(url, token string) *rest.Config {
	return &rest.Config{Host: url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
}

// WriteKubeconfig writes a kubeconfig with the server and the token of access.
func WriteKubeconfig(file string, access *rest.Config) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["it"] = &clientcmdapi.Cluster{Server: access.Host, InsecureSkipTLSVerify: access.Insecure, CertificateAuthority: access.CAFile}
	config.AuthInfos["it"] = &clientcmdapi.AuthInfo{Token: access.BearerToken}
	config.Contexts["it"] = &clientcmdapi.Context{Cluster: "it", AuthInfo: "it"}
	config.CurrentContext = "it"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}
