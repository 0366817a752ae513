package object

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/concord-dev/concord/agree"
	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
)

// Resource is a resource of users' objects.
type Resource struct {
	Name          string // as scripts say it
	Kind          string
	GroupResource schema.GroupResource
	Prefix        string // of its objects' keys
	Custom        bool

	// Full is the resource as it is written, and State and Version are the names of its
	// StorageState and its StorageVersion.
	Full, State, Version string
}

// The resources that there are.
var (
	Things  = newResource("apps.example.com", "things", "Thing", false)
	Widgets = newResource("example.com", "widgets", "Widget", true)
	All     = [...]*Resource{Things, Widgets}
)

func newResource(group, name, kind string, custom bool) *Resource {
	gr := schema.GroupResource{Group: group, Resource: name}
	return &Resource{
		Name: name, Kind: kind, GroupResource: gr, Prefix: "/registry/" + name + "/", Custom: custom,
		Full: gr.String(), State: migrationv1alpha1.StateName(gr), Version: storageversion.Name(gr),
	}
}

// Encoding is how objects of the resource are encoded in a version.
func (r *Resource) Encoding(version string) agree.Encoding {
	return agree.Encoding(r.GroupResource.Group + "/" + version)
}

// Release is the release of a server's binary: the version in which it stores things, the
// release it emulates, and whether it knows the newest field of objects.
type Release struct {
	Name, Stores, Emulates string
	Knows                  bool
}

// Releases are in order. All decode all versions: which releases may follow on each
// other is package compat's to plan.
var Releases = []Release{
	{"r0", "v1", "1.34", false},
	{"r1", "v1", "1.35", true},
	{"r2", "v2", "1.36", true},
	{"r3", "v3", "1.37", true},
}

// Named returns the resource that scripts call so.
func Named(name string) (*Resource, bool) {
	for _, r := range All {
		if r.Name == name {
			return r, true
		}
	}
	return nil, false
}
