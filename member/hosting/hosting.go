// Package hosting has an aggregated API server's part in the cluster that it belongs to.
package hosting

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/agree"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/controller/collect"
	"github.com/concord-dev/concord/fence"
	"github.com/concord-dev/concord/member"
	"github.com/concord-dev/concord/workers"
)

const (
	// hostPoll is how often it is looked whether the own registration has changed.
	hostPoll = 100 * time.Millisecond
	// hostLook is how often a host that serves no StorageVersions is looked at again, and
	// hostRetry when it did not answer.
	hostLook, hostRetry = 10 * time.Second, time.Second
	// hostTimeout bounds one question to the host.
	hostTimeout = 10 * time.Second
	// hostLeaseDuration keeps the host, and kube-apiserver's own collector of identity Leases
	// there, from ending a Lease whose server may still have the permission to write: it is
	// deleted only after that permission was taken away.
	hostLeaseDuration = 10 * 365 * 24 * time.Hour
)

// Config says how a server takes part in its host.
type Config struct {
	// Objects is a client of the host, and Serves asks whether that serves StorageVersions.
	Objects client.WithWatch
	Serves  func(context.Context) (bool, error)
	// Versions are the server's, RenewInterval is how often its Lease in the host is renewed, but for
	// hostTimeout at least.
	Versions      member.Versions
	RenewInterval time.Duration
	// Drive runs a member of the host until ctx ends. By default it is a goroutine with the member's loops.
	Drive func(ctx context.Context, m *member.Member)
	// Clock is the real one by default, Random seeded from the operating system, and Workers that of package member,
	// and of collect.
	Clock   clock.WithTicker
	Random  *rand.Rand
	Workers int
	// Logger is silent by default.
	Logger logr.Logger
}

// Host is an aggregated API server's part in the cluster that it belongs to, its host. Its
// permission to write is its report in its own etcd. The encodings that it may write it also
// reports to the host, in this order: own report, the host's, writes; and back: no writes, own
// report, the host's (KEP-2339, "aggregated API servers"). So each object it writes is in an
// encoding that the host knows of, also when it was paused and somebody else has buried it. The
// writes also come after its Lease in the host says that all is reported: then the host knows of it
// even where the reports there are lost while it is cut off (agree.Participants).
//
// The report to the host is made by another member, one for each registration in the own etcd.
type Host struct {
	Config
	// local is the member in the own etcd, and own reads and writes there.
	local   *member.Member
	own     client.WithWatch
	collect *collect.Collector
	// Reports are the resources that the host is told of. They are set before Start.
	Reports []member.Resource
	// Look is hostLook but in tests.
	Look time.Duration

	// stopped ends with Close: the host's members then make and renew nothing more.
	stopped context.Context
	stop    context.CancelFunc
	members sync.WaitGroup
	running sync.WaitGroup

	mu    sync.RWMutex
	now   tenure
	store string // see storeUID

	// former are this registration's members that ended while the host served nothing to report to. Their
	// Leases say that a server writes that has to report, which the host waits for until they are
	// taken away. They belong to Step, and to Depart after it.
	former []*member.Member
	// said, what the log says of the host, belongs to Step, swept to Sweep.
	said  string
	swept sweptHost
}

// tenure is the host's knowledge of one registration in the own etcd.
type tenure struct {
	id agree.ServerID
	// member makes the reports to the host; nil before, and where nothing can be reported to.
	member *member.Member
	end    context.CancelFunc
	// alone is why there is nobody in the host to report to, empty if there is or if it is not known.
	alone string
	// again is when the host is to be looked at again, and err why it is not known yet.
	again time.Time
	err   error
}

var _ fence.Permits = (*Host)(nil)

var (
	errHostUnknown  = errors.New("nothing is known of the host cluster yet")
	errNotAnnounced = errors.New("this server's identity Lease in the host cluster does not say yet that all is reported")
)

