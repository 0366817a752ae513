package member

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/workers"
)

func byResource(items []v1alpha1.StorageVersion) map[schema.GroupResource]*v1alpha1.StorageVersion {
	read := make(map[schema.GroupResource]*v1alpha1.StorageVersion, len(items))
	for i := range items {
		if gr, err := storageversion.GroupResource(items[i].Name); err == nil {
			read[gr] = &items[i]
		}
	}
	return read
}

// ObserveStorageVersion takes in an event of the StorageVersions' watch, so that a lost
// report or a moved revision is noticed before a client does.
func (m *Member) ObserveStorageVersion(sv *v1alpha1.StorageVersion, deleted bool) {
	gr, err := storageversion.GroupResource(sv.Name)
	if err != nil {
		return
	}
	revision, err := revisionOf(sv)
	if err != nil {
		return
	}
	reports := storageversion.Reports(sv)
	if deleted {
		reports = nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if deleted {
		m.agreement.Forget(sv.UID)
	} else if d, agreed := m.agreement.Observe(sv, m.cfg.Clock.Now()); agreed {
		m.cfg.Metrics.ObserveAgreement(d)
	}
	if s := m.resources[gr]; s != nil {
		if s.seen = sv; deleted {
			s.seen = nil
		}
		m.learn(s, revision, reports)
	}
}

// ObserveStorageVersions takes in a complete list as of an etcd revision, 0 if it is not
// known.
func (m *Member) ObserveStorageVersions(items []v1alpha1.StorageVersion, revision int64) {
	read := byResource(items)
	m.mu.Lock()
	m.agreement.Keep(items)
	for gr, s := range m.resources {
		if read[gr] == nil {
			m.learn(s, revision, nil)
		}
	}
	m.mu.Unlock()
	for i := range items {
		m.ObserveStorageVersion(&items[i], false)
	}
}

// ObserveLeases takes in a complete list of the identity Leases as of an etcd revision,
// 0 if it is not known.
func (m *Member) ObserveLeases(leases []coordinationv1.Lease, revision int64) {
	m.mu.RLock()
	current := m.registration
	m.mu.RUnlock()
	if current.id == "" {
		return
	}
	for i := range leases {
		if leases[i].Name == string(current.id) {
			m.ObserveLease(&leases[i], false)
			return
		}
	}
	created, err := strconv.ParseInt(current.lease.ResourceVersion, 10, 64)
	if err == nil && revision > created {
		m.unregister(current.id)
	}
}

// Run registers, reports, renews and watches until ctx ends or Depart is called.
func (m *Member) Run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m.mu.Lock()
	m.stop = cancel
	departed := m.departed
	m.mu.Unlock()
	if departed {
		return
	}
	m.limits.Store(true)
	var wg sync.WaitGroup
	loops := []func(context.Context){m.keepRegistered, m.watchLeases}
	if !m.silent() {
		loops = append(loops, m.keepReported, m.watchStorageVersions)
	}
	for _, loop := range loops {
		wg.Go(func() { workers.Loop(ctx, "member", loop) })
	}
	wg.Wait()
}

// sayAgain is how often it is logged that the identity Lease is still not renewed for the
// same reason.
const sayAgain = time.Minute

// keepRegistered registers and renews.
func (m *Member) keepRegistered(ctx context.Context) {
	var said string
	var at time.Time
	for failures := 0; ctx.Err() == nil; {
		wait := m.cfg.RenewInterval
		if err := m.renewOrRegister(ctx); err != nil && ctx.Err() == nil {
			if away := m.storageError(); away != nil {
				err = away // which requests meet in many ways
			}
			if now := m.cfg.Clock.Now(); failures == 0 || err.Error() != said || now.Sub(at) >= sayAgain {
				m.cfg.Logger.Error(err, "Identity Lease was not renewed")
				said, at = err.Error(), now
			}
			wait = min(wait, m.backoff(failures))
			failures++
		} else {
			failures = 0
		}
		m.sayUnreported()
		m.pause(ctx, wait, m.wakeLease)
	}
}

func (m *Member) renewOrRegister(ctx context.Context) error {
	// An answer that takes longer than the interval is worth a new attempt.
	ctx, cancel := context.WithTimeout(ctx, m.cfg.RenewInterval)
	defer cancel()
	if m.ID() != "" {
		if err := m.Renew(ctx); err != nil {
			return err
		}
	} else if err := m.Register(ctx); err != nil {
		return err
	}
	return m.erase(ctx)
}

// keepReported reports the resources that are due. Resources that become due in the meantime, for example by a change
// of a CRD, do not wait for attempts under way.
func (m *Member) keepReported(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for ctx.Err() == nil {
		if claims := m.claimDue(); len(claims) > 0 {
			wg.Go(func() {
				err := workers.Do(ctx, "member-reports", func() error { return m.process(ctx, claims) })
				if errors.Is(err, workers.ErrPanicked) {
					m.releaseHeld(claims, err)
				}
				if err != nil && ctx.Err() == nil {
					m.cfg.Logger.V(1).Info("Reports will be repeated", "reason", err.Error())
				}
			})
			continue
		}
		m.pause(ctx, m.untilDue(), m.wakeReports)
	}
}

func (m *Member) watchStorageVersions(ctx context.Context) {
	m.follow(ctx, "StorageVersions", &v1alpha1.StorageVersion{}, listwatch.Of(m.cfg.Client, &v1alpha1.StorageVersionList{}),
		listwatch.Sink[v1alpha1.StorageVersion]{Event: m.ObserveStorageVersion, Listed: m.ObserveStorageVersions})
}

func (m *Member) watchLeases(ctx context.Context) {
	identities := listwatch.Of(m.cfg.Client, &coordinationv1.LeaseList{}, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities})
	m.follow(ctx, "identity Leases", &coordinationv1.Lease{}, identities,
		listwatch.Sink[coordinationv1.Lease]{Event: m.ObserveLease, Listed: m.ObserveLeases})
}

func (m *Member) follow(ctx context.Context, name string, object runtime.Object, from cache.ListerWatcher, to cache.ReflectorStore) {
	cache.NewReflectorWithOptions(from, object, to, cache.ReflectorOptions{
		Name:            "member",
		TypeDescription: name,
		Logger:          &m.cfg.Logger,
		Clock:           m.cfg.Clock,
		Backoff:         &apiwait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 6, Cap: 5 * time.Second},
	}).RunWithContext(ctx)
}
