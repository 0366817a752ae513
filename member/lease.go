package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

var (
	// ErrLeaseGone is returned when this server's identity Lease is known to be gone: the server is not a participant
	// and has to register again.
	ErrLeaseGone = errors.New("this server's identity Lease is gone")

	errDeparted = errors.New("this server is stopping")
)

// registration is one life as a participant. The Lease is never changed in place.
type registration struct {
	id    agree.ServerID
	lease *coordinationv1.Lease // as last read or written
	// renewed is when the last attempt began that renewed the Lease, by this process's own clock: what
	// is written on the Lease has lost the monotonic reading, and a clock may be set back.
	renewed time.Time
	err     error // why there is none

	erased bool // of a silent server: see erase

	confirmed bool  // see confirm
	renewal   error // see LastRenewal
}

// Register makes a new ID and creates its identity Lease, and the
// namespace if it must. All permits of an earlier registration are closed. If the
// outcome is not known the next attempt uses another ID, and the collector takes a
// Lease that may have been left; but see Config.SameID.
func (m *Member) Register(ctx context.Context) error {
	m.leaseMu.Lock()
	defer m.leaseMu.Unlock()
	m.mu.RLock()
	departed, registered := m.departed, m.registration.id != ""
	m.mu.RUnlock()
	if departed {
		return errDeparted
	}
	if registered {
		return nil
	}
	begun := m.cfg.Clock.Now()
	lease := m.newLease()
	err := m.createLease(ctx, lease)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.registration.err = err
		return fmt.Errorf("register as %s: %w", lease.Name, err)
	}
	m.registration = registration{id: agree.ServerID(lease.Name), lease: lease, renewed: begun}
	m.closeAll(nil)
	m.unsure = ""
	for _, s := range m.resources {
		s.begin()
	}
	m.cfg.Logger.Info("Registered", "server", lease.Name)
	return nil
}

func (m *Member) newLease() *coordinationv1.Lease {
	m.mu.Lock()
	name := fmt.Sprintf("apiserver-%016x", m.cfg.Random.Uint64())
	m.mu.Unlock()
	if m.cfg.SameID {
		m.unsure = cmp.Or(m.unsure, name)
		name = m.unsure
	}
	now := metav1.NewMicroTime(m.cfg.Clock.Now())
	seconds := int32(m.cfg.LeaseDuration / time.Second)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name:      name,
			Namespace: storageversion.IdentityNamespace,
			Labels:    map[string]string{storageversion.IdentityLabel: storageversion.IdentityLabelValue},
			Annotations: map[string]string{
				storageversion.BinaryVersionAnnotation:           m.cfg.Versions.Binary,
				storageversion.EmulationVersionAnnotation:        m.cfg.Versions.Emulation,
				storageversion.MinCompatibilityVersionAnnotation: m.cfg.Versions.MinCompatibility,
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &name,
			LeaseDurationSeconds: &seconds,
			AcquireTime:          &now,
			RenewTime:            &now,
		},
	}
	tell(lease, storageversion.BuildAnnotation, m.cfg.Versions.Build)
	maps.Copy(lease.Labels, m.cfg.Labels)
	maps.Copy(lease.Annotations, m.cfg.Annotations)
	if m.silent() {
		lease.Annotations[storageversion.APIAnnotation] = storageversion.APIOff
	}
	tellEncryption(lease, m.encrypts())
	return lease
}

func (m *Member) createLease(ctx context.Context, lease *coordinationv1.Lease) error {
	wanted := lease.DeepCopy()
	err := m.cfg.Client.Create(ctx, lease)
	switch {
	case apierrors.IsAlreadyExists(err) && m.cfg.SameID: // an attempt before was answered late
		return m.cfg.Client.Get(ctx, client.ObjectKeyFromObject(wanted), lease)
	case !apierrors.IsNotFound(err):
		return err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: storageversion.IdentityNamespace}}
	if err := m.cfg.Client.Create(ctx, namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create namespace %s: %w", namespace.Name, err)
	}
	wanted.DeepCopyInto(lease)
	return m.cfg.Client.Create(ctx, lease)
}

// tellEncryption says on a Lease which encryption configuration the server has loaded, and
// with which keys it reads.
func tellEncryption(lease *coordinationv1.Lease, e Encryption) {
	tell(lease, storageversion.EncryptionConfigAnnotation, e.Config)
	tell(lease, storageversion.EncryptionKeysAnnotation, e.Keys)
}

// tell sets an annotation, or removes it if the text is empty.
func tell(lease *coordinationv1.Lease, annotation, text string) {
	if text == "" {
		delete(lease.Annotations, annotation)
		return
	}
	metav1.SetMetaDataAnnotation(&lease.ObjectMeta, annotation, text)
}

// Renew writes the present time to the identity Lease, the server's Encryption, and
// once every resource is reported the "reported" annotation. ErrLeaseGone means that the server is no
// participant any more and all its permits are closed; any other error says nothing
// about the Lease (unknown, never gone). Where others wait for this server's
// reports because of that annotation, it is then looked whether they stand.
func (m *Member) Renew(ctx context.Context) error {
	m.leaseMu.Lock()
	defer m.leaseMu.Unlock()
	m.mu.RLock()
	current, departed, encryption := m.registration, m.departed, m.encryption
	m.mu.RUnlock()
	if departed {
		return errDeparted
	}
	if current.id == "" {
		return ErrLeaseGone
	}
	err := m.renew(ctx, current, encryption)
	if err == nil {
		err = m.confirm(ctx, current.id)
	}
	m.noteRenewal(current.id, err)
	return err
}

