package generic

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/keyutil"
)

// SigningKeyName is the key that signs service account tokens, in the certificate directory.
const SigningKeyName = "sa.key"

// ensureSigningKey makes the key that signs service account tokens, if dir has none, and
// returns its file. Servers that share dir may do so at the same time: the first one's counts.
func ensureSigningKey(dir string) (string, error) {
	file := filepath.Join(dir, SigningKeyName)
	_, err := os.Stat(file)
	if errors.Is(err, os.ErrNotExist) {
		err = makeSigningKey(dir, file)
	}
	if err != nil {
		return "", fmt.Errorf("the key of service account tokens: %w", err)
	}
	if _, err := keyutil.PrivateKeyFromFile(file); err != nil {
		return "", fmt.Errorf("the key of service account tokens: %w: restore %s, or remove it to make a new one, which makes all present tokens void", err, file)
	}
	return file, nil
}

// makeSigningKey writes a whole key and then gives it its name, which fails where another
// server was faster.
func makeSigningKey(dir, file string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	content, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(dir, SigningKeyName+".*") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(temporary.Name()) }()
	_, err = temporary.Write(content)
	if err := errors.Join(err, temporary.Sync(), temporary.Close()); err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), file); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}
