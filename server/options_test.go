package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func parse(t *testing.T, args ...string) (*Options, error) {
	t.Helper()
	o := NewOptions()
	fs := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.AddFlags(fs)
	if err := fs.Parse(append([]string{"--data-dir", filepath.Join(t.TempDir(), "data")}, args...)); err != nil {
		return o, err
	}
	return o, o.Complete()
}

// TestBadOptions asserts that bad input is refused in one line that says what is
// allowed, and that nothing is touched.
func TestBadOptions(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--emulation-version=1.33"}, []string{"--emulation-version", "1.34, 1.35, 1.36, 1.37"}},
		{[]string{"--emulation-version=1.38"}, []string{"--emulation-version", "1.34, 1.35, 1.36, 1.37"}},
		{[]string{"--emulation-version=new"}, []string{"--emulation-version"}},
		{[]string{"--emulation-version=1.35", "--min-compatibility-version=1.36"}, []string{"--min-compatibility-version", "1.34, 1.35"}},
		{[]string{"--no-such-flag"}, []string{"unknown flag: --no-such-flag"}},
		{[]string{"--feature-gates=NoSuchFeature=true"}, []string{"--feature-gates", "NoSuchFeature", "no release has this feature", "allowed"}},
		{[]string{"--feature-gates=concord:NoSuchFeature=true"}, []string{"NoSuchFeature", "no release has this feature"}},
		{[]string{"--feature-gates=kubelet:StorageVersionAPI=true"}, []string{"no component kubelet", "allowed are concord and kube"}},
		{[]string{"--feature-gates=StorageVersionAPI=maybe"}, []string{"StorageVersionAPI=maybe", "allowed are StorageVersionAPI=true and StorageVersionAPI=false"}},
		{[]string{"--feature-gates=StorageVersionAPI"}, []string{"allowed are StorageVersionAPI=true and StorageVersionAPI=false"}},
		{[]string{"--feature-gates=kube:StorageVersionAPI=true"}, []string{"kube:StorageVersionAPI=true", "stays off", "allowed is false"}},
		{[]string{"--feature-gates=WatchList=maybe"}, []string{"WatchList=maybe", "allowed are WatchList=true and WatchList=false"}},
		{[]string{"--emulation-version=1.36", "--feature-gates=CompatibilityVersions=false"}, []string{"--emulation-version", "CompatibilityVersions", "off"}},
		{[]string{"--min-compatibility-version=1.36", "--feature-gates=CompatibilityVersions=false"}, []string{"--min-compatibility-version", "CompatibilityVersions"}},
		{[]string{"--emulation-forward-compatible", "--feature-gates=CompatibilityVersions=false"}, []string{"--emulation-forward-compatible", "CompatibilityVersions"}},
		{[]string{"--runtime-config-emulation-forward-compatible", "--feature-gates=CompatibilityVersions=false"}, []string{"--runtime-config-emulation-forward-compatible", "CompatibilityVersions"}},
		{[]string{"--emulation-version=1.36", "--feature-gates=AllAlpha=true"}, []string{"alpha", "1.36", "1.37"}},
		{[]string{"--etcd-servers-overrides=/secrets#http://127.0.0.1:1"}, []string{"--etcd-servers-overrides", "cannot be fenced"}},
		{[]string{"--etcd-cafile=/etc/hosts"}, []string{"--etcd-cafile", "needs --etcd-servers"}},
		{[]string{"--etcd-servers=https://127.0.0.1:1", "--etcd-cafile=/no/such/file"}, []string{"--etcd-cafile", "/no/such/file"}},
		{[]string{"--etcd-servers=https://127.0.0.1:1", "--etcd-cafile=/etc/hosts"}, []string{"--etcd-cafile", "/etc/hosts"}},
		{[]string{"--etcd-servers=https://127.0.0.1:1", "--etcd-certfile=/etc/hosts"}, []string{"--etcd-certfile and --etcd-keyfile need each other"}},
		{[]string{"--etcd-servers=etcd"}, []string{"--etcd-servers", "etcd", "no port", "unix:///<path>"}},
		{[]string{"--etcd-servers=http://127.0.0.1:1,ftp://127.0.0.1:1"}, []string{"--etcd-servers", "no way to etcd by ftp", "https://<host>:<port>"}},
		{[]string{"--etcd-servers=https://127.0.0.1"}, []string{"--etcd-servers", "no port"}},
		{[]string{"--etcd-servers=unix://"}, []string{"--etcd-servers", "no path"}},
		{[]string{"--tls-cert-file=/etc/hosts"}, []string{"--tls-cert-file and --tls-private-key-file need each other"}},
		{[]string{"--tls-cert-file=/etc/hosts", "--tls-private-key-file=/no/such/file"}, []string{"--tls-private-key-file", "/no/such/file"}},
		{[]string{"--tls-cert-file=/etc/hosts", "--tls-private-key-file=/etc/hosts"}, []string{"--tls-cert-file /etc/hosts", "failed to find any PEM data"}},
		{[]string{"--client-ca-file=/no/such/file"}, []string{"--client-ca-file", "/no/such/file"}},
		{[]string{"--client-ca-file=/etc/hosts"}, []string{"--client-ca-file", "/etc/hosts"}},
		{[]string{"--requestheader-client-ca-file=/no/such/file"}, []string{"--requestheader-client-ca-file", "/no/such/file"}},
		{[]string{"--requestheader-username-headers= "}, []string{"requestheader-username-headers", "empty value"}},
		{[]string{"--proxy-client-cert-file=/etc/hosts"}, []string{"--proxy-client-cert-file and --proxy-client-key-file need each other"}},
		{[]string{"--proxy-client-cert-file=/etc/hosts", "--proxy-client-key-file=/etc/hosts"}, []string{"--proxy-client-cert-file /etc/hosts", "failed to find any PEM data"}},
		{[]string{"--audit-policy-file=/no/such/file"}, []string{"--audit-policy-file", "/no/such/file"}},
		{[]string{"--audit-policy-file=/etc/hosts"}, []string{"--audit-policy-file", "/etc/hosts"}},
		{[]string{"--identity-lease-duration=10ms"}, []string{"--identity-lease-duration", "at least 1s"}},
		{[]string{"--identity-lease-duration=1500ms"}, []string{"--identity-lease-duration", "whole seconds"}},
		{[]string{"--controller-lease-duration=0"}, []string{"--controller-lease-duration", "at least 1s"}},
		{[]string{"--etcd-prefix="}, []string{"--etcd-prefix", "empty"}},
		{[]string{"--storage-backend=foo"}, []string{"--storage-backend", "etcd3"}},
		{[]string{"--storage-media-type=application/json"}, []string{"--storage-media-type", "protobuf"}},
		{[]string{"--watch-cache-sizes=secrets"}, []string{"--watch-cache-sizes"}},
		{[]string{"--identity-lease-renew-interval=20s"}, []string{"--identity-lease-renew-interval", "half"}},
		{[]string{"--secure-port=70000"}, []string{"--secure-port", "65535"}},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			o, err := parse(t, tc.args...)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has more than one line: %q", err)
			}
			if _, err := os.Stat(o.DataDir); err == nil {
				t.Errorf("%s was made", o.DataDir)
			}
		})
	}
}

