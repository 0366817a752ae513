package server

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	certutil "k8s.io/client-go/util/cert"

	"github.com/concord-dev/concord/server/pki"
)

// Where an aggregated API server reads by what it knows the front proxy, and who users are:
// a CA, the names of certificates (none: any), and headers. Lists are in JSON.
const (
	proxyCAKey       = "requestheader-client-ca-file"
	proxyNamesKey    = "requestheader-allowed-names"
	proxyUserKey     = "requestheader-username-headers"
	proxyUIDKey      = "requestheader-uid-headers"
	proxyGroupKey    = "requestheader-group-headers"
	proxyExtraPrefix = "requestheader-extra-headers-prefix"
)

// proxyTrust is by what aggregated API servers know the servers of a cluster. Without a CA
// they do not.
type proxyTrust struct {
	caFile string
	names  []string
}

// trust returns what vouches for the certificate that is shown: for the given one, as with
// kube-apiserver, what this server itself accepts of a front proxy.
func (o *AggregationOptions) trust(own pki.FrontProxy) proxyTrust {
	if o.ProxyClientCertFile != "" {
		return proxyTrust{caFile: o.RequestHeader.ClientCAFile, names: o.RequestHeader.AllowedNames}
	}
	return proxyTrust{caFile: own.CAFile, names: []string{pki.FrontProxyUser}}
}

// publishedProxy is a proxyTrust as it is published.
type publishedProxy struct {
	ca    []byte
	lists map[string][]string
}

func (t proxyTrust) read() (publishedProxy, error) {
	if t.caFile == "" {
		return publishedProxy{}, nil
	}
	ca, err := os.ReadFile(t.caFile)
	if err != nil {
		return publishedProxy{}, err
	}
	if _, err := certutil.ParseCertsPEM(ca); err != nil {
		return publishedProxy{}, fmt.Errorf("%s: %w", t.caFile, err)
	}
	// The headers are those that the aggregator's transport writes.
	return publishedProxy{ca: ca, lists: map[string][]string{
		proxyNamesKey: t.names, proxyUserKey: {"X-Remote-User"}, proxyUIDKey: {"X-Remote-Uid"},
		proxyGroupKey: {"X-Remote-Group"}, proxyExtraPrefix: {"X-Remote-Extra-"},
	}}, nil
}

// addTo adds to what is published what it lacks. Servers of a cluster may have different
// front proxies. Where one names its certificates, the others have to, as with kube-apiserver.
func (p publishedProxy) addTo(trust *corev1.ConfigMap) (changed bool) {
	if len(p.ca) == 0 {
		return false
	}
	if trust.Data == nil { // somebody made or emptied it
		trust.Data = map[string]string{}
	}
	published := trust.Data
	first := published[proxyCAKey] == ""
	if merged := withCerts([]byte(published[proxyCAKey]), p.ca); first || merged != published[proxyCAKey] {
		published[proxyCAKey], changed = merged, true
	}
	for key, add := range p.lists {
		var present []string
		known := !first && json.Unmarshal([]byte(published[key]), &present) == nil
		merged := slices.Clone(present)
		for _, item := range add {
			if !slices.Contains(merged, item) {
				merged = append(merged, item)
			}
		}
		if known && slices.Equal(present, merged) {
			continue
		}
		text, err := json.Marshal(append([]string{}, merged...))
		if err != nil {
			panic(err) // a list of strings always marshals
		}
		published[key], changed = string(text), true
	}
	return changed
}

// withCerts returns the certificates of a bundle and those of another that it lacks. What
// cannot be read of the first one is replaced.
func withCerts(bundle, more []byte) string {
	present, err := certutil.ParseCertsPEM(bundle)
	if err != nil {
		return string(more)
	}
	add, err := certutil.ParseCertsPEM(more)
	if err != nil {
		return string(bundle)
	}
	for _, cert := range add {
		known := false
		for _, p := range present {
			known = known || bytes.Equal(p.Raw, cert.Raw)
		}
		if !known {
			bundle = append(bytes.TrimRight(bundle, "\n"), '\n')
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: cert.Raw})...)
		}
	}
	return string(bundle)
}
