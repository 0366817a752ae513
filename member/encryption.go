package member

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
)

// encryption is what a server encrypts with.
type encryption struct {
	// config is the hash of its configuration, for people; "" without one.
	config string
	// seal may be nil: then nothing is encrypted.
	seal func(schema.GroupResource) agree.Seal
}

// SetEncryption tells what the server encrypts each resource with from now on, and the hash
// of the configuration that says so. Resources whose key changes are reported anew: until
// then a write with the new key waits, and from then on one with the old key is superseded.
// What seal returns for a resource does not change; it must not call the Member.
func (m *Member) SetEncryption(config string, seal func(schema.GroupResource) agree.Seal) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.encryption = encryption{config: config, seal: seal}
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

// encryptionConfig is the hash of what was loaded last.
func (m *Member) encryptionConfig() string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.encryption.config
}

// seal is what the server encrypts a resource with. The caller holds m.mu.
func (m *Member) seal(gr schema.GroupResource) agree.Seal {
	if m.encryption.seal == nil {
		return ""
	}
	return m.encryption.seal(gr)
}
