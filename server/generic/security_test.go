package generic_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/pki"
	"github.com/concord-dev/concord/server/generic"
)

// TestRenewedCertificate: a running server shows the new certificate when its files are replaced, as package pki replaces
// them.
func TestRenewedCertificate(t *testing.T) {
	dir, config := filepath.Dir(shared.Kubeconfig()), pki.Config{Dir: t.TempDir()}
	for _, name := range []string{pki.CACertName, pki.CAKeyName} {
		mustDo(t, os.WriteFile(filepath.Join(config.Dir, name), must[[]byte](t)(os.ReadFile(filepath.Join(dir, name))), 0o600))
	}
	_, port, err := net.SplitHostPort(shared.Address())
	mustDo(t, err)
	must[int](t)(fmt.Sscan(port, &config.Port))
	made := must[*pki.Certificates](t)(pki.Ensure(config))
	want := must[[]*x509.Certificate](t)(certutil.CertsFromFile(made.CertFile))[0]
	for _, file := range []string{made.CertFile, made.KeyFile} {
		mustDo(t, os.Rename(file, filepath.Join(dir, filepath.Base(file))))
	}
	roots := must[*x509.CertPool](t)(certutil.NewPool(filepath.Join(dir, pki.CACertName)))
	eventually(t, "the new certificate", func(context.Context) error {
		conn, err := tls.Dial("tcp", shared.Address(), &tls.Config{RootCAs: roots})
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		if !conn.ConnectionState().PeerCertificates[0].Equal(want) {
			return errors.New("it shows another one")
		}
		return nil
	})
}

// TestRootCA: clients in the cluster are given CA certificates only, since a serving certificate is renewed.
func TestRootCA(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, content ...[]byte) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, bytes.Join(content, nil), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	// A certificate, and that of the CA that signed it.
	pair := func(host string) (leaf, ca []byte) {
		t.Helper()
		chain, _, err := certutil.GenerateSelfSignedCertKey(host, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		certs, err := certutil.ParseCertsPEM(chain)
		if err != nil || len(certs) != 2 || certs[0].IsCA || !certs[1].IsCA {
			t.Fatalf("%d certificates: %v", len(certs), err)
		}
		return must[[]byte](t)(certutil.EncodeCertificates(certs[0])), must[[]byte](t)(certutil.EncodeCertificates(certs[1]))
	}
	ownLeaf, own := pair("own")
	givenLeaf, given := pair("given")
	ownCA := write("ca.crt", own)
	for name, tt := range map[string]struct {
		rootCAFile, given string
		want              [][]byte
	}{
		"own certificate":                 {"", "", [][]byte{own}},
		"given with its CA":               {"", write("chain", givenLeaf, given), [][]byte{own, given}},
		"given without its CA":            {"", write("leaf", givenLeaf), [][]byte{own}},
		"given, signed by the own CA":     {"", write("own chain", ownLeaf, own), [][]byte{own}},
		"another file, whatever is given": {write("root", given), write("leaf", givenLeaf), [][]byte{given}},
	} {
		got, err := generic.RootCA(tt.rootCAFile, ownCA, tt.given)
		if err != nil || !bytes.Equal(got, bytes.Join(tt.want, nil)) {
			t.Errorf("%s: %s (%v)", name, got, err)
		}
	}
	for _, missing := range []string{"root", "leaf"} {
		files := map[string]string{missing: filepath.Join(dir, "missing")}
		if _, err := generic.RootCA(files["root"], ownCA, files["leaf"]); err == nil {
			t.Errorf("a missing %s is no error", missing)
		}
	}
}
