package join

import (
	"context"
	"strings"
	"sync"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/controller/mirror"
	"github.com/concord-dev/concord/controller/skew"
	"github.com/concord-dev/concord/controller/tally"
	"github.com/concord-dev/concord/controller/trigger"
	"github.com/concord-dev/concord/workers"
)

const (
	// controllersLock is the Lease of the elected controllers.
	controllersLock = "concord-controllers"
	// silentLock elects among the servers that run no controllers of the protocol. They
	// must not keep those who do from it, so that these run beside theirs: versions bear
	// being looked after twice.
	silentLock = controllersLock + "-without-storage-versions"
	// mirrorLock is the Lease of the elected server that mirrors the migrations of
	// storagemigration.k8s.io. Only servers that serve these run for it.
	mirrorLock = controllersLock + "-storagemigration"
	// aggregatedLock elects among the replicas of an aggregated server, in their own etcd.
	aggregatedLock = "concord-aggregated"
)

// leading is what the elected server does.
type leading struct {
	config   Config
	clients  *clients
	election *election
	// mirror is nil where storagemigration.k8s.io is not served.
	mirror  *election
	trigger *trigger.Controller
	skew    *skew.Controller
	tally   *tally.Controller
}

func (j *Join) newLeading() error {
	l := &leading{config: j.config, clients: j.clients.controllers}
	j.leading = l
	l.election = l.newElection(controllersLock, j.identity, j.lead)
	if j.config.Silent {
		l.election.lock = silentLock
	}
	if j.hosting != nil {
		l.election.lock, l.election.lead = aggregatedLock, j.hosting.lead
		return nil
	}
	var err error
	if l.skew, err = newSkew(l.clients.objects, j.identity); err != nil || j.config.Silent {
		return err
	}
	counts, err := tallyMetrics()
	if err != nil {
		return err
	}
	if l.tally, err = tally.New(tally.Config{Client: l.clients.objects, Metrics: counts, Logger: klog.Background().WithName("tally")}); err != nil {
		return err
	}
	l.trigger, err = trigger.New(trigger.Config{
		Client:   l.clients.objects,
		Kinds:    newKinds(j.config.Kinds, l.clients.kube.Discovery()),
		Census:   j.countLeft,
		Instance: j.identity,
		Ended:    j.migrating.counts.Ended,
		Logger:   klog.Background().WithName("trigger"),
	})
	return err
}

func (l *leading) newElection(lock, identity string, lead func(context.Context)) *election {
	return &election{client: l.clients.kube, lock: lock, identity: identity, duration: l.config.ControllerLeaseDuration, lead: lead}
}

// newMirror makes the controller of storagemigration.k8s.io, where that is served.
func (j *Join) newMirror(server *genericapiserver.GenericAPIServer) error {
	served, ok := servedMigrations(server.ListedPaths(), j.storing.switchedOn)
	if !ok || j.config.Silent || j.hosting != nil {
		return nil
	}
	objects, err := connect.NewClientWith(j.clients.controllers.config, served)
	if err != nil {
		return err
	}
	mirrored, err := mirror.New(mirror.Config{
		Client: objects, Served: served, Logger: klog.Background().WithName("mirror"),
	})
	if err != nil {
		return err
	}
	j.leading.mirror = j.leading.newElection(mirrorLock, j.identity, func(ctx context.Context) {
		if j.awaitOwnCRDs(ctx) == nil {
			mirrored.Run(ctx)
		}
	})
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
		run("trigger", func(ctx context.Context) {
			if j.awaitOwnCRDs(ctx) == nil {
				j.leading.trigger.Run(ctx)
			}
		})
		run("tally", func(ctx context.Context) {
			if j.awaitOwnCRDs(ctx) == nil {
				j.leading.tally.Run(ctx)
			}
		})
	}
	run("skew", func(ctx context.Context) {
		if j.awaitOwnCRDs(ctx) == nil && j.awaitRegistered(ctx) == nil {
			j.leading.skew.Run(ctx)
		}
	})
	controllers.Wait()
}

// newSkew makes the controller that compares the servers' versions.
func newSkew(c client.WithWatch, instance string) (*skew.Controller, error) {
	metrics, err := skewMetrics()
	if err != nil {
		return nil, err
	}
	return skew.New(skew.Config{Client: c, Instance: instance, Metrics: metrics, Logger: klog.Background().WithName("skew")})
}
