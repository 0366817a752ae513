package pki

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	certutil "k8s.io/client-go/util/cert"
)

// certificatesOf makes the certificates of a server that was not given any.
func certificatesOf(dir string, bind net.IP, port int) (*Certificates, error) {
	return Ensure(Config{Dir: dir, BindAddress: bind, Port: port})
}

// TestCertificatesAreShared asserts that servers which start together on one directory
// make one CA, and that each finds its own kubeconfig.
func TestCertificatesAreShared(t *testing.T) {
	dir := t.TempDir()
	loopback := net.ParseIP("127.0.0.1")
	files := make([]string, 3)
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			c, err := certificatesOf(dir, loopback, 7000+i)
			if err != nil {
				t.Error(err)
				return
			}
			files[i] = c.AdminKubeconfig
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	ca, err := os.ReadFile(filepath.Join(dir, CACertName))
	must(t, err)
	servers := map[string]bool{}
	for _, file := range files {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		must(t, err)
		if string(config.CAData) != string(ca) {
			t.Errorf("%s has another CA", file)
		}
		servers[config.Host] = true
	}
	if len(servers) != len(files) {
		t.Errorf("kubeconfigs are for %v, want three servers", servers)
	}
	again, err := certificatesOf(dir, loopback, 7000)
	must(t, err)
	if again.AdminKubeconfig != files[0] {
		t.Errorf("a restart writes %s, was %s", again.AdminKubeconfig, files[0])
	}
}

func TestForeignCA(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := certificatesOf(d, nil, 7000); err != nil {
			t.Fatal(err)
		}
	}
	key, err := os.ReadFile(filepath.Join(other, CAKeyName))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, CAKeyName), key, 0o600))
	if _, err := certificatesOf(dir, nil, 7000); err == nil || !strings.Contains(err.Error(), "do not belong together") {
		t.Errorf("a foreign CA key: %v, want a refusal", err)
	}
}

// TestServingCertificateNamesTheAddress: a server that is started again with another address can be
// reached there; a server on all addresses can be reached by each address of its host.
func TestServingCertificateNamesTheAddress(t *testing.T) {
	dir := t.TempDir()
	names := func(bind, address string) bool {
		t.Helper()
		c, err := certificatesOf(dir, net.ParseIP(bind), 7000)
		must(t, err)
		return servingCertificate(t, c).VerifyHostname(address) == nil
	}
	for _, test := range []struct{ bind, address string }{{"127.0.0.1", "127.0.0.1"}, {"192.0.2.1", "192.0.2.1"}, {"192.0.2.1", "127.0.0.1"}, {"0.0.0.0", "127.0.0.1"}} {
		if !names(test.bind, test.address) {
			t.Errorf("bound to %s, the certificate is not for %s", test.bind, test.address)
		}
	}
	// Two servers on different hosts use one directory.
	if !names("192.0.2.2", "192.0.2.2") || !names("192.0.2.1", "192.0.2.2") {
		t.Error("a server takes away the name of another")
	}
	_, own, err := ownNames()
	must(t, err)
	for _, ip := range own {
		if !names("0.0.0.0", ip.String()) {
			t.Errorf("bound to all addresses, the certificate is not for %s", ip)
		}
	}
}

// TestAddress: the address that a server tells can be used, and is that of its kubeconfig.
func TestAddress(t *testing.T) {
	for _, test := range []struct{ bind, want string }{
		{"127.0.0.5", "127.0.0.5:7000"}, {"0.0.0.0", "127.0.0.1:7000"}, {"::", "127.0.0.1:7000"}, {"::1", "[::1]:7000"},
	} {
		c, err := certificatesOf(t.TempDir(), net.ParseIP(test.bind), 7000)
		must(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig)
		must(t, err)
		if c.Address() != test.want || config.Host != "https://"+test.want {
			t.Errorf("bound to %s, the address is %s, and %s in the kubeconfig", test.bind, c.Address(), config.Host)
		}
	}
}

func servingCertificate(t *testing.T, c *Certificates) *x509.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	must(t, err)
	return pair.Leaf
}

