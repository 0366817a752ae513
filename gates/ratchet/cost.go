package ratchet

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"

	"github.com/concord-dev/concord/gates"
)

// strictCRDCost is the admission that stands for CRDBoundedNameCost where that is off. The
// library's own validation has accepted the definition by its newer estimate; this one
// estimates again as earlier releases do. Schemas that have not changed keep the
// rules they have: they were stored while the estimate was relaxed.
type strictCRDCost struct{ *admission.Handler }

var _ admission.ValidationInterface = strictCRDCost{}

func newStrictCRDCost() strictCRDCost {
	return strictCRDCost{admission.NewHandler(admission.Create, admission.Update)}
}

// Validate implements admission.ValidationInterface.
func (strictCRDCost) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	crd, ok := a.GetObject().(*apiextensions.CustomResourceDefinition)
	if !ok || a.GetSubresource() != "" || !hasRules(crd) {
		return nil
	}
	var errs field.ErrorList
	switch old, ok := a.GetOldObject().(*apiextensions.CustomResourceDefinition); {
	case !ok:
		errs = validation.ValidateCustomResourceDefinition(ctx, withUnboundedNames(crd))
	case sameSchemas(crd, old):
	default:
		errs = validation.ValidateCustomResourceDefinitionUpdate(ctx, withUnboundedNames(crd), withUnboundedNames(old))
	}
	var refused field.ErrorList
	for _, err := range errs {
		if err.Type == field.ErrorTypeForbidden && strings.Contains(err.Detail, "cost") {
			err.Detail = fmt.Sprintf("%s; by the estimate of releases before 1.37, which --min-compatibility-version and the feature gate %s keep", err.Detail, gates.CRDBoundedNameCost)
			refused = append(refused, err)
		}
	}
	if len(refused) == 0 {
		return nil
	}
	return apierrors.NewInvalid(apiextensions.Kind("CustomResourceDefinition"), crd.Name, refused)
}

func hasRules(crd *apiextensions.CustomResourceDefinition) bool {
	return validation.HasSchemaWith(&crd.Spec, func(s *apiextensions.JSONSchemaProps) bool {
		return validation.SchemaHas(s, func(s *apiextensions.JSONSchemaProps) bool { return len(s.XValidations) > 0 })
	})
}

func sameSchemas(crd, old *apiextensions.CustomResourceDefinition) bool {
	return !slices.ContainsFunc(crd.Spec.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool {
		now, nowErr := apiextensions.GetSchemaForVersion(crd, v.Name)
		before, beforeErr := apiextensions.GetSchemaForVersion(old, v.Name)
		return nowErr != nil || beforeErr != nil || !equality.Semantic.DeepEqual(now, before)
	})
}

// withUnboundedNames returns a copy whose objects declare the fields that every object has. Unless all of them
// are declared, the library assumes bounds of its own.
func withUnboundedNames(crd *apiextensions.CustomResourceDefinition) *apiextensions.CustomResourceDefinition {
	crd = crd.DeepCopy()
	if v := crd.Spec.Validation; v != nil && v.OpenAPIV3Schema != nil {
		unboundNames(v.OpenAPIV3Schema, true)
	}
	for i := range crd.Spec.Versions {
		if v := crd.Spec.Versions[i].Schema; v != nil && v.OpenAPIV3Schema != nil {
			unboundNames(v.OpenAPIV3Schema, true)
		}
	}
	return crd
}

func unboundNames(s *apiextensions.JSONSchemaProps, isObject bool) {
	for name, property := range s.Properties {
		unboundNames(&property, property.XEmbeddedResource)
		s.Properties[name] = property
	}
	if s.Items != nil && s.Items.Schema != nil {
		unboundNames(s.Items.Schema, s.Items.Schema.XEmbeddedResource)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		unboundNames(s.AdditionalProperties.Schema, s.AdditionalProperties.Schema.XEmbeddedResource)
	}
	if isObject {
		declareMetadata(s)
	}
}

func declareMetadata(s *apiextensions.JSONSchemaProps) {
	metadata := s.Properties["metadata"]
	declared := metadata.Type == "object"
	for _, property := range []apiextensions.JSONSchemaProps{s.Properties["kind"], s.Properties["apiVersion"], metadata.Properties["name"], metadata.Properties["generateName"]} {
		declared = declared && property.Type == "string"
	}
	if declared {
		return // and bounded as declared, in every release
	}
	text := apiextensions.JSONSchemaProps{Type: "string"}
	set := func(in *map[string]apiextensions.JSONSchemaProps, name string, schema apiextensions.JSONSchemaProps) {
		if *in == nil {
			*in = map[string]apiextensions.JSONSchemaProps{}
		}
		(*in)[name] = schema
	}
	metadata.Type = "object"
	set(&metadata.Properties, "name", text)
	set(&metadata.Properties, "generateName", text)
	set(&s.Properties, "metadata", metadata)
	set(&s.Properties, "kind", text)
	set(&s.Properties, "apiVersion", text)
}