// New makes a server's part in its host.
func New(config Config) *Host {
	h := &Host{Config: config, Look: hostLook}
	h.stopped, h.stop = context.WithCancel(context.Background())
	if h.Clock == nil {
		h.Clock = clock.RealClock{}
	}
	if h.Drive == nil {
		h.Drive = func(ctx context.Context, m *member.Member) {
			h.members.Go(func() { workers.Loop(ctx, "host-member", m.Run) })
		}
	}
	h.collect = collect.New(collect.Config{Client: h.Objects, Workers: h.Workers, Clock: h.Clock, Logger: h.Logger.WithName("host")})
	return h
}

// Follow names the member in the own etcd, and a client that reads and writes there. It is called before all
// that follows.
func (h *Host) Follow(local *member.Member, own client.WithWatch) { h.local, h.own = local, own }

// Revision implements fence.Permits: the own report is the permission, once the host has its
// report too. The own one is looked at first. If its registration has ended since, and another
// one is reported to the host, then the revision is older than that one's report, and so than
// the StorageVersion: the write is refused by it.
func (h *Host) Revision(ctx context.Context, gr schema.GroupResource, enc agree.Encoding) (int64, error) {
	revision, err := h.local.Revision(ctx, gr, enc)
	if err != nil {
		return 0, err
	}
	if err := h.current().reported(ctx, h.local.ID(), gr, enc); err != nil {
		return 0, member.Unavailable(gr, err)
	}
	return revision, nil
}

// Moved implements fence.Permits.
func (h *Host) Moved(ctx context.Context, gr schema.GroupResource, enc agree.Encoding, at, mod int64, reports []agree.Report) error {
	return h.local.Moved(ctx, gr, enc, at, mod, reports)
}

// Admit is the host's part of the gate: a write passes if the host has the report. Before it the fence would
// refuse the write, too, but after admission, which answers 403 as long as it has not heard from the host itself.
func (h *Host) Admit(ctx context.Context, gr schema.GroupResource) error {
	i := slices.IndexFunc(h.Reports, func(r member.Resource) bool { return r.GroupResource == gr })
	if i < 0 {
		return nil // the host is told nothing of it
	}
	if err := h.current().reported(ctx, h.local.ID(), gr, h.Reports[i].Encoding); err != nil {
		return member.Unavailable(gr, err)
	}
	return nil
}

func (h *Host) current() tenure {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.now
}

// reported says why the host does not know yet that this registration writes a resource in an
// encoding. The key that it is encrypted with is the own cluster's affair.
func (t tenure) reported(ctx context.Context, id agree.ServerID, gr schema.GroupResource, enc agree.Encoding) error {
	switch {
	case t.id == "" || t.id != id:
		return errHostUnknown
	case t.alone != "":
		return nil
	case t.member == nil:
		return t.err
	}
	if _, err := t.member.Revision(ctx, gr, enc.Plain()); err != nil {
		return fmt.Errorf("not reported to the host cluster: %w", err)
	}
	if !t.member.Announced() {
		return fmt.Errorf("not reported to the host cluster: %w", t.unannounced())
	}
	return nil
}

// unannounced says why the Lease in the host does not say that all is reported.
func (t tenure) unannounced() error {
	if err := t.member.LastRenewal(); err != nil {
		return fmt.Errorf("%w: %w", errNotAnnounced, err)
	}
	return errNotAnnounced // it is about to
}

// Ready says why not everything is reported to the host; nil if it is, or cannot be.
func (h *Host) Ready() error {
	t := h.current()
	switch {
	case t.id == "" || t.id != h.local.ID():
		return errHostUnknown
	case t.alone != "":
		return nil
	case t.member == nil:
		return fmt.Errorf("the host cluster: %w", t.err)
	}
	if err := t.member.Ready(); err != nil {
		return fmt.Errorf("the host cluster: %w", err)
	}
	if !t.member.Announced() {
		return t.unannounced()
	}
	return nil
}

// Start has the host follow the own registration until ctx ends.
func (h *Host) Start(ctx context.Context) {
	h.running.Go(func() {
		workers.Loop(ctx, "host", func(ctx context.Context) {
			wait.UntilWithContext(ctx, func(ctx context.Context) {
				ctx, cancel := context.WithTimeout(ctx, hostTimeout)
				defer cancel()
				h.Step(ctx)
			}, hostPoll)
		})
	})
}

