package verdict

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// namedFields is how many fields are named that are dropped.
const namedFields = 5

// anything is the schema of a value from which nothing is dropped.
var anything = &apiextensionsv1.JSONSchemaProps{XPreserveUnknownFields: ptr.To(true)}

// keepsUnknown reports whether a schema keeps unspecified fields of its values. Inside specified fields unspecified
// ones are dropped.
func keepsUnknown(s *apiextensionsv1.JSONSchemaProps) bool {
	return ptr.Deref(s.XPreserveUnknownFields, false)
}

// dropped returns the paths of fields that objects stored with one schema may have, and that are dropped when they are
// written with another. A path that ends in ".*" stands for any field there.
func dropped(stored, wanted *apiextensionsv1.JSONSchemaProps, path string) (paths []string) {
	if stored == nil || wanted == nil {
		return nil
	}
	var others *apiextensionsv1.JSONSchemaProps // of the stored fields that it does not specify
	switch {
	case stored.AdditionalProperties != nil:
		others = stored.AdditionalProperties.Schema
	case keepsUnknown(stored):
		others = anything
	}
	if wanted.AdditionalProperties != nil { // it keeps every key
		paths = dropped(others, wanted.AdditionalProperties.Schema, path+".*")
		for _, name := range slices.Sorted(maps.Keys(stored.Properties)) {
			field := stored.Properties[name]
			paths = append(paths, dropped(&field, wanted.AdditionalProperties.Schema, path+"."+name)...)
		}
		return paths
	}
	object := (wanted.Type == "object" || wanted.Type == "") && !wanted.XIntOrString
	if object && !keepsUnknown(wanted) && (others != nil || stored.AdditionalProperties != nil && stored.AdditionalProperties.Allows) {
		paths = append(paths, path+".*")
	}
	paths = append(paths, droppedProperties(stored, wanted, others, path)...)
	if wanted.Items != nil {
		paths = append(paths, dropped(items(stored), items(wanted), path+"[]")...)
	}
	return paths
}

// droppedProperties returns the dropped fields that are properties of an object, or below them; others is the schema
// of properties that stored does not specify.
func droppedProperties(stored, wanted, others *apiextensionsv1.JSONSchemaProps, path string) (paths []string) {
	fields := map[string]apiextensionsv1.JSONSchemaProps{}
	if keepsUnknown(wanted) && others != nil {
		for name := range wanted.Properties {
			fields[name] = *others
		}
	}
	maps.Copy(fields, stored.Properties)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field := fields[name]
		kept, has := wanted.Properties[name]
		switch {
		case (path == "" || wanted.XEmbeddedResource) && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name):
		case has:
			paths = append(paths, dropped(&field, &kept, path+"."+name)...)
		case !keepsUnknown(wanted):
			paths = append(paths, path+"."+name)
		}
	}
	return paths
}

// items is the schema of the items of a list; nil if it has none.
func items(list *apiextensionsv1.JSONSchemaProps) *apiextensionsv1.JSONSchemaProps {
	switch {
	case list.Items != nil && list.Items.Schema != nil && keepsUnknown(list):
		s := *list.Items.Schema
		s.XPreserveUnknownFields = ptr.To(true)
		return &s
	case list.Items != nil:
		return list.Items.Schema
	case keepsUnknown(list):
		return anything
	}
	return nil
}

// lost warns about fields that objects lose when they are written in the storage version and no webhook converts them:
// the API server drops fields that the version's schema lacks. The objects are stored in the versions that
// status.storedVersions lists.
func (c Change) lost() (warnings []Warning) {
	if c.Present == nil || c.Wanted.Converted || c.Wanted.KeepsUnknown {
		return nil
	}
	var paths []string
	if c.Present.KeepsUnknown {
		paths = dropped(anything, c.Wanted.Schemas[c.Wanted.Storage], "")
	}
	for _, v := range c.Present.StoredVersions {
		schema := c.Present.Schemas[v]
		if schema == nil {
			schema = c.Wanted.Schemas[v]
		}
		for _, path := range dropped(schema, c.Wanted.Schemas[c.Wanted.Storage], "") {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	for i, path := range paths {
		about := fmt.Sprintf("objects may have %s, which the schema of %s lacks: it is dropped where they are migrated or written", path, c.Wanted.Storage)
		if place, any := strings.CutSuffix(path, ".*"); any {
			about = fmt.Sprintf("objects may have any field%s: those that the schema of %s lacks are dropped where they are migrated or written", strings.TrimSuffix(" in "+place, " in "), c.Wanted.Storage)
		}
		if i == namedFields {
			about = fmt.Sprintf("and %d more fields", len(paths)-i)
		}
		warnings = append(warnings, Warning{Resource: definitions, Object: c.Wanted.Resource.String(), About: about})
		if i == namedFields {
			break
		}
	}
	return warnings
}

// definitions is the resource of CustomResourceDefinitions.
const definitions = "customresourcedefinitions.apiextensions.k8s.io"
