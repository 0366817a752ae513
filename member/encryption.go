package member

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// Encryption is the configuration that a server encrypts with. The zero value encrypts nothing.
type Encryption struct {
	// Config is the hash of its configuration, and Keys the keys that it reads, for its
	// identity Lease: see storageversion.EncryptionConfigAnnotation and EncryptionKeysAnnotation.
	Config, Keys string
	// Seal returns the seal that a resource is encrypted with; nil means that none is encrypted.
	// Its answer for a resource does not change; it must not call the Member.
	Seal func(schema.GroupResource) agree.Seal
}

// SetEncryption sets the keys that the server encrypts with from now on. Resources whose key changes are reported
// again: until then a write with the new key waits, and afterwards a write with the old key is superseded.
func (m *Member) SetEncryption(e Encryption) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.encryption = e
	for gr, s := range m.resources {
		t := s.target
		if t.resource.Encoding == "" {
			continue // no CRD has been seen
		}
		t.resource.Encoding = t.resource.Encoding.Sealed(m.seal(gr))
		if t.resource.Encoding != s.target.resource.Encoding {
			s.aim(t)
		}
	}
	wake(m.wakeReports)
	if m.registration.id != "" {
		wake(m.wakeLease)
	}
}

// encrypts returns the Encryption of the server.
func (m *Member) encrypts() Encryption {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.encryption
}

// seal returns the seal that the server encrypts a resource with. The caller holds m.mu.
func (m *Member) seal(gr schema.GroupResource) agree.Seal {
	if m.encryption.Seal == nil {
		return ""
	}
	return m.encryption.Seal(gr)
}