// Step makes the reports to the host once the own ones stand, for each registration anew. As
// long as something is not reported the host is looked at: it may not serve StorageVersions, or
// not any more.
func (h *Host) Step(ctx context.Context) {
	t := h.current()
	if id := h.local.ID(); id != t.id {
		if t.member != nil {
			t.end() // the server that buried the registration here buries the host's, too
		}
		t, h.former = tenure{id: id, err: errHostUnknown}, nil
		h.set(t)
	}
	if len(h.former) > 0 && t.member != nil && t.member.Announced() && !h.Clock.Now().Before(t.again) {
		if err := h.buryFormer(ctx, h.collect.Bury); err != nil {
			t.again = h.Clock.Now().Add(hostRetry)
			h.set(t)
			h.Logger.V(1).Info("An earlier identity Lease in the host cluster will be taken back again", "reason", err.Error())
		}
	}
	if t.id == "" || h.Clock.Now().Before(t.again) || h.local.Ready() != nil || t.member != nil && t.member.Ready() == nil {
		return
	}
	found := h.look(ctx)
	h.say(found)
	switch t = t.after(found); {
	case found.err != nil:
		t.again = h.Clock.Now().Add(hostRetry)
	case found.alone != "":
		if t.member != nil { // its reports are lost, and there is nobody any more to report to
			t.end()
			h.former = append(h.former, t.member)
			t.member = nil
		}
		t.again = h.Clock.Now().Add(h.Look)
	case t.member != nil: // it is reporting
		t.again = h.Clock.Now().Add(h.Look)
	default:
		var err error
		if t, err = h.begin(ctx, t); err != nil {
			t.again, t.err = h.Clock.Now().Add(hostRetry), err
		}
	}
	h.set(t)
}

// finding is what a look at the host has found.
type finding struct {
	// served: it serves StorageVersions.
	served bool
	// alone is why there is nobody to report to, empty if there is.
	alone string
	// err is why that is not known.
	err error
}

// after returns what is known of the host after a look at it. What was known before stays where the host has not
// answered. But one that served no StorageVersions and does now may well wait for a report.
func (t tenure) after(found finding) tenure {
	if t.err = found.err; found.err == nil {
		t.alone = found.alone
	} else if found.served && t.alone == servesNone {
		t.alone = ""
	}
	return t
}

func (h *Host) set(t tenure) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = t
}

// say logs what was found where it is not what was found before.
func (h *Host) say(found finding) {
	said := found.alone
	if found.err != nil {
		said = found.err.Error()
	}
	if said != h.said {
		switch {
		case found.err != nil:
			h.Logger.Info("It is not known whether this server has to report to the host cluster", "reason", said, "lookedAgainEvery", hostRetry)
		case found.alone != "":
			h.Logger.Info("The host cluster "+said+": this server reports nothing to it. Its own replicas agree among themselves, and nobody migrates what they have stored", "lookedAgainEvery", h.Look)
		}
	}
	h.said = said
}

const (
	servesNone   = "serves no StorageVersions"
	servesOthers = "serves StorageVersions that are not Concord's, as kube-apiserver does with its own feature gate StorageVersionAPI"
)

// look asks whether there is somebody in the host to report to.
func (h *Host) look(ctx context.Context) finding {
	served, err := h.Serves(ctx)
	switch {
	case err != nil:
		return finding{err: err}
	case !served:
		return finding{alone: servesNone}
	}
	ours, err := h.ours(ctx)
	switch {
	case err != nil:
		return finding{served: true, err: err}
	case !ours:
		return finding{served: true, alone: servesOthers}
	}
	return finding{served: true}
}

// ours asks whose the StorageVersions that the host serves are. That is told by one that is not stored (a dry
// run): only Concord's have an epoch. Those that are stored may tell of the time before the host changed.
// Kube-apiserver refuses our reports as long as there is one of Unknown among them, and does not
// migrate by any. Its validation takes no prefix of a name that ends with a dash.
func (h *Host) ours(ctx context.Context) (bool, error) {
	sv := &v1alpha1.StorageVersion{ObjectMeta: metav1.ObjectMeta{GenerateName: "concord.probe"}}
	if err := h.Objects.Create(ctx, sv, client.DryRunAll); err != nil {
		return false, fmt.Errorf("whether its StorageVersions are Concord's: %w", err)
	}
	_, ours := sv.Annotations[storageversion.EpochAnnotation]
	return ours, nil
}

