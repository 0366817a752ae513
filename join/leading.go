package join

import (
	"context"
	"strings"
	"sync"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/discovery"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/controller/mirror"
	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/join/elect"
	"github.com/concord-dev/concord/join/roles"
	"github.com/concord-dev/concord/member/hosting"
	"github.com/concord-dev/concord/workers"
)

// aggregatedLock elects among the replicas of an aggregated server, in their own etcd.
const aggregatedLock = "concord-aggregated"

// leading is the work of the elected server.
type leading struct {
	config    Config
	clients   *clients
	bootstrap *bootstrap
	// identity is this process's in elections: where it serves, and what makes it unique.
	identity string
	// registered returns when this server has an identity Lease.
	registered func(context.Context) error

	// elector is the client that runs for election.
	elector  coordinationclient.LeasesGetter
	election *elect.Election
	// mirror is nil where storagemigration.k8s.io is not served.
	mirror  *elect.Election
	trigger *trigger.Controller
	skew    *skew.Controller
	tally   *tally.Controller
}

// newLeading makes the controllers of a cluster's own server. An aggregated one leads as host does, which is nil in others.
func newLeading(config Config, clients *clients, b *bootstrap, host *hosting.Host, registered func(context.Context) error, c *counting) (*leading, error) {
	l := &leading{config: config, clients: clients, bootstrap: b, identity: config.Address + "_" + rand.String(8), registered: registered}
	elector, err := clients.as(roles.Election)
	if err != nil {
		return nil, err
	}
	if l.elector, err = coordinationclient.NewForConfig(elector.config); err != nil {
		return nil, err
	}
	l.election = l.newElection(roles.ControllersLock, l.lead)
	if config.Silent {
		l.election.Lock = roles.SilentLock
	}
	if host != nil {
		l.election.Lock, l.election.Lead = aggregatedLock, host.Lead
		return l, nil
	}
	if l.skew, err = l.newSkew(); err != nil || config.Silent {
		return l, err
	}
	if l.trigger, err = l.newTrigger(c); err != nil {
		return nil, err
	}
	l.tally, err = l.newTally()
	return l, err
}

func (l *leading) newTally() (*tally.Controller, error) {
	counts, err := tallyMetrics()
	if err != nil {
		return nil, err
	}
	own, err := l.clients.as(roles.Tally)
	if err != nil {
		return nil, err
	}
	return tally.New(tally.Config{Kept: l.trigger.Kept, Client: own.objects, Metrics: counts, Logger: klog.Background().WithName("tally")}), nil
}

func (l *leading) newTrigger(c *counting) (*trigger.Controller, error) {
	own, err := l.clients.as(roles.Trigger)
	if err != nil {
		return nil, err
	}
	asked, err := discovery.NewDiscoveryClientForConfig(own.config)
	if err != nil {
		return nil, err
	}
	counts, err := migrationMetrics()
	if err != nil {
		return nil, err
	}
	return trigger.New(trigger.Config{
		Client:   own.objects,
		Kinds:    newKinds(l.config.Kinds, asked),
		Census:   c.countLeft,
		Instance: l.identity,
		Settle:   l.config.MigrationSettle,
		Ended:    counts.Ended,
		Logger:   klog.Background().WithName("trigger"),
	}), nil
}

func (l *leading) newElection(lock string, lead func(context.Context)) *elect.Election {
	return &elect.Election{Client: l.elector, Lock: lock, Identity: l.identity, Duration: l.config.ControllerLeaseDuration, Lead: lead}
}

// newMirror makes the controller of storagemigration.k8s.io, where that is served.
func (l *leading) newMirror(server *genericapiserver.GenericAPIServer, on func(schema.GroupVersionResource) bool) error {
	served, ok := servedMigrations(server.ListedPaths(), on)
	if !ok || l.config.Silent || l.config.Host != nil {
		return nil
	}
	own, err := l.clients.as(roles.Mirror)
	if err != nil {
		return err
	}
	objects, err := connect.NewClientWith(own.config, served)
	if err != nil {
		return err
	}
	mirrored := mirror.New(mirror.Config{Client: objects, Served: served, Logger: klog.Background().WithName("mirror")})
	l.mirror = l.newElection(roles.MirrorLock, l.bootstrap.acting(roles.Mirror, mirrored.Run))
	return nil
}

// servedMigrations is the best version in which a server with these paths serves the
// StorageVersionMigrations of storagemigration.k8s.io.
func servedMigrations(paths []string, on func(schema.GroupVersionResource) bool) (best schema.GroupVersion, ok bool) {
	for _, path := range paths {
		v, found := strings.CutPrefix(path, "/apis/"+storagemigrationv1.GroupName+"/")
		gv := schema.GroupVersion{Group: storagemigrationv1.GroupName, Version: v}
		if !found || !on(gv.WithResource(migrationv1alpha1.StorageVersionMigrations.Resource)) {
			continue
		}
		if !ok || version.CompareKubeAwareVersionStrings(v, best.Version) > 0 {
			best, ok = gv, true
		}
	}
	return best, ok
}

// lead runs the elected controllers until ctx ends.
func (l *leading) lead(ctx context.Context) {
	var controllers sync.WaitGroup
	run := func(worker string, f func(context.Context)) {
		controllers.Go(func() { workers.Loop(ctx, worker, f) })
	}
	if !l.config.Silent {
		run("trigger", l.bootstrap.acting(roles.Trigger, l.trigger.Run))
		run("tally", l.bootstrap.acting(roles.Tally, l.tally.Run))
	}
	run("skew", l.bootstrap.acting(roles.Skew, func(ctx context.Context) {
		if l.registered(ctx) == nil {
			l.skew.Run(ctx)
		}
	}))
	controllers.Wait()
}

// newSkew makes the controller that compares the servers' versions.
func (l *leading) newSkew() (*skew.Controller, error) {
	metrics, err := skewMetrics()
	if err != nil {
		return nil, err
	}
	own, err := l.clients.as(roles.Skew)
	if err != nil {
		return nil, err
	}
	return skew.New(skew.Config{Client: own.objects, Instance: l.identity, Metrics: metrics, Logger: klog.Background().WithName("skew")}), nil
}
