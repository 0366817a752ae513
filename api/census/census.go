// Package census is the wire form of a census: how many stored objects there are by encoding.
package census

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Path, followed by the name of a resource ("widgets.example.com"), answers a GET with the census of that resource, a
// Resource. Only users with access to that path may ask: system:masters, until others are granted it. Every value is
// read, which takes a while. With "?verify=true" every value is also decoded, and a value that cannot be decoded
// counts as unknown.
const Path = "/concord/census/"

// VerifyParameter is the query parameter that asks for that.
const VerifyParameter = "verify"

// Named is how many objects of each encoding are named.
const Named = 10

// Row counts the objects of one resource in one encoding.
type Row struct {
	// Resource is the plural name, with the group behind a dot: "configmaps",
	// "ipaddresses.networking.k8s.io".
	Resource string `json:"resource"`
	// Encoding is a group/version, or a word of package migrate/store if the group/version is not known.
	Encoding string `json:"encoding"`
	Objects  int64  `json:"objects"`
	// Bytes is the size of the values as stored.
	Bytes int64 `json:"bytes"`
}

// Resource counts the stored objects of one resource, from raw etcd.
type Resource struct {
	Resource string `json:"resource"`
	// Encoding is the encoding that all servers agree on, empty if they do not.
	Encoding string `json:"encoding"`
	// Rows are sorted by encoding. Their resource is this one.
	Rows []Row `json:"rows"`
	// First names the first objects of each encoding, as "namespace/name".
	First map[string][]string `json:"first,omitempty"`
	// ReadSeconds is how long it took to read all of them.
	ReadSeconds float64 `json:"readSeconds"`
	// ObjectsPerSecond is how fast the server's last rewrite of at least a thousand objects
	// wrote, of whatever resource; 0 if it did none since it started.
	ObjectsPerSecond float64 `json:"objectsPerSecond"`
	// MaxObjectsPerSecond is the rate that the server allows a migration that names none itself; 0
	// is no bound.
	MaxObjectsPerSecond int `json:"maxObjectsPerSecond"`
}

// censuses is the resource that an answer names as not found if the server has no census of a resource.
var censuses = schema.GroupResource{Group: "concord.dev", Resource: "census"}

// NotStored returns the error with which Path says that the server has no store of the resource.
func NotStored(gr schema.GroupResource) error { return apierrors.NewNotFound(censuses, gr.String()) }

// IsNotStored reports whether an error is the one with which Path says that the server has no store of the resource,
// and not, for example, a 404 of a server that takes no censuses.
func IsNotStored(err error, gr schema.GroupResource) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Group == censuses.Group && d.Kind == censuses.Resource && d.Name == gr.String()
}
