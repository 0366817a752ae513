package rawetcd

import (
	"context"
	"errors"
	"fmt"
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

	"github.com/concord-dev/concord/keyring/use"
	migratestore "github.com/concord-dev/concord/migrate/store"
)

// TestCensusTable: resources that are stored in more than one encoding stand before the others, and of the values that
// cannot be read ten are named.
func TestCensusTable(t *testing.T) {
	var out strings.Builder
	census := migratestore.Census{Revision: 7, Rows: []migratestore.Row{
		{Resource: "configmaps", Encoding: "v1", Objects: 3, Bytes: 30},
		{Resource: "secrets", Encoding: "encrypted:aescbc:v1:k", Objects: 1, Bytes: 10},
		{Resource: "secrets", Encoding: "unknown", Objects: 12, Bytes: 24},
	}}
	for i := range 12 {
		census.Unknown = append(census.Unknown, fmt.Sprintf("/registry/secrets/default/bad-%02d", i))
	}
	if err := PrintCensus(&out, census, false, "table"); err != nil {
		t.Fatal(err)
	}
	want := `secrets
          1 objects            10 bytes  encrypted:aescbc:v1:k
         12 objects            24 bytes  unknown
configmaps
          3 objects            30 bytes  v1

values that cannot be read: 12
  "/registry/secrets/default/bad-00"
  "/registry/secrets/default/bad-01"
  "/registry/secrets/default/bad-02"
  "/registry/secrets/default/bad-03"
  "/registry/secrets/default/bad-04"
  "/registry/secrets/default/bad-05"
  "/registry/secrets/default/bad-06"
  "/registry/secrets/default/bad-07"
  "/registry/secrets/default/bad-08"
  "/registry/secrets/default/bad-09"
  and 2 more, named by -o json

revision 7
`
	if out.String() != want {
		t.Errorf("printed is %s, want %s", out.String(), want)
	}
}

// TestNoKeys: if nothing is encrypted, the command says so instead of printing a table without
// rows.
func TestNoKeys(t *testing.T) {
	var out strings.Builder
	if err := printKeys(&out, use.Report{Revision: 7}); err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != "nothing is encrypted at revision 7:\nno stored value has a key, and no server encrypts with one\n" {
		t.Errorf("printed %q", got)
	}
}

// TestWrongCertificate: the error names the certificate that is refused, and not only that the time
// is over.
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
	for range 20 { // on a busy machine the time may be over before the certificate has come
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = options.Connect(ctx, []string{etcd.URL})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "tls: failed to verify certificate") {
		t.Errorf("the error is %v", err)
	}
}