// begin makes the reports to the host for a registration.
func (h *Host) begin(ctx context.Context, t tenure) (tenure, error) {
	store, err := h.storeUID(ctx)
	if err != nil {
		return t, err
	}
	m, err := member.New(member.Config{
		Client: h.Objects, Bury: h.collect.Bury,
		Versions: h.Versions,
		Labels:   map[string]string{storageversion.AggregatedLabel: store},
		Annotations: map[string]string{
			storageversion.LocalIdentityAnnotation:       string(t.id),
			storageversion.AggregatedGroupsAnnotation:    groups(h.Reports),
			storageversion.AggregatedResourcesAnnotation: storageversion.AggregatedResources(resources(h.Reports)),
		},
		LeaseDuration: hostLeaseDuration,
		// It bounds the attempts, too: one that the host answers late has left a Lease that lasts.
		RenewInterval: max(h.RenewInterval, hostTimeout),
		SameID:        true,
		WaitLimit:     -1,
		Clock:         h.Clock,
		Random:        h.Random,
		Workers:       h.Workers,
		Logger:        h.Logger.WithName("host").V(1),
	})
	if err != nil {
		return t, err
	}
	if err := m.SetBuiltins(h.Reports); err != nil {
		return t, err
	}
	running, end := context.WithCancel(h.stopped)
	h.Drive(running, m)
	h.Logger.Info("Reporting to the host cluster", "server", t.id)
	t.member, t.end = m, end
	return t, nil
}

// groups names the API groups of resources, for people.
func groups(reports []member.Resource) string {
	var named []string
	for _, r := range reports {
		named = append(named, r.GroupResource.Group)
	}
	slices.Sort(named)
	return strings.Join(slices.Compact(named), ",")
}

// resources names what is reported.
func resources(reports []member.Resource) []schema.GroupResource {
	named := make([]schema.GroupResource, 0, len(reports))
	for _, r := range reports {
		named = append(named, r.GroupResource)
	}
	return named
}

// buryFormer takes the Leases of this registration's former members back. It is called when the Lease of the
// present one says that all is reported: then nothing that this server may write is left to the former ones.
func (h *Host) buryFormer(ctx context.Context, bury func(context.Context, agree.ServerID) error) error {
	for len(h.former) > 0 {
		// One that was never registered has no Lease that says anything.
		if id := h.former[0].ID(); id != "" {
			if err := bury(ctx, id); err != nil {
				return err
			}
		}
		h.former = h.former[1:]
	}
	return nil
}

// deleteLease is all that may be taken away in a host whose StorageVersions may not be Concord's. Where they
// are, the collector there does the rest.
func (h *Host) deleteLease(ctx context.Context, id agree.ServerID) error {
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: storageversion.IdentityNamespace, Name: string(id)}}
	return client.IgnoreNotFound(h.Objects.Delete(ctx, lease))
}

// Depart takes the own reports back, and then those to the host: that may forget a server only when it cannot write
// any more. It is called when what Start began is ending. The error is about the own ones.
func (h *Host) Depart(ctx context.Context) error {
	if err := h.local.Depart(ctx); err != nil {
		return err
	}
	h.forget(ctx)
	return nil
}

// forget takes the reports to the host back.
func (h *Host) forget(ctx context.Context) {
	h.running.Wait()
	var err error
	bury := h.deleteLease
	if t := h.current(); t.member != nil {
		err, bury = t.member.Depart(ctx), h.collect.Bury
	}
	if err = errors.Join(err, h.buryFormer(ctx, bury)); err != nil {
		h.Logger.Info("Leaving without taking the reports to the host cluster back: another replica does so, or the next one that starts", "err", err)
	}
}

// Close ends the host's members that are left.
func (h *Host) Close() {
	h.stop()
	h.members.Wait()
}
