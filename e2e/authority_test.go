package e2e

import (
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/concord-dev/concord/e2e/cluster"
)

// A server may be given certificates of a public key infrastructure that is not Concord's.
func TestGivenCertificates(t *testing.T) {
	t.Parallel()
	c := cluster.New(t)
	pki := cluster.NewAuthority(t, "company-ca")
	files := pki.Files("serving")
	s := c.Start(cluster.Options{Args: strings.Join([]string{
		"--tls-cert-file", files.Cert, "--tls-private-key-file", files.Key, "--client-ca-file", files.CA,
	}, " ")}, "one")[0] // which takes that Concord's own kubeconfig works
	config := rest.AnonymousClientConfig(s.Config())
	config.CAData = cluster.EncodePEM(pki.Cert.Raw)
	config.CertData, config.KeyData = pki.Issue("alice", "system:masters")
	if a := send(t.Context(), config, http.MethodPost, configMapsPath, named("v1", "ConfigMap", "alices")); a.status != http.StatusCreated {
		t.Errorf("alice writes: %v", a)
	}
	c.Check()
	s.Terminate()
}

// The certificates may be in the data directory itself.
func testSharedDirectory(t *testing.T) {
	c := cluster.NewEmbedded(t)
	c.CertDir = filepath.Join(c.Dir, "one")
	c.Start(cluster.Options{}, "one")[0].Terminate()
}
