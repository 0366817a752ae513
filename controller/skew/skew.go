// Package skew shows administrators how far the versions of a cluster's servers are apart (KEP-4330, "Risk: Unintended
// and out-of-allowance version skew"). It compares the versions on the servers' identity Leases and writes the result
// to the ClusterVersion "cluster", to events and to gauges. Package compat decides what is allowed. The
// Controller runs on the elected server; two servers that both believe to be elected do no harm, since every write is
// conditional on what was read.
package skew

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/compat"
	"github.com/concord-dev/concord/workers"
)

const (
	// interval is the time between two looks.
	interval = 2 * time.Second
	// resync is how often the ClusterVersion is read although no server seems to have changed.
	resync = time.Minute
	// stepTimeout bounds one Step of Run, in real time.
	stepTimeout = 30 * time.Second
)

// Config configures a Controller.
type Config struct {
	// Client reaches the API uncached. Its scheme knows Leases, ClusterVersions and Events.
	Client client.Client
	// Instance names this process in events.
	Instance string
	// Metrics may be nil.
	Metrics *Metrics
	// Clock is the real one by default.
	Clock clock.Clock
	// Logger is silent by default.
	Logger logr.Logger
}

// Controller compares servers. Its methods belong to one goroutine.
type Controller struct {
	cfg Config
	// told holds the conditions for which events were last written. looked says that there is something to compare
	// with; an empty told is that of a new ClusterVersion.
	told   []metav1.Condition
	looked bool

	// The fields below save reading the ClusterVersion when no server changed.
	written []compat.ServerVersions // the servers that it was last known to show
	at      time.Time               // when; zero: never
}

// New returns a Controller; it does nothing by itself.
func New(cfg Config) *Controller {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	return &Controller{cfg: cfg}
}

// Run steps at once and at every interval until ctx ends. Call it while this server
// leads, once at a time. The gauges are gone afterwards: they are the next leader's.
func (c *Controller) Run(ctx context.Context) {
	defer c.cfg.Metrics.reset()
	c.looked, c.at = false, time.Time{} // somebody else may have led since
	timer := c.cfg.Clock.NewTimer(interval)
	defer timer.Stop()
	for {
		step, cancel := context.WithTimeout(ctx, stepTimeout)
		if err := workers.Do(step, "skew", func() error { return c.Step(step) }); err != nil && ctx.Err() == nil {
			c.cfg.Logger.V(1).Info("The servers' versions will be compared again", "reason", err.Error())
		}
		cancel()
		select {
		case <-ctx.Done():
			return
		case <-timer.C():
			timer.Reset(interval)
		}
	}
}

// Step reads the identity Leases once, updates the ClusterVersion and the gauges, and writes events about the changes.
// After an error, conflicts included, it has to be called again; what was done until then stands.
func (c *Controller) Step(ctx context.Context) error {
	servers, err := c.servers(ctx)
	if err != nil {
		return err
	}
	skew := compat.JudgeServers(servers)
	c.cfg.Metrics.observe(servers, skew)
	if !c.due(servers) {
		return nil
	}
	c.at = time.Time{}
	cluster, err := c.write(ctx, servers, skew)
	if err != nil {
		return fmt.Errorf("ClusterVersion %s: %w", versionv1alpha1.ClusterVersionName, err)
	}
	if err := c.tell(ctx, cluster); err != nil {
		return err
	}
	c.written, c.at = servers, c.cfg.Clock.Now()
	return nil
}

// servers reads the versions of the control plane's servers, sorted by ID.
func (c *Controller) servers(ctx context.Context) ([]compat.ServerVersions, error) {
	var leases coordinationv1.LeaseList
	if err := c.cfg.Client.List(ctx, &leases, client.InNamespace(storageversion.IdentityNamespace),
		client.MatchingLabelsSelector{Selector: storageversion.Identities}); err != nil {
		return nil, fmt.Errorf("list identity Leases: %w", err)
	}
	leases.Items = storageversion.ControlPlane(leases.Items)
	servers := make([]compat.ServerVersions, 0, len(leases.Items))
	for i := range leases.Items {
		lease := &leases.Items[i]
		servers = append(servers, compat.ParseServerVersions(lease.Name,
			lease.Annotations[storageversion.BinaryVersionAnnotation],
			lease.Annotations[storageversion.EmulationVersionAnnotation],
			lease.Annotations[storageversion.MinCompatibilityVersionAnnotation]))
	}
	slices.SortFunc(servers, func(a, b compat.ServerVersions) int { return strings.Compare(a.ID, b.ID) })
	return servers, nil
}

// due says whether the ClusterVersion may have to be written.
func (c *Controller) due(servers []compat.ServerVersions) bool {
	return c.at.IsZero() || c.cfg.Clock.Since(c.at) >= resync || !slices.EqualFunc(servers, c.written, sameVersions)
}

func sameVersions(a, b compat.ServerVersions) bool { return statusOf(a) == statusOf(b) }

// write makes the ClusterVersion show the servers and returns it.
func (c *Controller) write(ctx context.Context, servers []compat.ServerVersions, skew compat.ServerSkew) (*versionv1alpha1.ClusterVersion, error) {
	cluster := &versionv1alpha1.ClusterVersion{ObjectMeta: metav1.ObjectMeta{Name: versionv1alpha1.ClusterVersionName}}
	err := c.cfg.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster)
	if apierrors.IsNotFound(err) {
		err = c.cfg.Client.Create(ctx, cluster)
	}
	if err != nil {
		return nil, err
	}
	before := cluster.DeepCopy()
	if !c.looked {
		c.told, c.looked = before.Status.Conditions, true
	}
	show(&cluster.Status, servers, skew, c.cfg.Clock.Now())
	if equality.Semantic.DeepEqual(before.Status, cluster.Status) {
		return cluster, nil
	}
	return cluster, c.cfg.Client.Status().Update(ctx, cluster)
}

// tell writes events about the changes since the last ones. Their names depend only on the ClusterVersion, so that no
// event is written twice.
func (c *Controller) tell(ctx context.Context, cluster *versionv1alpha1.ClusterVersion) error {
	for _, n := range transitions(c.told, cluster.Status.Conditions) {
		err := c.cfg.Client.Create(ctx, c.event(cluster, n))
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write an event about the servers' versions: %w", err)
		}
		c.cfg.Logger.Info("Servers' versions changed", "what", n.reason, "now", n.note)
	}
	c.told = slices.Clone(cluster.Status.Conditions)
	return nil
}

// event is about the ClusterVersion, which is cluster-scoped: such events live in the
// default namespace.
func (c *Controller) event(cluster *versionv1alpha1.ClusterVersion, n news) *corev1.Event {
	now := metav1.NewTime(c.cfg.Clock.Now())
	return &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault,
			Name:      fmt.Sprintf("%s.%x.%s", cluster.Name, n.since.Unix(), strings.ToLower(n.reason)),
		},
		InvolvedObject: corev1.ObjectReference{
			APIVersion:      versionv1alpha1.SchemeGroupVersion.String(),
			Kind:            "ClusterVersion",
			Name:            cluster.Name,
			UID:             cluster.UID,
			ResourceVersion: cluster.ResourceVersion,
		},
		Type:                n.kind,
		Reason:              n.reason,
		Message:             n.note,
		Source:              corev1.EventSource{Component: "concord", Host: c.cfg.Instance},
		FirstTimestamp:      now,
		LastTimestamp:       now,
		Count:               1,
		ReportingController: "concord.dev/skew",
		ReportingInstance:   c.cfg.Instance,
	}
}
