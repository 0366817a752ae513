package member

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

// reportOne makes one attempt: the StorageVersion is read or made, then the participants
// are read, in this order again in every attempt.
func (m *Member) reportOne(ctx context.Context, c claim) (result, error) {
	if c.readFirst() {
		var err error
		if c, err = m.recheck(ctx, c); err != nil {
			return done, err
		}
		switch {
		case c.target.absent:
			return done, m.retire(ctx, c)
		case !c.target.known:
			return done, nil // the CRD's names are not accepted yet
		}
	}
	// The StorageVersion that the watch showed is an earlier read. If it is not the newest one, the write conflicts,
	// and it is read then.
	if err := m.placeAlone(ctx, c, c.seen); err != nil {
		return done, err
	}
	if c.custom() {
		if err := m.check(ctx, c); err != nil {
			return done, err
		}
	}
	return m.finish(c), nil
}

// placeAlone makes the report stand in the StorageVersion that the watch showed, or else in the one that it reads.
func (m *Member) placeAlone(ctx context.Context, c claim, seen *v1alpha1.StorageVersion) error {
	sv, err := seen, error(nil)
	if sv == nil {
		if sv, err = m.readStorageVersion(ctx, c.gr); err != nil {
			return err
		}
	}
	if sv, err = m.ensure(ctx, c, sv); err != nil {
		return err
	}
	participants, err := m.participants(ctx)
	if err != nil {
		return err
	}
	return m.place(ctx, c, sv, participants)
}

// place has the report stand in the StorageVersion that was read or made before the
// participants.
func (m *Member) place(ctx context.Context, c claim, sv *v1alpha1.StorageVersion, participants agree.Participants) error {
	if !participants.Has(c.id) {
		m.unregister(c.id)
		return fmt.Errorf("%s: %w", c.id, ErrLeaseGone)
	}
	revision, err := m.put(ctx, c, sv, participants)
	if err != nil {
		return err
	}
	return m.stands(c, revision)
}

// lacks says whether the StorageVersion, nil if there is none, cannot take the report: it
// has to be made first.
func lacks(c claim, sv *v1alpha1.StorageVersion) bool {
	return sv == nil || c.custom() && storageversion.MadeFor(sv) != c.target.uid
}

// ensure returns the StorageVersion that was read, or creates one without reports. It has to exist before the
// participants are read: a StorageVersion created from participants that were read earlier could outlive the deletion
// of all StorageVersions by a server that does not report, and claim that the others agree.
func (m *Member) ensure(ctx context.Context, c claim, sv *v1alpha1.StorageVersion) (*v1alpha1.StorageVersion, error) {
	if !lacks(c, sv) {
		return sv, nil
	}
	if sv != nil {
		if err := m.replace(ctx, c, sv); err != nil {
			return nil, err
		}
	}
	if err := m.sending(c, ""); err != nil {
		return nil, err
	}
	sv = &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{Name: storageversion.Name(c.gr), Labels: maps.Clone(m.cfg.Labels)}}
	if c.custom() {
		sv.Annotations = map[string]string{storageversion.CRDAnnotation: string(c.target.uid)}
	}
	if err := m.cfg.Client.Create(ctx, sv); err != nil {
		return nil, fmt.Errorf("create StorageVersion %s: %w", sv.Name, err)
	}
	return sv, nil
}

// put makes the report stand, with a write only if one is needed, and returns the
// revision at which it was seen to.
func (m *Member) put(ctx context.Context, c claim, sv *v1alpha1.StorageVersion, participants agree.Participants) (int64, error) {
	own := c.target.resource.report(c.id)
	reports, changed := plan(sv, own, participants.For(c.gr))
	if !changed {
		return revisionOf(sv)
	}
	if err := m.sending(c, own.Encoding); err != nil {
		return 0, err
	}
	next := sv.DeepCopy()
	storageversion.SetReports(next, reports, metav1.NewTime(m.cfg.Clock.Now()))
	if err := m.cfg.Client.Status().Update(ctx, next); err != nil {
		return 0, fmt.Errorf("write StorageVersion %s: %w", next.Name, err)
	}
	if got, ok := agree.Of(storageversion.Reports(next), c.id); !ok || got.Encoding != own.Encoding {
		return 0, fmt.Errorf("StorageVersion %s was stored without this server's report", next.Name)
	}
	return revisionOf(next)
}

