package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	"github.com/concord-dev/concord/connect"
	"github.com/concord-dev/concord/status"
	"github.com/concord-dev/concord/status/servers"
	"github.com/concord-dev/concord/stock/observed"
)

// cluster is the cluster that the plugin talks to.
type cluster struct {
	config  *rest.Config
	objects client.WithWatch
	served  discovery.DiscoveryInterface
	clock   *connect.Clock
	// renewals remembers Leases from one look to the next.
	renewals servers.Watch
}

func (p *plugin) cluster() (*cluster, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}
	c := &cluster{config: connect.WithTimeout(config), clock: &connect.Clock{}}
	c.clock.SetBy(c.config)
	if c.objects, err = connect.NewClient(c.config); err != nil {
		return nil, err
	}
	c.served, err = discovery.NewDiscoveryClientForConfig(c.config)
	return c, err
}

// look reads the cluster, for commands whose answer would be wrong if a kind could not be read.
func (p *plugin) look(ctx context.Context) (*cluster, status.Observed, error) {
	c, err := p.cluster()
	if err != nil {
		return nil, status.Observed{}, err
	}
	o, err := c.observe(ctx)
	if err == nil && len(o.Unread) > 0 {
		err = errors.New(o.Unread[0])
	}
	return c, o, err
}

// lookAt reads the cluster, and finds the resource that a name means.
func (p *plugin) lookAt(ctx context.Context, name string) (*cluster, status.Observed, schema.GroupResource, error) {
	c, o, err := p.look(ctx)
	if err != nil {
		return nil, o, schema.GroupResource{}, err
	}
	gr, err := c.resolve(o, name)
	return c, o, gr, err
}

// observe reads the objects on which a status depends. A kind that is not served has no objects; a kind that may not
// be read is listed as unread.
func (c *cluster) observe(ctx context.Context) (status.Observed, error) {
	return c.observeWith(ctx, c.definitions)
}

// glance is like observe, but reads only the metadata of CustomResourceDefinitions about which a status says nothing
// more. Schemas are long, and a server converts and encodes each of them.
func (c *cluster) glance(ctx context.Context) (status.Observed, error) {
	o, err := c.observeWith(ctx, c.metadata)
	if err != nil {
		return o, err
	}
	whole := sets.New(o.Needs()...)
	if len(whole) > fewDefinitions {
		if o.CRDs, err = c.definitions(ctx); err != nil {
			err = c.unlisted("CustomResourceDefinitions", err)
		}
		return o, err
	}
	o.CRDs = slices.DeleteFunc(o.CRDs, func(crd apiextensionsv1.CustomResourceDefinition) bool { return whole.Has(crd.Name) })
	for name := range whole { // listed, for those who may list and not get
		crds, err := c.definitions(ctx, client.MatchingFields{metav1.ObjectNameField: name})
		if err != nil {
			return o, c.unlisted("CustomResourceDefinitions", err)
		}
		o.CRDs = append(o.CRDs, crds...)
	}
	return o, nil
}

// watchLeases reads the Leases again, as soon as live servers must have renewed them, if a server seems to be dead by
// its Lease's time, or that time is in the future: the clocks of servers differ. Commands that report dead servers use
// it.
func (c *cluster) watchLeases(ctx context.Context, o *status.Observed) {
	o.Renewals = c.renewals.Note(o.Leases, time.Now())
	doubt := servers.Doubt(o.Leases, o.Now, o.Renewals)
	if doubt <= 0 {
		return
	}
	select {
	case <-time.After(doubt):
	case <-ctx.Done():
		return
	}
	var leases coordinationv1.LeaseList
	if err := c.objects.List(ctx, &leases, identities...); err != nil {
		return // what was read once stands, and nobody is called dead
	}
	o.Leases, o.Now = leases.Items, c.clock.Now()
	o.Renewals = c.renewals.Note(o.Leases, time.Now())
}

// identities are the Leases that stand for servers.
var identities = []client.ListOption{client.InNamespace(storageversion.IdentityNamespace), client.MatchingLabelsSelector{Selector: storageversion.Identities}}

// fewDefinitions are as many as are read one by one, rather than all.
const fewDefinitions = 10

