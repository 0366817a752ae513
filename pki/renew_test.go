package pki

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/tools/clientcmd"
	clocktesting "k8s.io/utils/clock/testing"
)

// serve serves TLS with a certificate and key from files, as API servers do, and returns the
// address.
func serve(t *testing.T, certFile, keyFile string) (address string) {
	t.Helper()
	content, err := dynamiccertificates.NewDynamicServingContentFromFiles("serving-cert", certFile, keyFile)
	must(t, err)
	base := &tls.Config{MinVersion: tls.VersionTLS12}
	controller := dynamiccertificates.NewDynamicServingCertificateController(base, nil, content, nil, nil)
	content.AddListener(controller)
	must(t, controller.RunOnce())
	base.GetConfigForClient = controller.GetConfigForClient
	listener, err := tls.Listen("tcp", "127.0.0.1:0", base)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { content.Run(ctx, 1) })
	running.Go(func() { controller.Run(1, ctx.Done()) })
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(ctx)
			_ = conn.Close()
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close()
		running.Wait()
	})
	return listener.Addr().String()
}

// TestRenew lets a year and a half pass: a running server has new certificates well before the old
// ones expire, and clients that know only the CA accept them. The other files are renewed as well.
func TestRenew(t *testing.T) {
	dir := t.TempDir()
	now := clocktesting.NewFakeClock(time.Now())
	c, err := Ensure(Config{Dir: dir, Port: 7000, Clock: now})
	must(t, err)
	address := serve(t, c.CertFile, c.KeyFile)
	ca, err := os.ReadFile(c.CAFile)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	shown := func() (*x509.Certificate, error) {
		conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: roots, Time: now.Now})
		if err != nil {
			return nil, err
		}
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0], nil
	}
	pair := func(certFile, keyFile string) *x509.Certificate {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		if err != nil {
			return nil // the files were read in the middle of a change
		}
		return pair.Leaf
	}
	admin := func() *x509.Certificate {
		config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig)
		must(t, err)
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		must(t, err)
		return pair.Leaf
	}
	all := func() (certs [3]*x509.Certificate, err error) {
		certs = [3]*x509.Certificate{nil, pair(c.FrontProxy.CertFile, c.FrontProxy.KeyFile), admin()}
		certs[0], err = shown()
		return certs, err
	}

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Renew(ctx) })
	defer func() { cancel(); running.Wait() }()
	before, err := all()
	must(t, err)
	for month := range 18 {
		await(t, "the renewer waits", func() error {
			if !now.HasWaiters() {
				return errors.New("it does not")
			}
			return nil
		})
		now.Step(30 * 24 * time.Hour)
		// The certificates are always valid, and for some months more.
		await(t, "certificates that last", func() error {
			certs, err := all()
			if err != nil {
				return err
			}
			for i, cert := range certs {
				if cert == nil || cert.NotAfter.Sub(now.Now()) < 90*24*time.Hour {
					return errors.New([]string{"serving", "front proxy", "administrator"}[i] + " ends soon")
				}
			}
			return nil
		})
		if cert, err := shown(); month == 3 && (err != nil || !cert.Equal(before[0])) {
			t.Errorf("it is renewed without need: %v", err)
		}
	}
	after, err := all()
	must(t, err)
	for i := range after {
		if after[i].Equal(before[i]) {
			t.Errorf("certificate %d is the old one", i)
		}
	}
	if renewed, err := os.ReadFile(c.CAFile); err != nil || string(renewed) != string(ca) {
		t.Errorf("the CA is another one: %v", err)
	}
}

func await(t *testing.T, what string, condition func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 3*time.Minute, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v: %v", what, err, last)
	}
}

