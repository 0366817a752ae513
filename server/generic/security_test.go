package generic_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/server/generic"
)

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
