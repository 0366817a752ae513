package engines

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/concord-dev/concord/controller/throughapi"
	migrateapi "github.com/concord-dev/concord/migrate/api"
	"github.com/concord-dev/concord/migrate/claim"
	"github.com/concord-dev/concord/migrate/pace"
)

// apiMigrator migrates through this server's API the objects that are not to be rewritten in its store.
type apiMigrator struct {
	*Engines
	engine   *migrateapi.Engine
	services apiregistrationclient.APIServicesGetter
}

var _ claim.Rewriter = (*apiMigrator)(nil)

// API returns the engine that migrates through this server's API, for objects that cannot be rewritten in its store.
// It uses config for reads and patching for patches. elsewhere returns the service that serves a version of a
// resource, "" if there is none.
func (e *Engines) API(config, patching *rest.Config) (engine claim.Rewriter, elsewhere func(context.Context, schema.GroupVersionResource) (string, error), err error) {
	client, err := migrateapi.NewClient(patching)
	if err != nil {
		return nil, nil, err
	}
	services, err := apiregistrationclient.NewForConfig(config)
	if err != nil {
		return nil, nil, fmt.Errorf("a client for APIServices: %w", err)
	}
	api := &apiMigrator{Engines: e, engine: migrateapi.New(client), services: services}
	return provenAPI{Rewriter: api, kv: e.KV, target: e.targetHere, pacer: e.Pacer}, api.elsewhere, nil
}

// elsewhere returns the service that serves a version of a resource, "" if there is none.
func (a *apiMigrator) elsewhere(ctx context.Context, gvr schema.GroupVersionResource) (string, error) {
	if gvr.Group == "" {
		return "", nil // is never served by another program
	}
	service, err := a.services.APIServices().Get(ctx, gvr.Version+"."+gvr.Group, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("get the APIService of %s: %w", gvr.GroupVersion(), err)
	case service.Spec.Service == nil:
		return "", nil
	}
	return fmt.Sprintf("%s is served by service %s/%s", gvr.GroupVersion(), service.Spec.Service.Namespace, service.Spec.Service.Name), nil
}

// Rewrite implements claim.Rewriter.
func (a *apiMigrator) Rewrite(ctx context.Context, job claim.Job, progress func(claim.Progress)) (claim.Result, error) {
	bounds := a.bounds(job)
	bounds.Least = pace.Patched
	pacer, stop := pace.New(bounds, a.Clients, clock.RealClock{})
	defer stop()
	return throughapi.Run(ctx, a.engine, job, migrateapi.Options{Pacer: pacer}, progress)
}
