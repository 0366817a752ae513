// Package owncrds installs CustomResourceDefinitions of the project's own.
package owncrds

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Install installs definitions and brings older ones up to date.
func Install(ctx context.Context, c client.Client, crds []*apiextensionsv1.CustomResourceDefinition) error {
	for _, want := range crds {
		if err := ensure(ctx, c, want); err != nil {
			return fmt.Errorf("CustomResourceDefinition %s: %w", want.Name, err)
		}
	}
	return nil
}

func ensure(ctx context.Context, c client.Client, want *apiextensionsv1.CustomResourceDefinition) error {
	var have apiextensionsv1.CustomResourceDefinition
	err := c.Get(ctx, client.ObjectKeyFromObject(want), &have)
	if apierrors.IsNotFound(err) {
		err = c.Create(ctx, want)
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	// A server of another release may hold another schema: only a missing version or
	// column is worth a write, and defaulted fields are not compared.
	if equality.Semantic.DeepDerivative(want.Spec, have.Spec) {
		return nil
	}
	// A definition with more fields than this build knows comes from a newer build. Without its schema, fields that
	// newer servers write would be dropped.
	if newer, ours := fields(&have), fields(want); newer.Len() > ours.Len() && newer.IsSuperset(ours) {
		return nil
	}
	have.Spec = want.Spec
	if err := c.Update(ctx, &have); err != nil && !apierrors.IsConflict(err) {
		return err
	}
	return nil
}

// fields are the paths of all fields that the schemas of a definition name, of each version.
func fields(crd *apiextensionsv1.CustomResourceDefinition) sets.Set[string] {
	found := sets.New[string]()
	var walk func(path string, schema *apiextensionsv1.JSONSchemaProps)
	walk = func(path string, schema *apiextensionsv1.JSONSchemaProps) {
		if schema == nil {
			return
		}
		found.Insert(path)
		for name, property := range schema.Properties {
			walk(path+"."+name, &property)
		}
		if schema.Items != nil {
			walk(path+"[]", schema.Items.Schema)
		}
		if schema.AdditionalProperties != nil {
			walk(path+"{}", schema.AdditionalProperties.Schema)
		}
	}
	for _, version := range crd.Spec.Versions {
		if version.Schema != nil {
			walk(version.Name, version.Schema.OpenAPIV3Schema)
		}
	}
	return found
}
