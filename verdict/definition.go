package verdict

import (
	"fmt"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/compat"
)

// Definition holds the versions that a CustomResourceDefinition names.
type Definition struct {
	Resource schema.GroupResource
	// Versions are the names of the versions in the spec, and Storage is the stored one.
	Versions []string
	Storage  string
	// StoredVersions is its status'.
	StoredVersions []string
	// Schemas are the schemas of the versions. Converted says that a webhook converts objects, and KeepsUnknown that
	// fields without a schema are kept.
	Schemas                 map[string]*apiextensionsv1.JSONSchemaProps
	Converted, KeepsUnknown bool
}

// DefinitionOf is the part of a CustomResourceDefinition that is about versions.
func DefinitionOf(crd *apiextensionsv1.CustomResourceDefinition) Definition {
	d := Definition{Resource: migrationv1alpha1.ResourceOf(crd), StoredVersions: crd.Status.StoredVersions, KeepsUnknown: crd.Spec.PreserveUnknownFields, Schemas: map[string]*apiextensionsv1.JSONSchemaProps{}}
	d.Converted = crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
	for _, v := range crd.Spec.Versions {
		if v.Schema != nil {
			d.Schemas[v.Name] = v.Schema.OpenAPIV3Schema
		}
		d.Versions = append(d.Versions, v.Name)
		if v.Storage {
			d.Storage = v.Name
		}
	}
	return d
}

func (d Definition) encoding(version string) string {
	return schema.GroupVersion{Group: d.Resource.Group, Version: version}.String()
}

func (d Definition) encodings(versions []string) (all []string) {
	for _, v := range versions {
		all = append(all, d.encoding(v))
	}
	return all
}

// Stored returns the definition in the form in which stored objects are judged by it.
func (d Definition) Stored() *compat.StoredCRD {
	return &compat.StoredCRD{Versions: d.encodings(d.Versions), StoredVersions: d.encodings(d.StoredVersions)}
}

// Change is a CustomResourceDefinition that will be applied.
type Change struct {
	Wanted *Definition
	// Present is the current definition; nil: there is none or, with Unread, it cannot be read.
	Present *Definition
	Unread  bool
	// Before are the storage versions of other definitions of the resource that will be applied before it.
	Before []string
	// Stored describes the stored objects of its resource.
	Stored compat.Stored
}

const coversApply = "the versions that stored objects are in. Not looked at: rules, conversion, and what else the API server refuses"

// OfDefinitions judges definitions that will be applied.
func OfDefinitions(changes []Change) Report {
	r := Report{Target: "the CustomResourceDefinitions to be applied", Covers: coversApply}
	if len(changes) == 1 {
		r.Target = "CustomResourceDefinition " + changes[0].Wanted.Resource.String()
	}
	var untold untold
	for _, c := range changes {
		f := c.apply()
		if c.unsought() && !slices.Contains(r.unsought, f.Resource) {
			r.unsought = append(r.unsought, f.Resource)
		}
		c.follow(&f)
		untold.add(f, c.Stored)
		if c.Present != nil {
			r.count(f, c.Stored)
		}
		r.Resources = append(r.Resources, f)
		r.Warnings = append(r.Warnings, c.lost()...)
	}
	r.warns = "Fields that are lost:"
	return r.settled("keep the versions that are stored until every object is migrated and status.storedVersions no longer lists them: kubectl concord why RESOURCE",
		untold.do("have the objects counted, as a cluster admin, or in a stock cluster from its etcd (concord preflight --etcd-servers), or wait until their migrations are done: kubectl concord why RESOURCE",
			"wait until their migrations are done: kubectl concord why RESOURCE"))
}

// apply judges the wanted definition.
func (c Change) apply() compat.Finding {
	f := compat.Finding{Resource: c.Wanted.Resource.String(), Stored: []string{}}
	switch {
	case c.Unread:
		f.Reason = "its CustomResourceDefinition cannot be read"
		return f
	case c.Present == nil && !c.left():
		f.Verdict, f.Reason = compat.Safe, "there is no such definition yet"
		if c.unsought() {
			f.Reason += "; objects that an earlier one has left were not looked for"
		}
		return f
	case c.Present == nil:
		c.Present = &Definition{Resource: c.Wanted.Resource, Storage: c.Wanted.Storage}
	}
	crd := &compat.StoredCRD{Versions: c.Wanted.encodings(c.Wanted.Versions), StoredVersions: c.Present.encodings(c.Present.StoredVersions)}
	s := c.Stored
	s.CRD = crd
	f = (&compat.Target{}).Judge(s)
	var refused []string
	for _, v := range c.Present.StoredVersions {
		if !slices.Contains(c.Wanted.Versions, v) && !slices.Contains(f.Undecodable, c.Present.encoding(v)) {
			refused = append(refused, v)
		}
	}
	switch {
	case f.Verdict == compat.Unsafe:
		f.Reason = fmt.Sprintf("it drops %s, in which objects are stored%s", strings.Join(f.Undecodable, ", "), howMany(f.Objects))
		if f.Objects == 0 {
			f.Reason = fmt.Sprintf("it drops %s, in which objects may be stored", strings.Join(f.Undecodable, ", "))
		}
	case len(refused) > 0:
		// The API server refuses a definition whose spec.versions lack one of its storedVersions, whatever is
		// stored.
		f.Verdict = compat.Unsafe
		f.Undecodable = c.Present.encodings(refused)
		f.Reason = fmt.Sprintf("it drops %s, which status.storedVersions lists: the API server refuses it", strings.Join(refused, ", "))
	case f.Verdict == compat.Safe && c.Present.Storage != c.Wanted.Storage:
		f.Reason = fmt.Sprintf("it keeps every version that is stored; the storage version moves from %s to %s, and objects are migrated", c.Present.Storage, c.Wanted.Storage)
	case f.Verdict == compat.Safe:
		f.Reason = "it keeps every version that is stored"
	}
	return f
}

// follow judges a definition that is applied after others: each of these adds its storage version to
// status.storedVersions.
func (c Change) follow(f *compat.Finding) {
	var dropped []string
	for _, v := range c.Before {
		if !slices.Contains(c.Wanted.Versions, v) && !slices.Contains(dropped, v) {
			dropped = append(dropped, v)
		}
	}
	if len(dropped) > 0 && f.Verdict != compat.Unsafe {
		f.Verdict, f.Undecodable = compat.Unsafe, c.Wanted.encodings(dropped)
		f.Reason = fmt.Sprintf("it drops %s, which the definition before it stores: the API server refuses it", strings.Join(dropped, ", "))
	}
}

// left says whether there are, or may be, objects that an earlier definition has left: by what the cluster remembers
// or by a census. That nothing is known of the resource proves nothing: in a stock cluster it is so for all that are new.
func (c Change) left() bool {
	census := c.Stored.Census
	return len(c.Stored.Encodings) > 0 || census != nil && (len(census.Objects) > 0 || census.Encrypted+census.Unreadable > 0 || census.Partial != "")
}

// unsought says that nobody has looked for objects that an earlier definition has left: a server counts none without a
// definition.
func (c Change) unsought() bool {
	return c.Present == nil && !c.Unread && !c.left() && c.Stored.Census == nil
}

func howMany(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d)", n)
}