// TestWithoutKeys: a server needs the key of a CA only if it has to sign a certificate.
func TestWithoutKeys(t *testing.T) {
	made := func(t *testing.T) (dir string) {
		t.Helper()
		dir = t.TempDir()
		if _, err := certificatesOf(dir, nil, 7000); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	given := func(t *testing.T) string { return filepath.Join(made(t), "server-7000.crt") }
	without := func(t *testing.T, names ...string) (dir string) {
		dir = made(t)
		for _, name := range names {
			remove(t, dir, name)
		}
		return dir
	}
	keys := []string{CAKeyName, FrontProxyCAKeyName}

	t.Run("everything given", func(t *testing.T) {
		dir := without(t, append(keys, "server-7000.crt", "server-7000.key", adminCertName, adminKeyName, AdminKubeconfigName, FrontProxyCertName, FrontProxyKeyName, FrontProxyCACertName)...)
		c, err := Ensure(Config{Dir: dir, Port: 7001, ServingCertFile: given(t), ProxyClientCertFile: given(t)})
		must(t, err)
		if c.CAFile != filepath.Join(dir, CACertName) || c.AdminKubeconfig != "" || c.CertFile != "" || c.FrontProxy != (FrontProxy{}) {
			t.Errorf("it has %+v", c)
		}
		for _, name := range append(keys, AdminKubeconfigName) {
			if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
				t.Errorf("%s was made", name)
			}
		}
	})
	t.Run("everything made before", func(t *testing.T) {
		dir := without(t, keys...)
		c, err := certificatesOf(dir, nil, 7000)
		must(t, err)
		if c.AdminKubeconfig == "" || servingCertificate(t, c) == nil || c.FrontProxy.CertFile == "" {
			t.Errorf("it has %+v", c)
		}
	})
	t.Run("a serving certificate to make", func(t *testing.T) {
		if _, err := certificatesOf(without(t, keys...), nil, 7001); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "--tls-cert-file") || strings.Contains(err.Error(), "\n") {
			t.Errorf("it says %v", err)
		}
	})
	t.Run("a front proxy's certificate to make", func(t *testing.T) {
		if _, err := certificatesOf(without(t, append(keys, FrontProxyCertName)...), nil, 7000); !errors.Is(err, ErrNoKey) || !strings.Contains(err.Error(), "--proxy-client-cert-file") {
			t.Errorf("it says %v", err)
		}
	})
	t.Run("too late", func(t *testing.T) {
		dir := without(t, keys...)
		later := clocktesting.NewFakeClock(time.Now().Add(certLifetime + time.Hour))
		if _, err := Ensure(Config{Dir: dir, Port: 7000, Clock: later}); !errors.Is(err, ErrNoKey) {
			t.Errorf("with certificates that have ended it says %v", err)
		}
	})
}

// TestModes: keys can be read by their owner only, certificates by everybody.
func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pki")
	if _, err := certificatesOf(dir, nil, 7000); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 10 {
		t.Fatalf("%v: %v", entries, err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		must(t, err)
		if want := filepath.Ext(entry.Name()) == ".crt"; (info.Mode().Perm() == 0o644) != want || !want && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v", entry.Name(), info.Mode())
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory: %v %v", info.Mode(), err)
	}
}

// TestChangeCA changes the cluster's CA as docs/security.md describes: after every step, servers
// and administrators trust each other, whether or not they have done that step, and Kubernetes' signers have one
// certificate that belongs to the key.
func TestChangeCA(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := certificatesOf(d, nil, 7000); err != nil {
			t.Fatal(err)
		}
	}
	read := func(dir, name string) []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, name))
		must(t, err)
		return content
	}
	write := func(name string, contents ...[]byte) {
		t.Helper()
		must(t, os.WriteFile(filepath.Join(dir, name), slices.Concat(contents...), 0o600))
	}
	type state struct {
		bundle, trusted *x509.CertPool // that servers trust for clients; that administrators trust
		serving, admin  *x509.Certificate
	}
	now := func() (s state) {
		t.Helper()
		c, err := certificatesOf(dir, nil, 7000)
		must(t, err)
		config, err := clientcmd.BuildConfigFromFlags("", c.AdminKubeconfig)
		must(t, err)
		pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
		must(t, err)
		if signer, err := tls.LoadX509KeyPair(c.SignerFile, filepath.Join(dir, CAKeyName)); err != nil || len(signer.Certificate) != 1 {
			t.Errorf("to sign with there are %d certificates, error %v", len(signer.Certificate), err)
		}
		s = state{x509.NewCertPool(), x509.NewCertPool(), servingCertificate(t, c), pair.Leaf}
		s.bundle.AppendCertsFromPEM(read(dir, CACertName))
		s.trusted.AppendCertsFromPEM(config.CAData)
		return s
	}
	know := func(server, client state) bool {
		_, served := server.serving.Verify(x509.VerifyOptions{Roots: client.trusted, DNSName: "localhost"})
		_, accepted := client.admin.Verify(x509.VerifyOptions{Roots: server.bundle, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return served == nil && accepted == nil
	}
	old, next, key := read(dir, CACertName), read(other, CACertName), read(other, CAKeyName)
	states := []state{now()}
	write(CACertName, old, next)
	states = append(states, now())
	write(CACertName, next, old)
	write(CAKeyName, key)
	states = append(states, now())
	write(CACertName, next)
	states = append(states, now())
	for i := range len(states) - 1 {
		if !know(states[i], states[i+1]) || !know(states[i+1], states[i]) {
			t.Errorf("steps %d and %d do not know each other", i, i+1)
		}
	}
	if know(states[3], states[0]) {
		t.Error("in the end the old CA is trusted still")
	}
}
