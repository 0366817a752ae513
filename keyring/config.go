package keyring

import (
	"errors"
	"fmt"
	"time"
)

// Flag names the file of an EncryptionConfiguration; messages to operators speak of it.
const Flag = "encryption-provider-config"

// Config holds the settings that a Ring is made of.
type Config struct {
	// Path is the file of the EncryptionConfiguration (--encryption-provider-config).
	// Empty: nothing is encrypted.
	Path string
	// Reload has changes of the file loaded while the server runs
	// (--encryption-provider-config-automatic-reload).
	Reload bool
	// Server identifies this API server in the metrics of encryption. Required with Path.
	Server string
	// Now is the clock. Nil means time.Now.
	Now func() time.Time
}

// Validate returns an error if the configuration is invalid; it does not read the file.
func (c Config) Validate() error {
	switch {
	case c.Path == "" && c.Reload:
		return fmt.Errorf("--%s-automatic-reload needs --%s", Flag, Flag)
	case c.Path != "" && c.Server == "":
		return errors.New("the server whose metrics tell of encryption has no name: set Server")
	}
	return nil
}
