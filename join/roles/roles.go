// Package roles defines the user as which each controller of a server with RBAC acts, and that user's permissions:
// only those that the controller needs, so that a bug in one of them does limited harm.
//
// The users have names of service accounts, like those of Kubernetes' own controllers: audit logs distinguish them,
// and Kubernetes' priority levels keep them apart from a flood of other requests. There is no ServiceAccount object
// and no token; a server impersonates them over its loopback.
package roles

import (
	"slices"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"

	migrationv1alpha1 "github.com/concord-dev/concord/api/migration/v1alpha1"
	"github.com/concord-dev/concord/api/storageversion"
	versionv1alpha1 "github.com/concord-dev/concord/api/version/v1alpha1"
)

// The Leases by which servers are elected.
const (
	// ControllersLock is the Lease by which the server that runs the controllers is elected.
	ControllersLock = "concord-controllers"
	// SilentLock elects among the servers that run no controllers of the protocol. They
	// must not keep servers that run them from being elected, so their elected one works beside
	// that of the others: it does no harm that ClusterVersions are looked after twice.
	SilentLock = ControllersLock + "-without-storage-versions"
	// MirrorLock is the Lease by which the server that mirrors the migrations of storagemigration.k8s.io is elected. Only servers
	// that serve these run for it.
	MirrorLock = ControllersLock + "-storagemigration"
)

// Role is one controller's identity and what it may do.
type Role struct {
	// Name is the controller's. ClusterRole, Roles and bindings are called "concord:" and it.
	Name string
	// anywhere are the rules for the whole cluster, in those for single namespaces.
	anywhere []rbacv1.PolicyRule
	in       map[string][]rbacv1.PolicyRule
}

// The controllers' roles. Each rule is needed by something that the controller does.
var (
	// Election is the user that runs for election, for all controllers.
	Election = Role{Name: "election", in: map[string][]rbacv1.PolicyRule{storageversion.IdentityNamespace: {
		// A create cannot be limited to a name.
		may(coordinationv1.GroupName, "leases", "create"),
		{APIGroups: []string{coordinationv1.GroupName}, Resources: []string{"leases"}, ResourceNames: []string{ControllersLock, SilentLock, MirrorLock}, Verbs: []string{"get", "update"}},
	}}}
	// Collector removes what servers leave behind.
	Collector = Role{
		Name: "collector",
		anywhere: []rbacv1.PolicyRule{
			may(storageversion.Resource.Group, "storageversions", "list", "watch", "delete"),
			may(storageversion.Resource.Group, "storageversions/status", "update"),
		},
		in: leases("list", "delete"),
	}
	// Trigger keeps StorageStates, starts migrations, and says in definitions what is stored.
	Trigger = Role{
		Name: "trigger",
		anywhere: []rbacv1.PolicyRule{
			may(storageversion.Resource.Group, "storageversions", "get", "list", "watch"),
			may(migrationv1alpha1.GroupName, "storagestates", "get", "list", "watch", "create", "update", "delete"),
			may(migrationv1alpha1.GroupName, "storagestates/status", "update"),
			may(migrationv1alpha1.GroupName, "storageversionmigrations", "list", "watch", "create", "update", "delete"),
			may(migrationv1alpha1.GroupName, "storageversionmigrations/status", "update"),
			may(apiextensionsv1.GroupName, "customresourcedefinitions", "get"),
			may(apiextensionsv1.GroupName, "customresourcedefinitions/status", "update"),
		},
		in: with(leases("list", "watch"), events),
	}
	// Migrator claims migrations and writes how they go. Rewriting stored values needs no
	// permission: it happens next to the storage.
	Migrator = Role{
		Name: "migrator",
		anywhere: []rbacv1.PolicyRule{
			may(storageversion.Resource.Group, "storageversions", "get", "list", "watch"),
			may(migrationv1alpha1.GroupName, "storageversionmigrations", "get", "list", "watch", "update"),
			may(migrationv1alpha1.GroupName, "storageversionmigrations/status", "update"),
			may(apiextensionsv1.GroupName, "customresourcedefinitions", "get"),
			may("apiregistration.k8s.io", "apiservices", "get"),
		},
		in: with(leases("list"), events),
	}
	// Patcher migrates through the API: it lists the metadata of objects of any resource, reads an object that failed,
	// and patches. RBAC cannot allow only empty patches; kube-controller-manager's migrator has the same permissions.
	Patcher = Role{Name: "patcher", anywhere: []rbacv1.PolicyRule{may("*", "*", "get", "list", "patch")}}
	// Mirror shows migrations of storagemigration.k8s.io as ours, and the other way round.
	Mirror = Role{
		Name: "mirror",
		anywhere: []rbacv1.PolicyRule{
			may(storagemigrationv1.GroupName, "storageversionmigrations", "get", "list", "watch"),
			may(storagemigrationv1.GroupName, "storageversionmigrations/status", "update"),
			may(migrationv1alpha1.GroupName, "storageversionmigrations", "list", "watch", "create", "delete"),
			may(apiextensionsv1.GroupName, "customresourcedefinitions", "get"),
			may(apiextensionsv1.GroupName, "customresourcedefinitions/status", "update"),
		},
	}
	// Skew compares the servers' versions.
	Skew = Role{
		Name: "skew",
		anywhere: []rbacv1.PolicyRule{
			may(versionv1alpha1.GroupName, "clusterversions", "get", "create"),
			may(versionv1alpha1.GroupName, "clusterversions/status", "update"),
		},
		in: with(leases("list"), events),
	}
	// Tally counts for metrics. It lists Leases; StorageStates and migrations come from the trigger's watches.
	Tally = Role{
		Name: "tally",
		in:   leases("list"),
	}
)