// plan decides which reports the StorageVersion should have, and whether it has to be written: every write costs the
// other servers a read.
func plan(sv *v1alpha1.StorageVersion, own agree.Report, participants agree.Participants) ([]agree.Report, bool) {
	before := storageversion.Reports(sv)
	after := agree.Merge(before, own, participants)
	said, agreed := storageversion.AgreementOn(sv, before)
	common, ok := agree.Common(after)
	return after, !agree.Equal(before, after) || agreed != ok || said != common
}

// revisionOf returns the etcd mod revision of a StorageVersion.
func revisionOf(sv *v1alpha1.StorageVersion) (int64, error) {
	revision, err := strconv.ParseInt(sv.ResourceVersion, 10, 64)
	if err != nil || revision <= 0 {
		return 0, fmt.Errorf("StorageVersion %s: resourceVersion %q is not an etcd revision", sv.Name, sv.ResourceVersion)
	}
	return revision, nil
}

func (m *Member) readStorageVersion(ctx context.Context, gr schema.GroupResource) (*v1alpha1.StorageVersion, error) {
	var sv v1alpha1.StorageVersion
	err := m.cfg.Client.Get(ctx, client.ObjectKey{Name: storageversion.Name(gr)}, &sv)
	switch {
	case err == nil:
		return &sv, nil
	case storageversion.IsGone(err):
		return nil, nil
	default:
		return nil, fmt.Errorf("read StorageVersion %s: %w", storageversion.Name(gr), err)
	}
}

// sending is called before a write of the report in this encoding, empty for a write
// that drops it. If another encoding is open it is closed: from now on, and as long as
// the outcome of the write is not known, its revision is not handed out.
func (m *Member) sending(c claim, enc agree.Encoding) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	switch {
	case m.departed:
		return errDeparted
	case m.registration.id != c.id, s.seq != c.seq:
		return errStale
	}
	if s.reported != "" && s.reported != enc {
		s.close()
	}
	return nil
}

// stands records the revision at which the report was seen.
func (m *Member) stands(c claim, revision int64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch s := m.resources[c.gr]; {
	case m.departed:
		return errDeparted
	case m.registration.id != c.id:
		return errStale
	case !s.stands(c.target.resource.Encoding, revision):
		return errReportLost
	}
	return nil
}

// finish ends a successful attempt.
func (m *Member) finish(c claim) result {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[c.gr]
	if m.registration.id != c.id || m.departed {
		return done
	}
	s.done = max(s.done, c.seq)
	if !s.open() {
		return done
	}
	before := s.opened
	s.opened = s.reported
	m.observeReported()
	if before != "" && before.Plain() != s.reported.Plain() {
		return reopened
	}
	return done
}

// observeReported notices when everything has been reported. The caller holds m.mu.
func (m *Member) observeReported() {
	builtins, all := true, true
	for _, s := range m.resources {
		if s.target.known && !s.target.absent && !s.open() {
			all = false
			builtins = builtins && !s.builtin
		}
		if !all && (!builtins || m.timed) {
			return // this is asked after every report, and mostly answered soon
		}
	}
	if builtins && m.builtinsSet && !m.timed {
		m.timed = true
		m.cfg.Metrics.ObserveReport(m.cfg.Clock.Since(m.began))
	}
	if all && !m.announced() {
		wake(m.wakeLease)
	}
}

// AllReported says whether every resource that is known has been reported, and all that
// existed at the start are known; of a silent server, that no report will come.
func (m *Member) AllReported() bool {
	if m.cfg.CustomResourcesKnown != nil && !m.cfg.CustomResourcesKnown() {
		return false
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.silent() {
		return m.registration.erased
	}
	for _, s := range m.resources {
		if s.target.known && !s.target.absent && !s.open() {
			return false
		}
	}
	return m.builtinsSet
}
