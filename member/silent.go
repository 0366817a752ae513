package member

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

var (
	errNotErased  = errors.New("the other servers' StorageVersions are not deleted yet")
	errNotRenewed = errors.New("this server's identity Lease was not renewed for as long as it lasts")
)

// silent says whether the server reports nothing.
func (m *Member) silent() bool { return m.cfg.Erase != nil }

// erase deletes all StorageVersions, once for each registration and after its Lease exists. Any StorageVersion created
// later is created by a server that then sees the Lease.
func (m *Member) erase(ctx context.Context) error {
	m.mu.RLock()
	current := m.registration
	m.mu.RUnlock()
	if !m.silent() || current.id == "" || current.erased {
		return nil
	}
	if err := m.cfg.Erase(ctx); err != nil {
		return fmt.Errorf("delete all StorageVersions: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registration.id == current.id {
		m.registration.erased = true
		wake(m.wakeLease) // there are no reports to wait for, which the Lease tells
	}
	return nil
}

// silentReady explains why a silent server may not write: its Lease has to show all other servers that it lives. A
// server that was paused for longer than its Lease lasts may have been buried, and finds out before it accepts a
// write. The caller holds m.mu.
func (m *Member) silentReady() error {
	r := m.registration
	switch {
	case m.departed, r.id == "":
		return m.unreadyLease()
	case !r.erased:
		return errNotErased
	case m.cfg.Clock.Since(r.renewed) >= m.cfg.LeaseDuration:
		return errNotRenewed
	default:
		return nil
	}
}

// resign deletes the Lease of a silent server, which has no reports to drop.
func (m *Member) resign(ctx context.Context, id agree.ServerID) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: string(id)}}
	if err := m.cfg.Client.Delete(ctx, lease); err != nil && !storageversion.IsGone(err) {
		return fmt.Errorf("delete identity Lease %s: %w", id, err)
	}
	return nil
}
