package verdict

import (
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
)

// namedFields is how many fields are named that are dropped.
const namedFields = 5

// dropped are the paths of the fields that stored objects may have by one schema, and that a structural schema to
// which the objects are written anew does not keep.
func dropped(stored, wanted *apiextensionsv1.JSONSchemaProps, path string) (paths []string) {
	switch {
	case stored == nil || wanted == nil || ptr.Deref(wanted.XPreserveUnknownFields, false):
		return nil
	case wanted.AdditionalProperties != nil: // it keeps every key
		if stored.AdditionalProperties != nil {
			paths = dropped(stored.AdditionalProperties.Schema, wanted.AdditionalProperties.Schema, path+".*")
		}
		for _, name := range slices.Sorted(maps.Keys(stored.Properties)) {
			field := stored.Properties[name]
			paths = append(paths, dropped(&field, wanted.AdditionalProperties.Schema, path+"."+name)...)
		}
		return paths
	}
	if stored.AdditionalProperties != nil && (stored.AdditionalProperties.Allows || stored.AdditionalProperties.Schema != nil) {
		paths = append(paths, path+".*")
	}
	for _, name := range slices.Sorted(maps.Keys(stored.Properties)) {
		field := stored.Properties[name]
		kept, has := wanted.Properties[name]
		switch {
		case has:
			paths = append(paths, dropped(&field, &kept, path+"."+name)...)
		case path == "" && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name), wanted.XEmbeddedResource && slices.Contains([]string{"apiVersion", "kind", "metadata"}, name):
		default:
			paths = append(paths, path+"."+name)
		}
	}
	if stored.Items != nil && wanted.Items != nil {
		paths = append(paths, dropped(stored.Items.Schema, wanted.Items.Schema, path+"[]")...)
	}
	return paths
}

// lost warns of fields that objects lose where they are written anew in the storage version and no webhook converts
// them: the API server drops what that version's schema lacks. They are stored in the versions that
// status.storedVersions lists.
func (c Change) lost() (warnings []Warning) {
	if c.Present == nil || c.Wanted.Converted || c.Wanted.KeepsUnknown {
		return nil
	}
	var paths []string
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
