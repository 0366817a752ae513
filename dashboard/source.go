package dashboard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/listwatch"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/workers"
)

const (
	// pulse is the time between two requests that show whether the cluster answers, and how
	// late it is there.
	pulse = 2 * time.Second
	// answersIn is how long such a request may take.
	answersIn = 5 * time.Second
	// keptLeft bounds the servers that are remembered to have left.
	keptLeft = 50
)

// cluster has the clients with which a source reads, and the API server's clock.
type cluster struct {
	objects client.WithWatch
	served  discovery.DiscoveryInterface
	clock   *connect.Clock
}

func newCluster(config *rest.Config) (*cluster, error) {
	c := &cluster{clock: &connect.Clock{}}
	config = rest.CopyConfig(config)
	c.clock.SetBy(config)
	var err error
	if c.objects, err = connect.NewClient(config); err != nil {
		return nil, err
	}
	c.served, err = discovery.NewDiscoveryClientForConfig(config)
	return c, err
}

// source watches a cluster until its context ends.
type source struct {
	*cluster
	// dirty has an element while something has changed that was not looked at.
	dirty chan struct{}

	leases, states, versions, migrations, crds, releases, events *kind

	mu sync.Mutex
	// renewals remembers the Leases from one picture to the next.
	renewals servers.Watch
	// left are the servers whose Leases were deleted, the last at the end.
	left []status.Gone
	// unreachable is why the cluster does not answer.
	unreachable string
}

// kind is one kind of object that is watched.
type kind struct {
	name    string
	store   cache.Store
	control cache.Controller
	watched *watched
}

// watch begins to watch a cluster.
func (c *cluster) watch(ctx context.Context) *source {
	s := &source{cluster: c, dirty: make(chan struct{}, 1)}
	s.leases = s.kind("identity Leases", &coordinationv1.LeaseList{}, &coordinationv1.Lease{}, nil, client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabelsSelector{Selector: storageversion.Identities})
	s.states = s.kind("StorageStates", &migrationv1alpha1.StorageStateList{}, &migrationv1alpha1.StorageState{}, nil)
	s.versions = s.kind("StorageVersions", &apiserverinternalv1alpha1.StorageVersionList{}, &apiserverinternalv1alpha1.StorageVersion{}, nil)
	s.migrations = s.kind("StorageVersionMigrations", &migrationv1alpha1.StorageVersionMigrationList{}, &migrationv1alpha1.StorageVersionMigration{}, nil)
	s.crds = s.kind("CustomResourceDefinitions", &apiextensionsv1.CustomResourceDefinitionList{}, &apiextensionsv1.CustomResourceDefinition{}, migrationv1alpha1.WithoutSchemas)
	s.releases = s.kind("ClusterVersions", &versionv1alpha1.ClusterVersionList{}, &versionv1alpha1.ClusterVersion{}, nil)
	s.events = s.kind("Events", &corev1.EventList{}, &corev1.Event{}, nil, client.InNamespace(metav1.NamespaceDefault), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("source", "concord")})
	for _, k := range s.kinds() {
		go workers.Loop(ctx, "dashboard-watch", k.control.RunWithContext)
		workers.Go(ctx, "dashboard-synced", func() {
			select {
			case <-k.control.HasSyncedChecker().Done(): // where there is no object nothing else tells
				s.touch()
			case <-ctx.Done():
			}
		})
	}
	go workers.Loop(ctx, "dashboard-pulse", s.feel)
	return s
}

func (s *source) kinds() []*kind {
	return []*kind{s.leases, s.states, s.versions, s.migrations, s.crds, s.releases, s.events}
}

func (s *source) kind(name string, list client.ObjectList, object client.Object, transform cache.TransformFunc, options ...client.ListOption) *kind {
	k := &kind{name: name, watched: &watched{changed: s.touch}}
	k.store, k.control = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: listwatch.Telling(s.objects, k.watched.ended, list, options...), ObjectType: object, Transform: transform,
		Handler: listwatch.Handler("dashboard-watch", cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { s.touch() },
			UpdateFunc: func(any, any) { s.touch() },
			DeleteFunc: func(obj any) { s.deleted(obj); s.touch() },
		}),
	})
	return k
}

// touch records that something has changed.
func (s *source) touch() {
	select {
	case s.dirty <- struct{}{}:
	default:
	}
}

// deleted remembers servers that left.
func (s *source) deleted(obj any) {
	lease, ok := listwatch.Deleted[*coordinationv1.Lease](obj)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = append(s.left, status.Gone{Lease: *lease, At: s.clock.Now().Truncate(time.Second)})
	s.left = slices.Clone(s.left[max(0, len(s.left)-keptLeft):])
}

// feel asks the cluster every moment whether it is there.
func (s *source) feel(ctx context.Context) {
	ticker := time.NewTicker(pulse)
	defer ticker.Stop()
	for {
		asking, cancel := context.WithTimeout(ctx, answersIn)
		err := s.served.RESTClient().Get().AbsPath("/version").Do(asking).Error()
		cancel()
		s.mu.Lock()
		s.unreachable = ""
		if err != nil {
			s.unreachable = err.Error()
		}
		s.mu.Unlock()
		s.touch()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// read says whether the kind was read, or cannot be.
func (k *kind) read() bool { return k.control.HasSynced() || k.watched.trouble() != nil }

// reading are the names of the kinds that are still being read.
func (s *source) reading() (names []string) {
	for _, k := range s.kinds() {
		if !k.read() {
			names = append(names, k.name)
		}
	}
	return names
}

// observe returns the objects that are known now.
func (s *source) observe() status.Observed {
	o := status.Observed{
		Now:    s.clock.Now(),
		Leases: items[coordinationv1.Lease](s.leases), States: items[migrationv1alpha1.StorageState](s.states),
		StorageVersions: items[apiserverinternalv1alpha1.StorageVersion](s.versions), Migrations: items[migrationv1alpha1.StorageVersionMigration](s.migrations),
		CRDs: items[apiextensionsv1.CustomResourceDefinition](s.crds), Versions: items[versionv1alpha1.ClusterVersion](s.releases), Events: items[corev1.Event](s.events),
	}
	o.StorageVersionsUnserved = apierrors.IsNotFound(s.versions.watched.trouble())
	for _, k := range s.kinds() {
		if err := k.watched.trouble(); apierrors.IsForbidden(err) {
			o.Unread = append(o.Unread, fmt.Sprintf("%s may not be listed and watched, so what follows lacks what they tell: %v", k.name, err))
		} else if err != nil && !apierrors.IsNotFound(err) {
			o.Unread = append(o.Unread, fmt.Sprintf("%s cannot be read now: %v", k.name, err))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o.Left, o.Renewals = s.left, s.renewals.Note(o.Leases, time.Now())
	return o
}

// items returns the objects of a kind. They share values with the store, which nobody changes.
func items[T any](k *kind) []T {
	var all []T
	for _, obj := range k.store.List() {
		if item, ok := obj.(*T); ok {
			all = append(all, *item)
		}
	}
	return all
}

// watched remembers why the last list or watch failed.
type watched struct {
	changed func()

	mu  sync.Mutex
	err error
}

func (w *watched) ended(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if (w.err == nil) != (err == nil) {
		w.changed()
	}
	w.err = err
}

func (w *watched) trouble() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}
