package rawetcd

import (
	"context"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/util/cert"
)

// TestWrongCertificate: the error names the certificate that is refused, and not only the wait.
func TestWrongCertificate(t *testing.T) {
	etcd := httptest.NewUnstartedServer(nil)
	etcd.Config.ErrorLog = log.New(io.Discard, "", 0)
	etcd.EnableHTTP2 = true
	etcd.StartTLS()
	defer etcd.Close()
	another, _, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, another, 0o600); err != nil {
		t.Fatal(err)
	}
	options, flags := &Options{}, pflag.NewFlagSet("keys", pflag.ContinueOnError)
	options.AddFlags(flags, "nothing")
	if err := flags.Set("etcd-cafile", file); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := options.Connect(ctx, []string{etcd.URL}); err == nil || !strings.Contains(err.Error(), "tls: failed to verify certificate") {
		t.Errorf("the error is %v", err)
	}
}
