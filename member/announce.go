package member

import (
	"context"
	"fmt"
	"strconv"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// Announced reports whether the identity Lease says that all resources are reported and, if other servers rely on that
// (agree.Participants), whether all reports still stood after it said so.
func (m *Member) Announced() bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.announced()
}

// announced is Announced; the caller holds m.mu.
func (m *Member) announced() bool {
	r := m.registration
	return r.lease != nil && marked(r.lease) && (r.confirmed || !m.binds())
}

// marked reports whether a Lease says that all resources are reported.
func marked(lease *coordinationv1.Lease) bool {
	return lease.Annotations[storageversion.ReportedAnnotation] == "true"
}

// binds reports whether other servers wait for this server's reports because of what its Lease says.
func (m *Member) binds() bool {
	_, named := m.cfg.Annotations[storageversion.AggregatedResourcesAnnotation]
	return named
}

// LastRenewal says why the identity Lease was not renewed when that was tried last, nil if it was.
func (m *Member) LastRenewal() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.registration.renewal
}

// noteRenewal keeps the outcome of a renewal.
func (m *Member) noteRenewal(id agree.ServerID, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registration.id == id {
		m.registration.renewal = err
	}
}

// confirm checks that the reports still stand once the Lease says that all resources are reported. A report that was
// lost before that may be missing in a StorageVersion that another server has created again, without this server
// having heard of it. Whoever creates a StorageVersion later reads the Lease afterwards (see ensure).
func (m *Member) confirm(ctx context.Context, id agree.ServerID) error {
	m.mu.RLock()
	r := m.registration
	m.mu.RUnlock()
	if r.id != id || !marked(r.lease) || r.confirmed || !m.binds() {
		return nil
	}
	var list v1alpha1.StorageVersionList
	if err := m.cfg.Client.List(ctx, &list); err != nil {
		return fmt.Errorf("look whether the reports stand, list StorageVersions: %w", err)
	}
	revision, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		revision = 0 // it is not known
	}
	read := byResource(list.Items)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registration.id != id {
		return nil
	}
	all := true
	for gr, s := range m.resources {
		if !s.target.known || s.target.absent {
			continue
		}
		var reports []agree.Report
		at := revision
		if sv := read[gr]; sv != nil {
			if at, err = revisionOf(sv); err != nil {
				return err
			}
			reports = storageversion.Reports(sv)
		}
		m.learn(s, at, reports)
		own, _ := agree.Of(reports, id)
		all = all && s.open() && own.Encoding == s.reported
	}
	// If not all stand, the report that is made again wakes the loop that renews.
	m.registration.confirmed = all
	return nil
}
