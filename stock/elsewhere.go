package stock

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apihelpers "k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
)

// elsewhere tells users that kube-controller-manager also migrates a custom resource. That migration is left alone:
// both write the same, and the guards decide which of the two sets storedVersions.
type elsewhere struct {
	objects  client.WithWatch
	instance string
	clock    clock.Clock
	logger   logr.Logger
	begun    chan *apiextensionsv1.CustomResourceDefinition
}

func newElsewhere(c client.WithWatch, config Config) *elsewhere {
	return &elsewhere{
		objects: c, instance: config.Instance, clock: config.Clock, logger: config.Logger.WithName("elsewhere"),
		begun: make(chan *apiextensionsv1.CustomResourceDefinition, queued),
	}
}

// note receives every state of a definition; was is nil for the first one.
func (e *elsewhere) note(was, is *apiextensionsv1.CustomResourceDefinition) {
	// kube-controller-manager sets this condition from 1.36 on.
	if !apihelpers.IsCRDConditionTrue(is, apiextensionsv1.StorageMigrating) || was != nil && apihelpers.IsCRDConditionTrue(was, apiextensionsv1.StorageMigrating) {
		return
	}
	select {
	case e.begun <- is:
	default: // so many that one event less does no harm
	}
}

// run writes an event about each until ctx ends.
func (e *elsewhere) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case crd := <-e.begun:
			e.logger.Info("kube-controller-manager migrates it, too", "crd", crd.Name)
			event := migrationv1alpha1.NewDefinitionEvent(crd, e.instance, corev1.EventTypeNormal, migrationv1alpha1.ReasonMigratedElsewhere,
				"kube-controller-manager migrates it, too, as the condition StorageMigrating says. It may set status.storedVersions to the new version although "+
					"objects are left in another one, unless the guard concord-stored-versions is installed; then it is put back.", e.clock.Now())
			if err := e.objects.Create(ctx, event); err != nil && ctx.Err() == nil {
				e.logger.V(1).Info("An event was not written", "crd", crd.Name, "reason", err.Error())
			}
		}
	}
}