// All are all roles.
var All = []Role{Election, Collector, Trigger, Migrator, Patcher, Mirror, Skew, Tally}

// View holds the permissions that people need to read with `kubectl concord`. deploy/controllers/base/readers.yaml has
// the same role for clusters in which no server creates it. It is aggregated into Kubernetes' role view.
var View = rbacv1.ClusterRole{
	ObjectMeta: metav1.ObjectMeta{
		Name:        "concord:view",
		Labels:      map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	},
	Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{migrationv1alpha1.GroupName}, Resources: []string{"storagestates", "storageversionmigrations"}, Verbs: reads},
		may(storageversion.Resource.Group, "storageversions", reads...),
		may(versionv1alpha1.GroupName, "clusterversions", reads...),
		may(apiextensionsv1.GroupName, "customresourcedefinitions", reads...),
		may(storagemigrationv1.GroupName, "storageversionmigrations", reads...),
		may(coordinationv1.GroupName, "leases", reads...),
	},
}

var reads = []string{"get", "list", "watch"}

// events are about objects without a namespace, and so are kept in "default".
var events = map[string][]rbacv1.PolicyRule{metav1.NamespaceDefault: {may("", "events", "create")}}

func may(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// leases are rules for the servers' Leases.
func leases(verbs ...string) map[string][]rbacv1.PolicyRule {
	return map[string][]rbacv1.PolicyRule{storageversion.IdentityNamespace: {may(coordinationv1.GroupName, "leases", verbs...)}}
}

func with(some, more map[string][]rbacv1.PolicyRule) map[string][]rbacv1.PolicyRule {
	for namespace, rules := range more {
		some[namespace] = append(some[namespace], rules...)
	}
	return some
}

// User is as whom the controller acts.
func (r Role) User() string {
	return serviceaccount.MakeUsername(metav1.NamespaceSystem, "concord-"+r.Name)
}

// Is reports whether an authenticated user is the controller.
func (r Role) Is(u user.Info) bool { return u != nil && u.GetName() == r.User() }

// users are the names of all of them. They are asked for with every request.
var users = func() sets.Set[string] {
	names := sets.New[string]()
	for _, r := range All {
		names.Insert(r.User())
	}
	return names
}()

// Loopback reports whether an authenticated user is the server itself.
func Loopback(u user.Info) bool {
	return u != nil && u.GetName() == user.APIServerUser && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)
}

// Any reports whether an authenticated user is one of the controllers.
func Any(u user.Info) bool { return u != nil && users.Has(u.GetName()) }

// Own reports whether an authenticated user is the server itself or one of the controllers.
func Own(u user.Info) bool { return Loopback(u) || Any(u) }

// objectName is the name of the ClusterRole, the Roles and the bindings.
func (r Role) objectName() string { return "concord:" + r.Name }

// authors are the users that write the fields that others rely on, by resource.
var authors = map[schema.GroupResource][]Role{
	migrationv1alpha1.StorageStates:            {Trigger},
	migrationv1alpha1.StorageVersionMigrations: {Trigger, Migrator},
}

// Writes reports whether a user is a controller that writes the status of one of our resources.
func Writes(u user.Info, gr schema.GroupResource) bool {
	return slices.ContainsFunc(authors[gr], func(r Role) bool { return r.Is(u) })
}