func (m *Member) renew(ctx context.Context, current registration, encryption Encryption) error {
	reported := m.AllReported()
	const attempts = 3 // somebody else edits the Lease once in a while, not all the time
	var err error
	for range attempts {
		begun := m.cfg.Clock.Now()
		lease := renewed(current.lease, begun, reported, encryption)
		if err = m.cfg.Client.Update(ctx, lease); err == nil {
			m.setLease(current.id, lease, begun, marked(current.lease))
			return nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			break
		}
		lease, readErr := m.readLease(ctx, current)
		if readErr != nil {
			return readErr
		}
		current.lease = lease
	}
	return fmt.Errorf("renew identity Lease %s: %w", current.id, err)
}

// renewed returns the Lease as the renewal writes it.
func renewed(lease *coordinationv1.Lease, now time.Time, reported bool, encryption Encryption) *coordinationv1.Lease {
	next := lease.DeepCopy()
	at := metav1.NewMicroTime(now.Truncate(time.Microsecond))
	if last := lease.Spec.RenewTime; last != nil && last.Time.Equal(at.Time) {
		// A clock that was set back shows a time again: the collector has to see a renewal.
		at = metav1.NewMicroTime(at.Add(-time.Microsecond))
	}
	next.Spec.RenewTime = &at
	if reported {
		metav1.SetMetaDataAnnotation(&next.ObjectMeta, storageversion.ReportedAnnotation, "true")
	}
	tellEncryption(next, encryption)
	return next
}

// readLease finds out what became of a Lease that could not be updated.
func (m *Member) readLease(ctx context.Context, current registration) (*coordinationv1.Lease, error) {
	var lease coordinationv1.Lease
	err := m.cfg.Client.Get(ctx, client.ObjectKeyFromObject(current.lease), &lease)
	if err == nil && stillOurs(&lease, current.lease) {
		return &lease, nil
	}
	if err == nil || storageversion.IsGone(err) {
		m.unregister(current.id)
		return nil, fmt.Errorf("%s: %w", current.id, ErrLeaseGone)
	}
	return nil, fmt.Errorf("read identity Lease %s: %w", current.id, err)
}

// stillOurs says whether a Lease makes this registration the participant that it is: it is
// the same object, has the label, and says the same of whether the server reports.
func stillOurs(lease, ours *coordinationv1.Lease) bool {
	return lease.UID == ours.UID && lease.Labels[storageversion.IdentityLabel] == storageversion.IdentityLabelValue &&
		storageversion.SilenceOf(lease) == storageversion.SilenceOf(ours)
}

// setLease keeps the Lease as it was written. If the Lease did not say before that all resources are reported, earlier
// confirmations do not count.
func (m *Member) setLease(id agree.ServerID, lease *coordinationv1.Lease, begun time.Time, told bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.registration.id == id {
		m.registration.lease, m.registration.renewed = lease, begun
		m.registration.confirmed = m.registration.confirmed && told
	}
}

// unregister ends a registration whose Lease is gone: all permits are closed at once.
func (m *Member) unregister(id agree.ServerID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if id == "" || m.registration.id != id {
		return
	}
	m.registration = registration{err: ErrLeaseGone}
	m.began, m.timed = m.cfg.Clock.Now(), false
	m.closeAll(ErrLeaseGone)
	wake(m.wakeLease)
	m.cfg.Logger.Info("Identity Lease is gone, registering anew", "server", id)
}

// closeAll withdraws all permits and has everything reported. The caller holds m.mu.
func (m *Member) closeAll(reason error) {
	for _, s := range m.resources {
		s.close()
		s.lastErr, s.notBefore, s.failures = reason, time.Time{}, 0
	}
	wake(m.wakeReports)
}

// participants reads, never from a cache, the servers whose identity Lease exists.
func (m *Member) participants(ctx context.Context) (agree.Participants, error) {
	var leases coordinationv1.LeaseList
	if err := m.cfg.Client.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities}); err != nil {
		return agree.Participants{}, fmt.Errorf("list identity Leases: %w", err)
	}
	return storageversion.Participants(leases.Items), nil
}

// ObserveLease takes in an event of an identity Lease's watch.
func (m *Member) ObserveLease(lease *coordinationv1.Lease, deleted bool) {
	m.mu.RLock()
	current := m.registration
	m.mu.RUnlock()
	if current.id == "" || lease.Name != string(current.id) || lease.UID != current.lease.UID {
		return
	}
	if deleted || !stillOurs(lease, current.lease) {
		m.unregister(current.id)
	}
}

// Leave begins Depart. It is all that a silent server does whose writes do not come to an end: its Lease has to stay,
// since nothing else tells the other servers about these writes.
func (m *Member) Leave() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.departed {
		return
	}
	m.departed = true
	m.closeAll(errDeparted)
	if m.inflight == 0 {
		close(m.landed)
	}
	if m.stop != nil {
		m.stop()
	}
}

// Depart leaves the protocol: nothing is reported, renewed or registered from now on,
// all permits are closed, and reports under way are waited for. Then the server is
// buried, again and again until that succeeds or ctx ends. The server
// drains its requests before.
func (m *Member) Depart(ctx context.Context) error {
	m.Leave()
	select {
	case <-m.landed:
	case <-ctx.Done():
		return fmt.Errorf("depart: reports are still under way: %w", ctx.Err())
	}
	// A registration or renewal that is under way ends before the Lease is deleted.
	m.leaseMu.Lock()
	defer m.leaseMu.Unlock()
	id := m.ID()
	if id == "" {
		return nil
	}
	bury := m.cfg.Bury
	if m.silent() {
		bury = m.resign
	}
	for failures := 0; ; failures++ {
		err := bury(ctx, id)
		if err == nil {
			return nil
		}
		if m.pause(ctx, m.backoff(failures), nil); ctx.Err() != nil {
			return fmt.Errorf("depart as %s: %w", id, err)
		}
	}
}
