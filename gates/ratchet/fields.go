// Package ratchet keeps CustomResourceDefinitions to what the releases of the compatibility
// window know, where Kubernetes' own validation has moved on (KEP-4330, "Validation
// ratcheting").
package ratchet

import (
	"context"

	apiextensionsfeatures "k8s.io/apiextensions-apiserver/pkg/features"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/component-base/featuregate"

	"github.com/concord-dev/concord/gates"
)

// withoutObservedGeneration is the admission that keeps data out of the fields of a CRD's
// status that came with 1.35, where the gate CRDObservedGenerationTracking is off. Its
// default is on from 1.36, the first release whose predecessor knows them (KEP-4330: "we
// only allow data into new API fields once they existed in the previous release, this
// needs to account for emulation version"). Fields that hold data already stay in use.
// The library has this rule too, but not for updates of the status, their only way in.
type withoutObservedGeneration struct{ *admission.Handler }

var _ admission.MutationInterface = withoutObservedGeneration{}

func newWithoutObservedGeneration() withoutObservedGeneration {
	return withoutObservedGeneration{admission.NewHandler(admission.Update)}
}

// Admit implements admission.MutationInterface.
func (withoutObservedGeneration) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil
	}
	if old, ok := a.GetOldObject().(*apiextensions.CustomResourceDefinition); ok && observesGeneration(&old.Status) {
		return nil
	}
	crd.Status.ObservedGeneration = 0
	for i := range crd.Status.Conditions {
		crd.Status.Conditions[i].ObservedGeneration = 0
	}
	return nil
}

func observesGeneration(status *apiextensions.CustomResourceDefinitionStatus) bool {
	for _, condition := range status.Conditions {
		if condition.ObservedGeneration != 0 {
			return true
		}
	}
	return status.ObservedGeneration != 0
}

// Admission returns inner, which may be nil, followed by a plugin for each gate that is off; the plugin treats
// CustomResourceDefinitions like a release without that feature. own are the gates of component concord, kube those of
// Kubernetes.
func Admission(inner admission.Interface, own, kube featuregate.FeatureGate) admission.Interface {
	var plugins []admission.Interface
	if inner != nil {
		plugins = append(plugins, inner)
	}
	if !own.Enabled(gates.CRDBoundedNameCost) {
		plugins = append(plugins, newStrictCRDCost())
	}
	if !kube.Enabled(apiextensionsfeatures.CRDObservedGenerationTracking) {
		plugins = append(plugins, newWithoutObservedGeneration())
	}
	return admission.NewChainHandler(plugins...)
}
