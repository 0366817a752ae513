package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The ConfigMap in which kube-apiserver publishes the CA of its clients' certificates.
const (
	trustNamespace = "kube-system"
	trustName      = "extension-apiserver-authentication"
	trustKey       = "client-ca-file"
)

// trust is by what others know the cluster's servers.
type trust struct {
	// caFile has the CA of the cluster's certificates.
	caFile string
	// proxy is what servers show to aggregated API servers.
	proxy proxyTrust
}

// ensureTrust publishes the cluster's CA, and by what aggregated API servers know its
// servers. If another CA is published, it warns: servers with different CAs do not accept
// each other's kubeconfigs.
func ensureTrust(ctx context.Context, c client.Client, t trust) error {
	own, err := os.ReadFile(t.caFile)
	if err != nil {
		return fmt.Errorf("the cluster's CA certificate: %w", err)
	}
	proxies, err := t.proxy.read()
	if err != nil {
		return fmt.Errorf("the front proxy's CA certificate: %w", err)
	}
	published := &corev1.ConfigMap{}
	published.Namespace, published.Name = trustNamespace, trustName
	err = c.Get(ctx, client.ObjectKeyFromObject(published), published)
	if apierrors.IsNotFound(err) {
		published.Data = map[string]string{trustKey: string(own)}
		proxies.addTo(published)
		err = c.Create(ctx, published)
	} else if err == nil && proxies.addTo(published) {
		err = c.Update(ctx, published)
	}
	if err != nil { // somebody else may have made it: it is looked at again
		return fmt.Errorf("ConfigMap %s/%s: %w", trustNamespace, trustName, err)
	}
	if warning := distrust(own, []byte(published.Data[trustKey]), t.caFile); warning != "" {
		klog.FromContext(ctx).Error(nil, warning)
	}
	return nil
}

// distrust says, in one line, that the cluster's CA is another than this server's.
func distrust(own, published []byte, caFile string) string {
	ours, err := certutil.ParseCertsPEM(own)
	if err != nil {
		return "" // it would not have started
	}
	theirs, err := certutil.ParseCertsPEM(published)
	if err != nil {
		return fmt.Sprintf("Nobody can tell whether this server shares the CA of the cluster: ConfigMap %s/%s has no certificate in %s: delete it, and the next server that starts makes it anew", trustNamespace, trustName, trustKey)
	}
	for _, cert := range theirs {
		if bytes.Equal(cert.Raw, ours[0].Raw) {
			return ""
		}
	}
	return fmt.Sprintf("THIS SERVER HAS ANOTHER CA THAN THE CLUSTER: its own is %s (%s), that of ConfigMap %s/%s is %s; kubeconfigs of the one do not work with the other: start it with the other servers' --cert-dir, or delete the ConfigMap if their CA was replaced on purpose",
		fingerprints(ours[:1]), caFile, trustNamespace, trustName, fingerprints(theirs))
}

// fingerprints are short names of certificates.
func fingerprints(certs []*x509.Certificate) string {
	var names []string
	for _, cert := range certs {
		names = append(names, fmt.Sprintf("%s sha256:%x", cert.Subject.CommonName, sha256.Sum256(cert.Raw))[:len(cert.Subject.CommonName)+len(" sha256:")+16])
	}
	return strings.Join(names, ", ")
}