// observeWith is observe with a function that reads the CustomResourceDefinitions.
func (c *cluster) observeWith(ctx context.Context, definitions func(context.Context, ...client.ListOption) ([]apiextensionsv1.CustomResourceDefinition, error)) (status.Observed, error) {
	var o status.Observed
	var mu sync.Mutex
	unread := map[string]error{}
	group, reading := errgroup.WithContext(ctx)
	read := func(kind string, list func(context.Context) error) {
		group.Go(func() error {
			err := list(reading)
			switch {
			case err == nil, apierrors.IsNotFound(err):
				return nil
			case apierrors.IsForbidden(err):
				mu.Lock()
				defer mu.Unlock()
				unread[kind] = err
				return nil
			}
			return c.unlisted(kind, err)
		})
	}
	var leases coordinationv1.LeaseList
	var states migrationv1alpha1.StorageStateList
	var versions apiserverinternalv1alpha1.StorageVersionList
	var migrations migrationv1alpha1.StorageVersionMigrationList
	list := func(kind string, into client.ObjectList, options ...client.ListOption) {
		read(kind, func(ctx context.Context) error { return c.objects.List(ctx, into, options...) })
	}
	list("identity Leases", &leases, identities...)
	list("StorageStates", &states)
	list("StorageVersionMigrations", &migrations)
	read("StorageVersions", func(ctx context.Context) error {
		err := c.objects.List(ctx, &versions)
		o.StorageVersionsUnserved = apierrors.IsNotFound(err)
		return err
	})
	read("migrations of storagemigration.k8s.io", func(ctx context.Context) (err error) {
		o.Originals, err = c.originals(ctx)
		return err
	})
	read("CustomResourceDefinitions", func(ctx context.Context) (err error) {
		o.CRDs, err = definitions(ctx)
		return err
	})
	err := group.Wait()
	o.Leases, o.States, o.StorageVersions, o.Migrations = leases.Items, states.Items, versions.Items, migrations.Items
	o.Unread = refusals(unread)
	o.Now = c.clock.Now()
	if refused := apierrors.APIStatus(nil); err == nil || errors.As(err, &refused) { // it answers
		o.FailedChecks = c.failedChecks(ctx)
	}
	if err != nil && len(o.FailedChecks) > 0 {
		err = fmt.Errorf("%w; its /readyz fails: %s", err, strings.Join(o.FailedChecks, ", "))
	}
	return o, err
}

func (c *cluster) unlisted(kind string, err error) error {
	return fmt.Errorf("the cluster at %s: list %s: %w", c.config.Host, kind, err)
}

// refusals says once, by kind, what may not be listed, and which permission a reader needs.
func refusals(unread map[string]error) []string {
	if len(unread) == 0 {
		return nil
	}
	kinds := slices.Sorted(maps.Keys(unread))
	return []string{fmt.Sprintf("%s may not be listed: %v; readers need, for the whole cluster, the ClusterRole view, or what it takes in: concord:view, which Concord's servers make, or concord-view of deploy/controllers/base/readers.yaml",
		strings.Join(kinds, ", "), unread[kinds[0]])}
}

// failedChecks are the checks of the server's /readyz that fail, by name; none where the user may
// not read it.
func (c *cluster) failedChecks(ctx context.Context) (failed []string) {
	body, _ := c.served.RESTClient().Get().AbsPath("/readyz").Param("verbose", "").Do(ctx).Raw() // a 500 if one fails
	for line := range strings.Lines(string(body)) {
		if after, found := strings.CutPrefix(line, "[-]"); found {
			name, _, _ := strings.Cut(after, " ")
			failed = append(failed, name)
		}
	}
	return failed
}

// originals reads the migrations of Kubernetes' own API, if it is served, and the Lease that shows who does them.
func (c *cluster) originals(ctx context.Context) (status.Originals, error) {
	var o status.Originals
	var group metav1.APIGroup
	if err := c.readJSON(ctx, "/apis/"+storagemigrationv1.GroupName, &group); err != nil {
		return o, err
	}
	if group.PreferredVersion.Version == observed.AlphaMigrations {
		return o, nil
	}
	var list storagemigrationv1.StorageVersionMigrationList // the form of all other versions
	if err := c.readJSON(ctx, "/apis/"+group.PreferredVersion.GroupVersion+"/storageversionmigrations", &list); err != nil || len(list.Items) == 0 {
		return o, err
	}
	o.Migrations = list.Items
	lease := &coordinationv1.Lease{}
	if err := c.objects.Get(ctx, client.ObjectKey{Namespace: observed.ManagerNamespace, Name: observed.ManagerLease}, lease); err != nil {
		return o, client.IgnoreNotFound(err)
	}
	o.Manager = lease
	return o, nil
}

func (c *cluster) readJSON(ctx context.Context, path string, into any) error {
	result := c.served.RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").Do(ctx)
	if err := result.Error(); err != nil { // unlike that of Raw it says what the server says
		return err
	}
	raw, err := result.Raw()
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, into)
}

// metadata lists the metadata of the CustomResourceDefinitions.
func (c *cluster) metadata(ctx context.Context, options ...client.ListOption) (all []apiextensionsv1.CustomResourceDefinition, err error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinitionList"))
	err = c.objects.List(ctx, &list, options...)
	for i := range list.Items {
		all = append(all, status.Named(list.Items[i].ObjectMeta))
	}
	return all, err
}

// definitions lists the CustomResourceDefinitions, and keeps nothing of their schemas.
func (c *cluster) definitions(ctx context.Context, options ...client.ListOption) ([]apiextensionsv1.CustomResourceDefinition, error) {
	var list apiextensionsv1.CustomResourceDefinitionList
	if err := c.objects.List(ctx, &list, options...); err != nil {
		return nil, err
	}
	for i := range list.Items {
		_, _ = migrationv1alpha1.WithoutSchemas(&list.Items[i])
	}
	return list.Items, nil
}
