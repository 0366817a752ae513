package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
)

var (
	errRestored     = errors.New("etcd was restored from a backup, with an earlier StorageVersion: this server reports again")
	errReportLost   = errors.New("this server's report is missing from the StorageVersion")
	errNotReported  = errors.New("not reported yet")
	errUnregistered = errors.New("this server has no identity Lease")
	errUnknown      = errors.New("the resource is not known to this server")
)

// Unavailable is the answer to a write without permission: a 503 that clients repeat
// after a second (KEP-2339, "Updating StorageVersion").
func Unavailable(gr schema.GroupResource, last error) error {
	return storageversion.Unavailable(gr, "wait for storage version registration to complete for resource: %s, last seen error: %v", gr, last)
}

// Revision returns the etcd revision of the resource's StorageVersion at which this
// server's report for enc stands: a write compares it. Revision waits, at most
// Config.WaitLimit or until ctx ends, for a custom resource that is about to open. The
// error wraps agree.ErrSuperseded when the server has come to report another encoding,
// and is a 503 of apimachinery's errors with RetryAfterSeconds when there is no permission.
func (m *Member) Revision(ctx context.Context, gr schema.GroupResource, enc agree.Encoding) (int64, error) {
	m.mu.RLock()
	if s := m.resources[gr]; s != nil && s.open() && s.reported == enc {
		defer m.mu.RUnlock()
		return s.revision, nil
	}
	m.mu.RUnlock()
	var revision int64
	var err error
	first := true
	m.await(ctx, m.cfg.WaitLimit, func() (changed <-chan struct{}) {
		revision, changed, err = m.tryRevision(gr, enc, first)
		first = false
		return changed
	})
	return revision, err
}

// tryRevision answers at once. If it returns a channel, the answer, a 503, may be better once the channel is closed.
// Only the first try of a call makes the worker look up an unknown resource, so that a resource that does not exist is
// not looked up for ever.
func (m *Member) tryRevision(gr schema.GroupResource, enc agree.Encoding, first bool) (int64, <-chan struct{}, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[gr]
	if s == nil {
		// Custom resources have a group; a store may be built before the CRD's event.
		if !first || gr.Group == "" || m.departed {
			return 0, nil, Unavailable(gr, errUnknown)
		}
		s = newState(false)
		s.target.resource = Resource{GroupResource: gr, CRD: gr.Resource + "." + gr.Group}
		m.resources[gr] = s
	}
	if m.departed {
		return 0, nil, Unavailable(gr, errDeparted)
	}
	answer, ask := s.permit(enc)
	if ask {
		s.verify = true
		wake(m.wakeReports)
	}
	switch answer {
	case granted:
		return s.revision, nil, nil
	case superseded:
		return 0, nil, supersededError(gr, enc)
	case wait:
		return 0, s.changed, Unavailable(gr, m.lastError(s))
	default:
		if s.open() {
			return 0, nil, Unavailable(gr, fmt.Errorf("the store encodes %s and this server reports %s", enc, s.reported))
		}
		return 0, nil, Unavailable(gr, m.lastError(s))
	}
}

// Moved reports that a write's transaction at etcd revision at wrote nothing, because it found the resource's
// StorageVersion as of revision mod (0: there is none) with these reports. Nil means: ask for Revision again. Errors
// are those of Revision.
func (m *Member) Moved(_ context.Context, gr schema.GroupResource, enc agree.Encoding, at, mod int64, reports []agree.Report) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.resources[gr]
	if s == nil {
		return Unavailable(gr, errUnknown)
	}
	if s.restored(at, mod) {
		m.cfg.Logger.Info("etcd was restored from a backup: reporting again", "resource", gr, "revision", mod, "known", s.revision)
		s.close()
		s.begin()
		s.lastErr = errRestored
		wake(m.wakeReports)
		return nil
	}
	self := m.registration.id
	m.learn(s, mod, reports)
	switch s.moved(self, enc, mod, reports) {
	case refused:
		if s.lastErr == nil {
			return Unavailable(gr, errReportLost)
		}
		return Unavailable(gr, m.lastError(s))
	case superseded:
		return supersededError(gr, enc)
	default:
		return nil
	}
}

// learn applies what is known of a resource's reports and starts the worker if they
// took the permission away. The caller holds m.mu.
func (m *Member) learn(s *state, revision int64, reports []agree.Report) {
	if s.learn(m.registration.id, revision, reports) {
		s.lastErr = errReportLost
		wake(m.wakeReports)
	}
}