// TestCertificatesAfterACutOffStart removes, swaps or cuts files, as a start that was killed may
// have left them: the next start succeeds, and a kubeconfig that was handed out before still works.
func TestCertificatesAfterACutOffStart(t *testing.T) {
	for name, cut := range map[string]func(t *testing.T, dir string){
		"CAWithoutCertificate":     func(t *testing.T, dir string) { remove(t, dir, CACertName) },
		"ServingWithoutKey":        func(t *testing.T, dir string) { remove(t, dir, "server-7000.key") },
		"ServingWithoutItsKey":     func(t *testing.T, dir string) { copyOver(t, dir, "admin.key", "server-7000.key") },
		"ServingCutInTheMiddle":    func(t *testing.T, dir string) { halve(t, dir, "server-7000.crt") },
		"AdminWithoutKey":          func(t *testing.T, dir string) { remove(t, dir, "admin.key") },
		"AdminWithoutItsKey":       func(t *testing.T, dir string) { copyOver(t, dir, "server-7000.key", "admin.key") },
		"KubeconfigCutInTheMiddle": func(t *testing.T, dir string) { halve(t, dir, AdminKubeconfigName) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c, err := certificatesOf(dir, nil, 7000)
			must(t, err)
			before, err := clientcmd.LoadFromFile(c.AdminKubeconfig)
			must(t, err)
			cut(t, dir)
			if c, err = certificatesOf(dir, nil, 7000); err != nil {
				t.Fatal(err)
			}
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(before.Clusters["concord"].CertificateAuthorityData)
			if _, err := servingCertificate(t, c).Verify(x509.VerifyOptions{Roots: roots, DNSName: "127.0.0.1"}); err != nil {
				t.Errorf("a kubeconfig from before does not trust the server: %v", err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig)
			must(t, err)
			if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
				t.Errorf("the administrator's certificate: %v", err)
			}
		})
	}
}

// TestLostCACertificate: if the CA's key cannot be read, the start is refused and no new CA is
// made.
func TestLostCACertificate(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, CAKeyName)
	must(t, os.WriteFile(key, []byte("no key"), 0o600))
	_, err := certificatesOf(dir, nil, 7000)
	if err == nil || !strings.Contains(err.Error(), key) || !strings.Contains(err.Error(), "restore it") {
		t.Errorf("a damaged CA key without its certificate: %v, want a refusal that says what to do", err)
	}
	if content, err := os.ReadFile(key); err != nil || string(content) != "no key" {
		t.Errorf("the key was changed to %q, %v", content, err)
	}
}

func remove(t *testing.T, dir, name string) {
	t.Helper()
	must(t, os.Remove(filepath.Join(dir, name)))
}

func copyOver(t *testing.T, dir, from, to string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, from))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, to), content, 0o600))
}

func halve(t *testing.T, dir, name string) {
	t.Helper()
	file := filepath.Join(dir, name)
	info, err := os.Stat(file)
	must(t, err)
	must(t, os.Truncate(file, info.Size()/2))
}

// TestFrontProxy asserts that servers with one directory have the same client certificate for
// aggregated API servers, that its CA is not that of the cluster's clients, and that a certificate
// that expires is replaced while its CA stays.
func TestFrontProxy(t *testing.T) {
	dir := t.TempDir()
	made := func() (FrontProxy, *x509.Certificate) {
		t.Helper()
		c, err := certificatesOf(dir, nil, 7000)
		must(t, err)
		pair, err := tls.LoadX509KeyPair(c.FrontProxy.CertFile, c.FrontProxy.KeyFile)
		must(t, err)
		return c.FrontProxy, pair.Leaf
	}
	files, first := made()
	pool := func(file string) *x509.CertPool {
		raw, err := os.ReadFile(file)
		must(t, err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(raw)
		return pool
	}
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := first.Verify(x509.VerifyOptions{Roots: pool(files.CAFile), KeyUsages: usages}); err != nil || first.Subject.CommonName != FrontProxyUser {
		t.Errorf("the front proxy is %s: %v", first.Subject, err)
	}
	if _, err := first.Verify(x509.VerifyOptions{Roots: pool(filepath.Join(dir, CACertName)), KeyUsages: usages}); err == nil {
		t.Error("the front proxy's certificate is one of the cluster's clients, too")
	}
	if _, again := made(); !again.Equal(first) {
		t.Error("a second server has another certificate")
	}
	must(t, os.Remove(files.CertFile))
	if _, next := made(); next.Equal(first) || next.CheckSignatureFrom(loadCert(t, files.CAFile)) != nil {
		t.Error("a lost certificate is not replaced by one of the same CA")
	}
}

func loadCert(t *testing.T, file string) *x509.Certificate {
	t.Helper()
	certs, err := certutil.CertsFromFile(file)
	must(t, err)
	return certs[0]
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
