package join

import (
	"context"
	"strings"
	"sync"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
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
	"github.com/concord-dev/concord/workers"
)

// aggregatedLock elects among the replicas of an aggregated server, in their own etcd.
const aggregatedLock = "concord-aggregated"

// leading is the work of the elected server.
type leading struct {
	// elector is the client that runs for election.
	elector  coordinationclient.LeasesGetter
	election *elect.Election
	// mirror is nil where storagemigration.k8s.io is not served.
	mirror  *elect.Election
	trigger *trigger.Controller
	skew    *skew.Controller
	tally   *tally.Controller
}

func (j *Join) newLeading() error {
	l := &leading{}
	j.leading = l
	elector, err := j.clients.as(roles.Election)
	if err != nil {
		return err
	}
	if l.elector, err = coordinationclient.NewForConfig(elector.config); err != nil {
		return err
	}
	l.election = j.newElection(roles.ControllersLock, j.lead)
	if j.config.Silent {
		l.election.Lock = roles.SilentLock
	}
	if j.hosting != nil {
		l.election.Lock, l.election.Lead = aggregatedLock, j.hosting.Lead
		return nil
	}
	if l.skew, err = j.newSkew(); err != nil || j.config.Silent {
		return err
	}
	if l.trigger, err = j.newTrigger(); err != nil {
		return err
	}
	l.tally, err = j.newTally()
	return err
}

func (j *Join) newTally() (*tally.Controller, error) {
	counts, err := tallyMetrics()
	if err != nil {
		return nil, err
	}
	own, err := j.clients.as(roles.Tally)
	if err != nil {
		return nil, err
	}
	return tally.New(tally.Config{Client: j.leading.trigger.Reader(own.objects), Metrics: counts, Logger: klog.Background().WithName("tally")}), nil
}

func (j *Join) newTrigger() (*trigger.Controller, error) {
	own, err := j.clients.as(roles.Trigger)
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
		Kinds:    newKinds(j.config.Kinds, asked),
		Census:   j.counting.countLeft,
		Instance: j.identity,
		Settle:   j.config.MigrationSettle,
		Ended:    counts.Ended,
		Logger:   klog.Background().WithName("trigger"),
	}), nil
}

func (j *Join) newElection(lock string, lead func(context.Context)) *elect.Election {
	return &elect.Election{Client: j.leading.elector, Lock: lock, Identity: j.identity, Duration: j.config.ControllerLeaseDuration, Lead: lead}
}

// newMirror makes the controller of storagemigration.k8s.io, where that is served.
func (j *Join) newMirror(server *genericapiserver.GenericAPIServer) error {
	served, ok := servedMigrations(server.ListedPaths(), j.storing.switchedOn)
	if !ok || j.config.Silent || j.hosting != nil {
		return nil
	}
	own, err := j.clients.as(roles.Mirror)
	if err != nil {
		return err
	}
	objects, err := connect.NewClientWith(own.config, served)
	if err != nil {
		return err
	}
	mirrored := mirror.New(mirror.Config{Client: objects, Served: served, Logger: klog.Background().WithName("mirror")})
	j.leading.mirror = j.newElection(roles.MirrorLock, j.bootstrap.acting(roles.Mirror, mirrored.Run))
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
func (j *Join) lead(ctx context.Context) {
	var controllers sync.WaitGroup
	run := func(worker string, f func(context.Context)) {
		controllers.Go(func() { workers.Loop(ctx, worker, f) })
	}
	if !j.config.Silent {
		run("trigger", j.bootstrap.acting(roles.Trigger, j.leading.trigger.Run))
		run("tally", j.bootstrap.acting(roles.Tally, j.leading.tally.Run))
	}
	run("skew", j.bootstrap.acting(roles.Skew, func(ctx context.Context) {
		if j.reporting.awaitRegistered(ctx) == nil {
			j.leading.skew.Run(ctx)
		}
	}))
	controllers.Wait()
}

// newSkew makes the controller that compares the servers' versions.
func (j *Join) newSkew() (*skew.Controller, error) {
	metrics, err := skewMetrics()
	if err != nil {
		return nil, err
	}
	own, err := j.clients.as(roles.Skew)
	if err != nil {
		return nil, err
	}
	return skew.New(skew.Config{Client: own.objects, Instance: j.identity, Metrics: metrics, Logger: klog.Background().WithName("skew")}), nil
}
