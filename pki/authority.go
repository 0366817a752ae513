package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	"k8s.io/utils/clock"
)

// ErrNoKey is returned where a CA would have to sign, and its key cannot be read.
var ErrNoKey = errors.New("the CA's key is needed")

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	// pem is the whole file, with others of them.
	pem    []byte
	others int
	// key is nil if keyErr says why: a server that signs nothing needs none.
	key    crypto.Signer
	keyErr error
	now    clock.PassiveClock
}

const mendCA = "make it readable, restore it from a backup or another server's --cert-dir, or remove both %s and %s to make a new CA, which no present kubeconfig trusts"

// ensureCA reads a CA, or makes one where there is none.
func ensureCA(certFile, keyFile, name string, now clock.PassiveClock) (*authority, error) {
	if _, err := os.Stat(certFile); errors.Is(err, fs.ErrNotExist) {
		if err := makeCA(certFile, keyFile, name); err != nil {
			return nil, err
		}
	}
	mend := fmt.Sprintf(mendCA, certFile, keyFile)
	certs, err := certutil.CertsFromFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA certificate: %w: %s", err, mend)
	}
	raw, err := os.ReadFile(certFile)
	if err != nil {
		return nil, err
	}
	a := &authority{cert: certs[0], pem: raw, others: len(certs) - 1, now: now}
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		a.keyErr = fmt.Errorf("%w: %w: %s", ErrNoKey, err, mend)
		return a, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA key: %w: %s", err, mend)
	}
	key, ok := private.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("the cluster's CA key %s cannot sign: %s", keyFile, mend)
	}
	if public, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(a.cert.PublicKey) {
		return nil, fmt.Errorf("%s and %s do not belong together: restore the pair or remove both", certFile, keyFile)
	}
	a.key = key
	return a, nil
}

// ensureAlone returns a file with the CA's certificate alone: its own file, or one that is written where other CAs are
// in that and the key is there to sign with.
func (a *authority) ensureAlone(certFile, aloneFile string) (string, error) {
	if a.others == 0 || a.key == nil {
		return certFile, nil
	}
	alone := encodeCert(a.cert.Raw)
	if present, err := os.ReadFile(aloneFile); err == nil && bytes.Equal(present, alone) {
		return aloneFile, nil
	}
	return aloneFile, writeWhole(map[string][]byte{aloneFile: alone})
}

// makeCA creates the certificate of a CA. It uses an existing key: either an earlier start was interrupted before it
// had a certificate, or somebody lost the certificate. Certificates that the key has signed stay valid.
func makeCA(certFile, keyFile, name string) error {
	private, err := keyutil.PrivateKeyFromFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		var content []byte
		if private, content, err = newKey(); err == nil {
			err = writeWhole(map[string][]byte{keyFile: content})
		}
	}
	if err != nil {
		return fmt.Errorf("the cluster's CA key: %w: restore it, or remove %s to make a new CA, which no present kubeconfig trusts", err, keyFile)
	}
	key, ok := private.(crypto.Signer)
	if !ok {
		return fmt.Errorf("the cluster's CA key %s cannot sign: restore it", keyFile)
	}
	cert, err := certutil.NewSelfSignedCACert(certutil.Config{CommonName: name}, key)
	if err != nil {
		return err
	}
	return writeWhole(map[string][]byte{certFile: encodeCert(cert.Raw)})
}

// issued returns the certificate of a pair of files if the two belong together and this CA
// signed it; else nil.
func (a *authority) issued(certFile, keyFile string) *x509.Certificate {
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil || pair.Leaf.CheckSignatureFrom(a.cert) != nil {
		return nil
	}
	return pair.Leaf
}

// ensureIssued writes a certificate like the template with a new key, unless there is a good one. Without the CA's key
// a certificate that has not expired is good enough.
func (a *authority) ensureIssued(certFile, keyFile string, template *x509.Certificate) error {
	present := a.issued(certFile, keyFile)
	if present != nil && isFor(present, template) {
		left := present.NotAfter.Sub(a.now.Now())
		// A certificate that ends with the CA's cannot be extended.
		if left > renewAfter || left > 0 && (a.key == nil || !present.NotAfter.Before(a.cert.NotAfter)) {
			return nil
		}
	}
	return a.issue(certFile, keyFile, template)
}

// isFor reports whether a certificate covers everything that the wanted one would cover.
func isFor(cert, wanted *x509.Certificate) bool {
	for _, ip := range wanted.IPAddresses {
		if cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	for _, host := range wanted.DNSNames {
		if cert.VerifyHostname(host) != nil {
			return false
		}
	}
	return true
}

func (a *authority) issue(certFile, keyFile string, template *x509.Certificate) error {
	if a.key == nil {
		return fmt.Errorf("%s: %w", filepath.Base(certFile), a.keyErr)
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return err
	}
	now := a.now.Now()
	template.NotBefore, template.NotAfter = now.Add(-clockSkew), now.Add(certLifetime)
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return err
	}
	return writeWhole(map[string][]byte{keyFile: keyPEM, certFile: encodeCert(der)})
}

func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	return key, content, err
}

// writeWhole writes files atomically: each is there as a whole or not at all, whenever the process is killed. Files
// other than certificates are readable by the process's user only. Files that belong together change at almost the
// same moment: a reader in between finds that they do not match, and reads again.
func writeWhole(contents map[string][]byte) error {
	for file, content := range contents {
		mode := fs.FileMode(0o600)
		if filepath.Ext(file) == ".crt" {
			mode = 0o644
		}
		if err := os.WriteFile(file+".part", content, mode); err != nil {
			return err
		}
	}
	for file := range contents {
		if err := os.Rename(file+".part", file); err != nil {
			return err
		}
	}
	return nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: certutil.CertificateBlockType, Bytes: der})
}
