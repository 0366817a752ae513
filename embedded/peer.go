package embedded

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	peerCAName   = "peer-ca.crt"
	peerCertName = "peer.crt"
	peerKeyName  = "peer.key"
	// peerLifetime is longer than a process lives. An end of it would shut nobody out: an etcd of
	// one member has no peers.
	peerLifetime = 10 * 365 * 24 * time.Hour
	clockSkew    = 5 * time.Minute
)

// SecurePeers has an etcd of one member that is about to start speak to peers by mutual TLS
// only: a raft message is a write past all authentication. The CA is made anew at every call,
// and its key is dropped before it returns, so nobody can be given a certificate. Etcd wants
// its own as files; they are made in dir, which has to be private (0700), and removed by remove.
func SecurePeers(cfg *embed.Config, dir string) (remove func() error, err error) {
	files := [...]string{filepath.Join(dir, peerCAName), filepath.Join(dir, peerCertName), filepath.Join(dir, peerKeyName)}
	remove = func() error {
		var errs []error
		for _, file := range files {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, err)
			}
		}
		return errors.Join(errs...)
	}
	contents, err := peerCertificates()
	if err != nil {
		return nil, fmt.Errorf("etcd's peer certificate: %w", err)
	}
	// Files of a process that was killed are not written over: somebody may have them open.
	if err := remove(); err != nil {
		return nil, fmt.Errorf("etcd's peer certificate: %w", err)
	}
	for i, file := range files {
		if err := os.WriteFile(file, contents[i], 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("etcd's peer certificate: %w", err), remove())
		}
	}
	peer := url.URL{Scheme: "https", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.PeerTLSInfo = transport.TLSInfo{
		TrustedCAFile: files[0], CertFile: files[1], KeyFile: files[2],
		ClientCertAuth: true, MinVersion: tls.VersionTLS13,
	}
	return remove, nil
}

// peerCertificates returns a new CA's certificate, and a certificate that it has signed for
// the loopback with its key, as PEM.
func peerCertificates() (contents [3][]byte, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return contents, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return contents, err
	}
	ca := &x509.Certificate{
		Subject: pkix.Name{CommonName: "concord-etcd-peer-ca"}, KeyUsage: x509.KeyUsageCertSign,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	caDER, err := sign(ca, ca, caKey.Public(), caKey)
	if err != nil {
		return contents, err
	}
	certDER, err := sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "concord-etcd-peer"}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}, ca, key.Public(), caKey)
	if err != nil {
		return contents, err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return contents, err
	}
	for i, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: caDER}, {Type: "CERTIFICATE", Bytes: certDER}, {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		contents[i] = pem.EncodeToMemory(block)
	}
	return contents, nil
}

func sign(template, parent *x509.Certificate, public crypto.PublicKey, by crypto.Signer) (der []byte, err error) {
	if template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)); err != nil {
		return nil, err
	}
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-clockSkew), now.Add(peerLifetime)
	return x509.CreateCertificate(rand.Reader, template, parent, public, by)
}
