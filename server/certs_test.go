package server

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
)

// TestCertificatesAreShared asserts that servers which start together on one directory
// make one CA, and that each finds its own kubeconfig.
func TestCertificatesAreShared(t *testing.T) {
	dir := t.TempDir()
	loopback := net.ParseIP("127.0.0.1")
	files := make([]string, 3)
	var wg sync.WaitGroup
	for i := range files {
		wg.Go(func() {
			c, err := ensureCertificates(dir, loopback, 7000+i)
			if err != nil {
				t.Error(err)
				return
			}
			files[i] = c.adminKubeconfig
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	ca, err := os.ReadFile(filepath.Join(dir, caCertName))
	if err != nil {
		t.Fatal(err)
	}
	servers := map[string]bool{}
	for _, file := range files {
		config, err := clientcmd.BuildConfigFromFlags("", file)
		if err != nil {
			t.Fatal(err)
		}
		if string(config.CAData) != string(ca) {
			t.Errorf("%s has another CA", file)
		}
		servers[config.Host] = true
	}
	if len(servers) != len(files) {
		t.Errorf("kubeconfigs are for %v, want three servers", servers)
	}
	again, err := ensureCertificates(dir, loopback, 7000)
	if err != nil {
		t.Fatal(err)
	}
	if again.adminKubeconfig != files[0] {
		t.Errorf("a restart writes %s, was %s", again.adminKubeconfig, files[0])
	}
}

func TestForeignCA(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	for _, d := range []string{dir, other} {
		if _, err := ensureCertificates(d, nil, 7000); err != nil {
			t.Fatal(err)
		}
	}
	key, err := os.ReadFile(filepath.Join(other, caKeyName))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, caKeyName), key, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ensureCertificates(dir, nil, 7000); err == nil || !strings.Contains(err.Error(), "do not belong together") {
		t.Errorf("a foreign CA key: %v, want a refusal", err)
	}
}