func TestVersions(t *testing.T) {
	for _, tc := range []struct {
		args                        []string
		emulation, minCompatibility string
	}{
		{nil, "1.37", "1.36"},
		{[]string{"--emulation-version=1.36"}, "1.36", "1.35"},
		{[]string{"--emulated-version=1.35"}, "1.35", "1.34"},
		{[]string{"--emulation-version=1.34"}, "1.34", "1.34"},
		{[]string{"--min-compatibility-version=1.37"}, "1.37", "1.37"},
	} {
		o, err := parse(t, tc.args...)
		if err != nil {
			t.Errorf("%v: %v", tc.args, err)
			continue
		}
		if got := o.versions; got.emulation.String() != tc.emulation || got.minCompatibility.String() != tc.minCompatibility {
			t.Errorf("%v: emulation %s, min-compatibility %s, want %s, %s", tc.args, got.emulation, got.minCompatibility, tc.emulation, tc.minCompatibility)
		}
		if _, err := o.Plan(); err != nil {
			t.Errorf("%v: %v", tc.args, err)
		}
	}
}

// TestProtocolResourcesStay asserts that --runtime-config cannot switch off what the
// server itself is made of.
func TestProtocolResourcesStay(t *testing.T) {
	for _, key := range []string{"coordination.k8s.io/v1", "v1", "internal.apiserver.k8s.io/v1alpha1", "apiextensions.k8s.io/v1"} {
		o, err := parse(t, "--runtime-config="+key+"=false")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := o.Plan(); err == nil || !strings.Contains(err.Error(), "cannot be switched off") {
			t.Errorf("%s=false: %v, want a refusal", key, err)
		}
	}
}