func supersededError(gr schema.GroupResource, enc agree.Encoding) error {
	return fmt.Errorf("resource %s, encoding %s: %w", gr, enc, agree.ErrSuperseded)
}

// lastError explains why a resource is closed. The caller holds m.mu.
func (m *Member) lastError(s *state) error {
	switch {
	case m.departed:
		return errDeparted
	case s.lastErr != nil:
		return m.because(s.lastErr)
	case m.registration.id == "":
		return m.because(errUnregistered)
	default:
		return errNotReported
	}
}

// because adds the reason why the storage accepts no writes, if it does not. In that case neither Leases nor reports
// can be written, and deletes, which such a storage may accept, wait for them as well.
func (m *Member) because(err error) error {
	if away := m.storageError(); away != nil {
		return fmt.Errorf("%w, and cannot write one: %w", err, away)
	}
	return err
}

// Ready returns nil when every built-in resource is open: the body of the check
// poststarthook/built-in-resources-storage-version-updater. For a silent
// server it returns nil when writes are let pass.
func (m *Member) Ready() error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.silent() {
		return m.silentReady()
	}
	if !m.builtinsSet {
		return errors.New("the built-in resources are not known yet")
	}
	if m.registration.id == "" {
		return m.unreadyLease()
	}
	var closed []string
	var last error
	for _, gr := range m.sorted(func(s *state) bool { return s.builtin && !s.open() && !s.moving() }) {
		if closed = append(closed, gr.String()); last == nil {
			last = m.lastError(m.resources[gr])
		}
	}
	if len(closed) == 0 {
		return nil
	}
	const named = 3
	more := ""
	if len(closed) > named {
		more = fmt.Sprintf(" and %d more", len(closed)-named)
		closed = closed[:named]
	}
	return fmt.Errorf("storage version registration is not complete for %s%s, last seen error: %w", strings.Join(closed, ", "), more, last)
}

func (m *Member) unreadyLease() error {
	switch {
	case m.departed:
		return errDeparted
	case m.registration.err != nil:
		return fmt.Errorf("%w: %w", errUnregistered, m.registration.err)
	default:
		return errUnregistered
	}
}

// Status describes what a server knows about one resource, for display.
type Status struct {
	Resource schema.GroupResource
	// Wanted is the encoding that should be reported, empty if none should.
	Wanted agree.Encoding
	// Reported is the encoding of the report that stands, empty if none is known to.
	Reported agree.Encoding
	// Revision is the etcd revision at which it was seen last.
	Revision int64
	// Open says whether this server may write the resource.
	Open bool
	// Attempt is the ordinal of the attempt to report that is under way, 0 if none is.
	Attempt int
	// LastError is the last error, empty if there was none since the last success.
	LastError string
}

// String prints one line.
func (s Status) String() string {
	state := "closed"
	if s.Open {
		state = "open"
	}
	line := fmt.Sprintf("%s %s wants=%s reports=%s@%d", s.Resource, state, s.Wanted, s.Reported, s.Revision)
	if s.Attempt > 0 {
		line += fmt.Sprintf(" attempt=%d", s.Attempt)
	}
	if s.LastError != "" {
		line += " error=" + s.LastError
	}
	return line
}

// Snapshot returns the Status of every resource, sorted by resource.
func (m *Member) Snapshot() []Status {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make([]Status, 0, len(m.resources))
	for _, gr := range m.sorted(func(*state) bool { return true }) {
		s := m.resources[gr]
		status := Status{Resource: gr, Reported: s.reported, Revision: s.revision, Open: s.open()}
		if s.target.known && !s.target.absent {
			status.Wanted = s.target.resource.Encoding
		}
		if s.inflight {
			status.Attempt = s.failures + 1
		}
		if s.lastErr != nil {
			status.LastError = s.lastErr.Error()
		}
		all = append(all, status)
	}
	return all
}

// sorted returns the resources in a stable order. The caller holds m.mu.
func (m *Member) sorted(want func(*state) bool) []schema.GroupResource {
	var grs []schema.GroupResource
	for gr, s := range m.resources {
		if want(s) {
			grs = append(grs, gr)
		}
	}
	slices.SortFunc(grs, func(a, b schema.GroupResource) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Group, b.Group))
	})
	return grs
}
